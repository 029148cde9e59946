"""What may befall a job on a TPU, in which state, and how it must end: the cases of
`tests/campaign/tpu_faults.py`."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.tpu_fake import FakeTpu

STATES = ("requested", "waiting", "provisioning", "booting", "running", "finishing")
BEFORE = STATES[:3]
VM = ("booting", "running")
HELD = {"requested": "CREATING", "waiting": "WAITING_FOR_RESOURCES", "provisioning": "PROVISIONING"}
"""States that the fake is told to stay in until the fault has struck."""
FIRST_ZONE = "us-central1-a"
_OUTAGE_SECONDS = 12.0


@dataclass
class Scene:
    """One case while it is played."""

    tpu: FakeTpu
    state: str
    name: str
    patience: float
    faults: list[int] = field(default_factory=list)
    timers: list[threading.Timer] = field(default_factory=list)

    def add(self, action: str, seconds: float | None = None, **parameters: Any) -> None:
        """A fault; it is over after so many seconds."""
        fault = self.tpu.faults.add(action, **parameters)
        self.faults.append(fault)
        if seconds is not None:
            self.timers.append(threading.Timer(seconds, self.tpu.faults.remove, (fault,)))
            self.timers[-1].start()

    def end(self) -> None:
        for timer in self.timers:
            timer.cancel()


Strike = Callable[[Scene], None]


@dataclass(frozen=True)
class Case:
    """One fault in one state.

    Attributes:
        strike: makes it happen.
        early: before the job is submitted, else when it is seen in the state, or, of what befalls a
            job that finishes, while it runs.
        outcomes: any of `done` (by the first attempt), `elsewhere` (and in another zone), `again`
            (by a later attempt), `refused` (bad input), `failed`, `cancelled`, `taken over` (by
            another process), `reaped`, `gone by itself`.
        words: a pattern that something said to people must contain.
        leftover: `close` reports what is left; it goes when the fault is over.
    """

    fault: str
    state: str
    strike: Strike
    outcomes: tuple[str, ...]
    words: str = ""
    early: bool = False
    leftover: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    target: str = "v5e-8"


def _calls(
    action: str, times: int | None, seconds: float | None = None, **parameters: Any
) -> Strike:
    """Calls go wrong: the one that makes the request, the one that deletes it, or all in
    between."""

    def strike(scene: Scene) -> None:
        method = {"requested": "CreateQueuedResource", "finishing": "DeleteQueuedResource"}.get(
            scene.state, "*"
        )
        scene.add(action, seconds, method=method, times=times, **parameters)

    return strike


def _event(action: str, **parameters: Any) -> Strike:
    def strike(scene: Scene) -> None:
        if scene.state == "finishing":
            scene.add(action, state="DELETING", times=1, **parameters)
        else:
            scene.tpu.strike(action, scene.name, **parameters)

    return strike


def _fault(action: str, **parameters: Any) -> Strike:
    return lambda scene: scene.add(action, **parameters)


def _quota(zone: str | None) -> Strike:
    return lambda scene: scene.tpu.set_quota("spot", 0, zone)


def _nothing(scene: Scene) -> None:
    pass


def cases() -> list[Case]:
    """All of them."""
    found: list[Case] = []

    def add(
        fault: str,
        states: tuple[str, ...],
        strike: Strike,
        outcome: str,
        words: str = "",
        **more: Any,
    ) -> None:
        early = more.pop("early", None)
        for state in states:
            before = state == "finishing" if early is None else early
            outcomes = ("done",) if state == "finishing" else tuple(outcome.split("/"))
            found.append(
                Case(
                    fault,
                    state,
                    strike,
                    outcomes,
                    "" if state == "finishing" else words,
                    before,
                    **more,
                )
            )

    def add_calls(fault: str, strike: Strike, states: tuple[str, ...] = STATES) -> None:
        add(fault, ("requested", "finishing"), strike, "done", early=True)
        add(
            fault,
            tuple(state for state in states if state not in ("requested", "finishing")),
            strike,
            "done",
        )

    add_calls("nothing", _nothing, ())
    for code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL", "DEADLINE_EXCEEDED"):
        add_calls(f"API: {code}", _calls("status", 3, code=code))
    add_calls("API: connection reset", _calls("reset_before", 3))
    add_calls("API: reset after execution", _calls("reset_after", 2))
    add_calls("API: lost acknowledgement", _calls("lost", 2))
    add_calls("API: slow", _calls("slow", 3, seconds=1.0))
    outage = _calls("status", None, _OUTAGE_SECONDS)
    # longer than the outage, as in life
    patient = {
        "LYCEUM_TPU_QUEUE_SECONDS": "60",
        "LYCEUM_TPU_BOOT_SECONDS": "60",
    }
    add("API: outage", ("requested",), outage, "done", early=True, environment=patient)
    add("API: outage", STATES[1:], outage, "done", early=False, environment=patient)
    add("preempted", (*BEFORE, *VM, "finishing"), _event("preempt"), "again", "preempted")
    ends = "preempted|shut(ting)? down|taken away|terminated|signal"
    add("preempted, with notice", (*VM, "finishing"), _event("preempt", notice=2.0), "again", ends)
    add(
        "preempted, with quiet notice",
        VM,
        _event("preempt", notice=4.0, sigterm=False),
        "again/done",
        ends,
    )
    add("preempted, not reported", ("booting",), _event("die"), "again", "no worker was heard of")
    add("preempted, not reported", ("running",), _event("die"), "again", "not heard of")
    add(
        "one of four hosts died",
        ("running",),
        _event("die", host=2),
        "again/done",
        "host 2 of 4",
        target="v5e-16",
    )
    add(
        "maintenance", (*VM, "finishing"), _event("maintenance", notice=2.0), "again", "maintenance"
    )
    add("maintenance, false alarm", VM, _event("maintenance", then=""), "again/done", "maintenance")
    add("repaired", VM, _event("node", state="REPAIRING"), "done")
    add("rebooted", VM, _event("reboot"), "done")
    add("stopped by somebody", VM, _event("node", state="STOPPED"), "again", "stopped by somebody")
    add("terminated", VM, _event("node", state="TERMINATED"), "again", "maintenance")
    add(
        "no boot",
        ("booting",),
        _fault("no_boot", times=1),
        "again",
        "no worker was heard of",
        early=True,
    )
    add(
        "boot hangs",
        ("booting",),
        _fault("no_boot", times=1, hang=True),
        "again",
        "no worker was heard of",
        early=True,
    )
    add("node vanished", (*VM, "finishing"), _event("vanish", what="node"), "again", "vanished")
    add("request vanished", ("requested",), _event("vanish", what="request"), "done/again")
    add(
        "request vanished",
        (*STATES[1:3], *VM),
        _event("vanish", what="request"),
        "again",
        "vanished",
    )
    add("all vanished", ("requested",), _event("vanish", what="both"), "done/again")
    add(
        "all vanished",
        (*STATES[1:3], *VM, "finishing"),
        _event("vanish", what="both"),
        "again",
        "vanished",
    )
    add("stockout: failed", BEFORE, _event("fail"), "elsewhere", "no free TPUs")
    add(
        "failed: internal error",
        BEFORE,
        _event("fail", code="INTERNAL"),
        "elsewhere/again",
        "internal error",
    )
    everywhere = {"state": "WAITING_FOR_RESOURCES"}
    add(
        "stockout: failed everywhere",
        ("waiting",),
        _fault("fail", **everywhere),
        "failed",
        "no zone has a TPU",
        early=True,
    )
    queue = _fault("stuck", name=FIRST_ZONE, **everywhere)
    add(
        "stockout: waits for ever",
        ("waiting",),
        queue,
        "elsewhere",
        "its request was WAITING_FOR_RESOURCES|has expired",
        early=True,
    )
    add(
        "stockout: waits everywhere",
        ("waiting",),
        _fault("stuck", **everywhere),
        "failed",
        "no zone has a TPU",
        early=True,
    )
    for state in ("requested", "provisioning"):
        stuck = _fault("stuck", state=HELD[state], name=FIRST_ZONE)
        add("stuck", (state,), stuck, "elsewhere", HELD[state], early=True)
    add("stuck", ("finishing",), _fault("stuck", state="DELETING"), "done", leftover=True)
    add(
        "quota: one zone",
        ("requested",),
        _quota(FIRST_ZONE),
        "elsewhere",
        "no quota left",
        early=True,
    )
    add("quota: everywhere", ("requested",), _quota(None), "refused", "no quota left", early=True)
    denied = "PERMISSION_DENIED"
    add(
        "permission: denied",
        ("requested",),
        _calls("status", None, code=denied),
        "refused",
        "roles/tpu.admin",
        early=True,
    )
    add("permission: taken away", STATES[1:5], _calls("status", None, 5.0, code=denied), "done")
    add(
        "permission: taken away",
        ("finishing",),
        _calls("status", None, code=denied),
        "done",
        leftover=True,
    )
    for fault, name, value, words in (
        ("zone: unknown", "LYCEUM_ZONES", "mars-1-a", "is no zone"),
        ("zone: without the type", "LYCEUM_ZONES", "us-central2-b", "is not to be had in"),
        (
            "runtime: unknown",
            "LYCEUM_TPU_RUNTIME",
            "v9-beta",
            "runtime version 'v9-beta' does not exist",
        ),
        ("label: invalid", "LYCEUM_TPU_LABELS", "Team=x", "is no label"),
    ):
        add(
            fault, ("requested",), _nothing, "refused", words, early=True, environment={name: value}
        )
    add("cancelled", STATES[:5], _nothing, "cancelled")
    add("flow killed, run again", STATES[1:5], _nothing, "taken over")
    add("flow killed for good", ("waiting",), _nothing, "reaped")
    add("flow killed for good", VM, _nothing, "gone by itself")
    return found
