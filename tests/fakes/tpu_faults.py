"""What can go wrong with the fake of Cloud TPU: faults, what they strike, how often."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import grpc

from tests.fakes.faults import Fault, FaultList, WrongFault

CALLS: dict[str, dict[str, Any]] = {
    "status": {"code": "UNAVAILABLE", "message": None},  # not executed
    "reset_before": {},
    "reset_after": {},
    "lost": {"code": "UNAVAILABLE", "message": None},  # executed, and then answered so
    "slow": {"seconds": 1.0},  # first
}
"""Faults that strike calls, and their own parameters with defaults. They need a `method`."""

STUCK: dict[str, dict[str, Any]] = {"stuck": {}}
"""A resource stays in `state` as long as the fault is there."""

EVENTS: dict[str, dict[str, Any]] = {
    # The VM is killed, the node PREEMPTED, the request SUSPENDING, then SUSPENDED. With `notice`
    # the metadata server says so so many seconds before, and processes get SIGTERM.
    "preempt": {"notice": 0.0},
    "die": {},  # the processes of all hosts; the API says nothing of it
    "reboot": {},  # killed, and the script is run again on the same disk
    "vanish": {"what": "both"},  # the node with its VM and the request, or the `request` alone
    "fail": {},  # the request is FAILED: a stockout
}
"""What befalls a resource when it enters `state`, or now by `strike`."""

MESSAGES = {
    "INTERNAL": "an internal error has occurred [EID: 0x2f8bc266e74261a0]",
    "PERMISSION_DENIED": (
        "Permission 'tpu.queuedResources.create' denied on"
        " 'projects/lyceum-test/locations/us-central1-a'"
    ),
    "RESOURCE_EXHAUSTED": (
        "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service"
        " 'tpu.googleapis.com' for consumer 'project_number:123456789012'."
    ),
    "UNAVAILABLE": "The service is currently unavailable.",
}
"""What the service says with a code, where a fault does not say."""


@dataclass
class TpuFault(Fault):
    """Strikes calls of `method` (`*`: all), or resources that are in, or enter, a `state`; and
    where `name` occurs in the complete name of the resource (of a listing, its parent)."""

    method: str | None = None
    state: str | None = None

    KNOWN: ClassVar = {**CALLS, **STUCK, **EVENTS}

    def __post_init__(self) -> None:
        super().__post_init__()
        if (code := self.parameters.get("code", "UNAVAILABLE")) not in MESSAGES:
            raise WrongFault(f"no code {code!r}; there are {', '.join(MESSAGES)}")
        if (self.method is None) != (self.action not in CALLS):
            needs = "needs a" if self.action in CALLS else "knows no"
            raise WrongFault(f"{self.action} {needs} method")
        if self.action not in CALLS and self.state is None:
            raise WrongFault(f"{self.action} needs the state in which it shall happen")
        self._struck: set[str] = set()

    def strikes(self, name: str, state: str | None = None, method: str | None = None) -> bool:
        """Whether this call, or this resource's entry into a state, is struck; counts it."""
        return self._fits(name, state, method) and self.hits()

    def holds(self, resource: str, name: str, state: str) -> bool:
        """Whether a resource is struck as long as the fault lasts; counts it once for each
        resource."""
        if resource not in self._struck and self.strikes(name, state):
            self._struck.add(resource)
        return resource in self._struck and self._fits(name, state, None)

    def _fits(self, name: str, state: str | None, method: str | None) -> bool:
        return (
            self.method in ("*", method)
            and (self.name is None or self.name in name)
            and self.state in (None, state)
        )


class TpuFaults(FaultList[TpuFault]):
    """What can go wrong with the fake, now."""

    def __init__(self) -> None:
        super().__init__(TpuFault)

    def of_call(self, method: str, name: str) -> dict[str, dict[str, Any]]:
        """The faults that strike a call: action -> parameters. Of two with one action the older
        counts."""
        with self.lock:
            striking = [fault for fault in self._of(CALLS) if fault.strikes(name, method=method)]
        return {fault.action: fault.parameters for fault in striking[::-1]}

    def of_entry(self, name: str, state: str) -> list[TpuFault]:
        """What befalls a resource that has just entered a state."""
        with self.lock:
            return [fault for fault in self._of(EVENTS) if fault.strikes(name, state)]

    def stuck(self, resource: str, name: str, state: str) -> bool:
        """Whether a resource stays in its state for now."""
        with self.lock:
            return any(fault.holds(resource, name, state) for fault in self._of(STUCK))

    def _of(self, actions: Iterable[str]) -> list[TpuFault]:
        return [fault for fault in self if fault.action in actions]


def status_of(parameters: Mapping[str, Any]) -> tuple[grpc.StatusCode, str]:
    """The answer of a `status` or `lost` fault."""
    code = parameters["code"]
    return grpc.StatusCode[code], parameters["message"] or MESSAGES[code]
