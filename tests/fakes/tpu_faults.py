"""What can go wrong with the fake of Cloud TPU: faults, what they strike, how often.
`tests.fakes.tpu_fake.Faults.add` says what they mean."""

import random
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc

CALLS: dict[str, dict[str, Any]] = {
    "status": {"code": "UNAVAILABLE", "message": None},
    "reset_before": {},
    "reset_after": {},
    "lost": {"code": "UNAVAILABLE", "message": None},
    "slow": {"delay": 1.0},
}
"""Faults that strike calls, and their own parameters with defaults."""

COURSE: dict[str, dict[str, Any]] = {"stuck": {}, "no_boot": {"hang": False}}
"""Faults that strike the course of a resource."""

EVENTS: dict[str, dict[str, Any]] = {
    "preempt": {"notice": 0.0, "sigterm": True},
    "die": {"host": None},
    "maintenance": {"notice": 0.0, "then": "TERMINATED"},
    "reboot": {"host": None},
    "node": {"state": "STOPPED", "why": ""},
    "vanish": {"what": "both"},
    "fail": {"code": "RESOURCE_EXHAUSTED", "message": None},
}
"""What can befall a resource at a moment."""

MESSAGES = {
    "ABORTED": "The operation was aborted.",
    "CANCELLED": "The operation was cancelled.",
    "DEADLINE_EXCEEDED": "Deadline Exceeded",
    "FAILED_PRECONDITION": (
        "Cloud TPU received a bad request. This is not supported in the current state [EID:"
        " 0x5be9ca99d1d1a7c3]"
    ),
    "INTERNAL": "an internal error has occurred [EID: 0x2f8bc266e74261a0]",
    "INVALID_ARGUMENT": "Cloud TPU received a bad request. [EID: 0x1bc8f9d790be9142]",
    "NOT_FOUND": "Resource not found",
    "PERMISSION_DENIED": (
        "Permission 'tpu.queuedResources.create' denied on"
        " 'projects/lyceum-test/locations/us-central1-a'"
    ),
    "RESOURCE_EXHAUSTED": (
        "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service"
        " 'tpu.googleapis.com' for consumer 'project_number:123456789012'."
    ),
    "UNAUTHENTICATED": "Request had invalid authentication credentials.",
    "UNAVAILABLE": "The service is currently unavailable.",
    "UNKNOWN": "unknown error",
}
"""What the service says with a code, where a fault does not say."""


class WrongFault(ValueError):
    """A test asked for a fault that does not exist."""


def checked(action: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The action's parameters, complete. Raises WrongFault for what it has not."""
    known = {**CALLS, **COURSE, **EVENTS}
    if action not in known:
        raise WrongFault(f"no fault {action!r}; there are {', '.join(known)}")
    if unknown := set(parameters) - set(known[action]):
        raise WrongFault(f"{action} has no {', '.join(unknown)}; it has {', '.join(known[action])}")
    complete = {**known[action], **parameters}
    if "code" in complete and complete["code"] not in MESSAGES:
        raise WrongFault(f"no code {complete['code']!r}; there are {', '.join(MESSAGES)}")
    return complete


@dataclass
class Fault:
    """One kind of trouble; see `tests.fakes.tpu_fake.Faults.add` for the fields. `fired` counts how
    often it struck so far."""

    action: str
    method: str | None = None
    name: str | None = None
    state: str | None = None
    delay: float = 0.0
    skip: int = 0
    times: int | None = None
    probability: float = 1.0
    seed: int = 0
    parameters: dict[str, Any] = field(default_factory=dict)
    fired: int = 0

    def __post_init__(self) -> None:
        self.parameters = checked(self.action, self.parameters)
        if (self.method is None) != (self.action not in CALLS):
            raise WrongFault(
                f"{self.action} {'needs a' if self.action in CALLS else 'knows no'} method"
            )
        if self.action in ("stuck", *EVENTS) and self.state is None:
            raise WrongFault(
                f"{self.action} needs the state in which it shall happen; to have it now, use"
                " `strike`"
            )
        self._random = random.Random(self.seed)
        self._struck: set[str] = set()

    def strikes(self, name: str, state: str | None, method: str | None = None) -> bool:
        """Whether this call, or this resource's entry into a state, is struck; counts it."""
        if not self._fits(name, state, method):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.fired == self.times or self._random.random() >= self.probability:
            return False
        self.fired += 1
        return True

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


class FaultList:
    """The faults of a fake, by number, in the order in which they were added."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._added: list[Fault] = []
        self._faults: dict[int, Fault] = {}

    def add(self, wish: Mapping[str, Any]) -> int:
        fault = Fault(**wish)
        with self._lock:
            self._added.append(fault)
            self._faults[len(self._added)] = fault
            return len(self._added)

    def remove(self, number: int) -> None:
        with self._lock:
            self._faults.pop(number, None)

    def clear(self) -> None:
        with self._lock:
            self._faults.clear()

    def fired(self, number: int) -> int:
        """How often a fault struck, whether it is still there or not."""
        with self._lock:
            if not 0 < number <= len(self._added):
                raise WrongFault(f"no fault {number}")
            return self._added[number - 1].fired

    def of_call(self, method: str, name: str, state: str | None) -> dict[str, dict[str, Any]]:
        """The faults that strike a call: action -> parameters. Of two with one action the older
        counts."""
        with self._lock:
            striking = [fault for fault in self._of(CALLS) if fault.strikes(name, state, method)]
        return {fault.action: fault.parameters for fault in striking[::-1]}

    def of_entry(self, name: str, state: str) -> list[tuple[float, str, dict[str, Any]]]:
        """What befalls a resource that has just entered a state: (seconds from now, event,
        parameters)."""
        with self._lock:
            return [
                (fault.delay, fault.action, fault.parameters)
                for fault in self._of(EVENTS)
                if fault.strikes(name, state)
            ]

    def stuck(self, resource: str, name: str, state: str) -> bool:
        """Whether a resource stays in its state for now."""
        with self._lock:
            return any(fault.holds(resource, name, state) for fault in self._of(("stuck",)))

    def of_boot(self, name: str) -> dict[str, Any] | None:
        """What becomes of a boot: the parameters of `no_boot`, None for nothing unusual."""
        with self._lock:
            return next(
                (fault.parameters for fault in self._of(("no_boot",)) if fault.strikes(name, None)),
                None,
            )

    def _of(self, actions: Iterable[str]) -> list[Fault]:
        return [fault for fault in self._faults.values() if fault.action in actions]


def status_of(parameters: Mapping[str, Any]) -> tuple[grpc.StatusCode, str]:
    """The answer of a `status` or `lost` fault."""
    return (
        grpc.StatusCode[parameters["code"]],
        parameters["message"] or MESSAGES[parameters["code"]],
    )
