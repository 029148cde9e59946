"""What may befall a job on a TPU, in which state, and how it must end: the cases of `benchmarks/tpu_faults.py`, and how one is played."""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.resolve import resolve
from infra.backend import FINAL, JobBackend, JobHandle
from infra.remote import host_status
from infra.settings import Settings
from infra.store import Store, open_store
from infra.targets import open_backend
from schemas.base import InputError, StageFailed
from schemas.job import JobSpec, JobStatus
from tests.tpu_fake import FakeTpu

TARGET = "v5e-8"
STATES = ("requested", "waiting", "provisioning", "booting", "running", "finishing")
BEFORE = STATES[:3]
VM = ("booting", "running")
HELD = {"requested": "CREATING", "waiting": "WAITING_FOR_RESOURCES", "provisioning": "PROVISIONING"}
"""States that the fake is told to stay in until the fault has struck."""
FIRST_ZONE = "us-central1-a"
_CASE_SECONDS = 150.0
_CLEAN_SECONDS = 10.0
_OUTAGE_SECONDS = 12.0


@dataclass
class Scene:
    """One case while it is played."""

    tpu: FakeTpu
    state: str
    name: str
    patience: float
    faults: list[int] = field(default_factory=list)
    over: dict[int, float] = field(default_factory=dict)

    def add(self, action: str, seconds: float | None = None, **parameters: Any) -> None:
        """A fault; it is over after so many seconds."""
        self.faults.append(self.tpu.faults.add(action, **parameters))
        if seconds is not None:
            self.over[self.faults[-1]] = time.monotonic() + seconds

    def end_what_is_over(self) -> None:
        for fault, moment in list(self.over.items()):
            if time.monotonic() > moment:
                self.tpu.faults.remove(fault)
                del self.over[fault]


Strike = Callable[[Scene], None]


@dataclass(frozen=True)
class Case:
    """One fault in one state.

    Attributes:
        strike: makes it happen.
        early: before the job is submitted, else when it is seen in the state.
        outcomes: any of `done` (by the first attempt), `elsewhere` (and in another zone), `again` (by a later attempt), `refused` (bad
            input), `failed`, `cancelled`, `taken over` (by another process), `reaped`, `gone by itself`.
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


def _calls(action: str, times: int | None, seconds: float | None = None, **parameters: Any) -> Strike:
    """Calls go wrong: the one that makes the request, the one that deletes it, or all in between."""

    def strike(scene: Scene) -> None:
        method = {"requested": "CreateQueuedResource", "finishing": "DeleteQueuedResource"}.get(scene.state, "*")
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

    def add(fault: str, states: tuple[str, ...], strike: Strike, outcome: str, words: str = "", **more: Any) -> None:
        early = more.pop("early", None)
        for state in states:
            before = state == "finishing" if early is None else early
            outcomes = ("done",) if state == "finishing" else tuple(outcome.split("/"))
            found.append(Case(fault, state, strike, outcomes, "" if state == "finishing" else words, before, **more))

    def add_calls(fault: str, strike: Strike, states: tuple[str, ...] = STATES) -> None:
        add(fault, ("requested", "finishing"), strike, "done", early=True)
        add(fault, tuple(state for state in states if state not in ("requested", "finishing")), strike, "done")

    add_calls("nothing", _nothing, ())
    for code in ("UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL", "DEADLINE_EXCEEDED"):
        add_calls(f"API: {code}", _calls("status", 3, code=code))
    add_calls("API: connection reset", _calls("reset_before", 3))
    add_calls("API: reset after execution", _calls("reset_after", 2))
    add_calls("API: lost acknowledgement", _calls("lost", 2))
    add_calls("API: slow", _calls("slow", 3, delay=1.0))
    add_calls("API: outage", _calls("status", None, _OUTAGE_SECONDS))
    add("preempted", (*BEFORE, *VM, "finishing"), _event("preempt"), "again", "preempted")
    ends = "preempted|shut(ting)? down|taken away|terminated|signal"
    add("preempted, with notice", (*VM, "finishing"), _event("preempt", notice=2.0), "again", ends)
    add("preempted, with quiet notice", VM, _event("preempt", notice=4.0, sigterm=False), "again/done", ends)
    add("preempted, not reported", ("booting",), _event("die"), "again", "no worker was heard of")
    add("preempted, not reported", ("running",), _event("die"), "again", "not heard of")
    add("maintenance", (*VM, "finishing"), _event("maintenance", notice=2.0), "again", "maintenance")
    add("maintenance, false alarm", VM, _event("maintenance", then=""), "again/done", "maintenance")
    add("repaired", VM, _event("node", state="REPAIRING"), "done")
    add("rebooted", VM, _event("reboot"), "done")
    add("stopped by somebody", VM, _event("node", state="STOPPED"), "again", "stopped by somebody")
    add("terminated", VM, _event("node", state="TERMINATED"), "again", "maintenance")
    add("no boot", ("booting",), _fault("no_boot", times=1), "again", "no worker was heard of", early=True)
    add("boot hangs", ("booting",), _fault("no_boot", times=1, hang=True), "again", "no worker was heard of", early=True)
    add("node vanished", (*VM, "finishing"), _event("vanish", what="node"), "again", "vanished")
    add("request vanished", ("requested",), _event("vanish", what="request"), "done/again")
    add("request vanished", (*STATES[1:3], *VM), _event("vanish", what="request"), "again", "vanished")
    add("all vanished", ("requested",), _event("vanish", what="both"), "done/again")
    add("all vanished", (*STATES[1:3], *VM, "finishing"), _event("vanish", what="both"), "again", "vanished")
    add("stockout: failed", BEFORE, _event("fail"), "elsewhere", "no free TPUs")
    add("failed: internal error", BEFORE, _event("fail", code="INTERNAL"), "elsewhere/again", "internal error")
    everywhere = {"state": "WAITING_FOR_RESOURCES"}
    add("stockout: failed everywhere", ("waiting",), _fault("fail", **everywhere), "failed", "no zone has a TPU", early=True)
    queue = _fault("stuck", name=FIRST_ZONE, **everywhere)
    add("stockout: waits for ever", ("waiting",), queue, "elsewhere", "its request was WAITING_FOR_RESOURCES|has expired", early=True)
    add("stockout: waits everywhere", ("waiting",), _fault("stuck", **everywhere), "failed", "no zone has a TPU", early=True)
    for state in ("requested", "provisioning"):
        stuck = _fault("stuck", state=HELD[state], name=FIRST_ZONE)
        add("stuck", (state,), stuck, "elsewhere", HELD[state], early=True)
    add("stuck", ("finishing",), _fault("stuck", state="DELETING"), "done", leftover=True)
    add("quota: one zone", ("requested",), _quota(FIRST_ZONE), "elsewhere", "no quota left", early=True)
    add("quota: everywhere", ("requested",), _quota(None), "refused", "no quota left", early=True)
    denied = "PERMISSION_DENIED"
    add("permission: denied", ("requested",), _calls("status", None, code=denied), "refused", "roles/tpu.admin", early=True)
    add("permission: taken away", STATES[1:5], _calls("status", None, 5.0, code=denied), "done")
    add("permission: taken away", ("finishing",), _calls("status", None, code=denied), "done", leftover=True)
    for fault, name, value, words in (
        ("zone: unknown", "LYCEUM_ZONES", "mars-1-a", "is no zone"),
        ("zone: without the type", "LYCEUM_ZONES", "us-central2-b", "is not to be had in"),
        ("runtime: unknown", "LYCEUM_TPU_RUNTIME", "v9-beta", "runtime version 'v9-beta' does not exist"),
        ("label: invalid", "LYCEUM_TPU_LABELS", "Team=x", "is no label"),
    ):
        add(fault, ("requested",), _nothing, "refused", words, early=True, environment={name: value})
    add("cancelled", STATES[:5], _nothing, "cancelled")
    add("flow killed, run again", STATES[1:5], _nothing, "taken over")
    add("flow killed for good", ("waiting",), _nothing, "reaped")
    add("flow killed for good", VM, _nothing, "gone by itself")
    return found


def play(case: Case, tpu: FakeTpu, uri: str, recipe: str, patience: float) -> dict[str, Any]:
    """Play one case in a store of its own; see `Case`. Returns what has happened, as JSON; `wrong` says what should have been otherwise."""
    with _environment(case.environment):
        tpu.forget()
        tpu.set_seconds(DELETING=0.3, SUSPENDING=2 * patience)
        stage, began = resolve(recipe).stages[0], time.monotonic()
        spec = JobSpec(
            stage=stage.name,
            kind=stage.kind,
            key=stage.key({}),
            attempt="1",
            store=uri,
            target=TARGET,
            run="campaign",
            config=stage.config_json,
            dependencies=stage.dependencies,
        )
        player = _Player(case, Scene(tpu, case.state, spec.key[:24], patience), spec, open_store(uri))
        outcome = player.outcome()
        ended = time.monotonic()
        messages = player.close()
        fired = {fault: tpu.faults.fired(fault) for fault in player.scene.faults}
        if case.leftover:
            tpu.faults.clear()
        left = tpu.leaked()
        while left and time.monotonic() - ended < _CLEAN_SECONDS * patience and not player.endless:
            time.sleep(0.05)
            left = tpu.leaked()
        wrong = player.judge(outcome, messages, left)
        wrong += [] if player.struck and all(fired.values()) else [f"the fault did not strike: {fired}"]
        return {
            "fault": case.fault,
            "state": case.state,
            "outcome": outcome,
            "wrong": wrong,
            "ended": not player.endless,
            "left": left,
            "attempts": player.attempts,
            "made": len(tpu.resources()),
            "seconds": round(ended - began, 2),
            "cleaned_seconds": round(time.monotonic() - ended, 2),
            "billed_seconds": round(sum(one.billed_seconds for one in tpu.resources()), 2),
            "said": [*dict.fromkeys(player.said), *messages],
        }


class _Player:
    """Follows the job of a case to its end."""

    def __init__(self, case: Case, scene: Scene, spec: JobSpec, store: Store) -> None:
        self.case, self.scene, self.spec, self.store = case, scene, spec, store
        self.said: list[str] = []
        self.attempts: list[str] = []
        self.struck = self.endless = False
        self._backend: JobBackend | None = None
        self._last = time.monotonic() + _CASE_SECONDS * scene.patience
        self._hold: int | None = None

    def outcome(self) -> str:
        """How the job ended; see `Case.outcomes`."""
        if self.case.early:
            self._strike()
        elif self.case.state in HELD:
            self._hold = self.scene.tpu.faults.add("stuck", state=HELD[self.case.state])
        try:
            if self.case.fault.startswith("flow killed"):
                return self._without_flow()
            self._backend = open_backend(TARGET, Settings.from_environment())
            status, again = self._follow(None), 0
            while status.lost and again < Settings.from_environment().restarts:
                again += 1
                status = self._follow(None, f"1-{again}")
        except (InputError, StageFailed) as error:
            self.said.append(str(error))
            return "refused" if isinstance(error, InputError) else "failed"
        if status.state != "succeeded":
            return "refused" if status.exit_code == 2 else status.state
        zones = {one.zone for one in self.scene.tpu.resources()}
        return "again" if again else "done" if zones == {FIRST_ZONE} else "elsewhere"

    def close(self) -> list[str]:
        return self._backend.close() if self._backend is not None else []

    def judge(self, outcome: str, messages: list[str], left: list[str]) -> list[str]:
        """What is not as it should be."""
        case, wrong = self.case, []
        if outcome not in case.outcomes:
            wrong.append(f"ended as {outcome} instead of {' or '.join(case.outcomes)}")
        if not re.search(case.words, "\n".join([*self.said, *messages])) and outcome != "done":
            wrong.append(f"nothing that was said contains {case.words!r}")
        if left:
            wrong.append(f"left behind: {', '.join(left)}")
        if bool(messages) != case.leftover:
            wrong.append(f"close said {messages}")
        made = self.store.valid(self.spec.kind, self.spec.key) is not None
        if made != (outcome in ("done", "elsewhere", "again", "taken over", "gone by itself")):
            wrong.append(f"the artifact is{'' if made else ' not'} there")
        return wrong

    def _follow(self, handle: JobHandle | None, attempt: str = "1") -> JobStatus:
        """Submit an attempt, or go on with one, and follow it to its end, as tasks/stage.py does."""
        assert self._backend is not None
        self.attempts.append(handle.attempt if handle else attempt)
        handle = handle or self._backend.submit(self.spec.model_copy(update={"attempt": attempt}))
        offset = 0
        try:
            while True:
                status = self._backend.poll(handle)
                _, offset = self._backend.log(handle, offset)
                self.said += [text for text in (status.phase.partition(",")[0], status.error) if text]
                if status.state in FINAL:
                    return status
                self.scene.end_what_is_over()
                if not self.struck and self._is_there(status.state == "running"):
                    self._strike()
                    if self.case.fault == "cancelled":
                        return JobStatus(state="cancelled", heartbeat=0.0)
                if time.monotonic() > self._last:
                    self.endless = True
                    return JobStatus(state="failed", heartbeat=0.0, error="no end")
                time.sleep(0.02)
        finally:
            self._backend.cancel(handle)

    def _is_there(self, heard: bool) -> bool:
        """Whether the job is in the case's state by what the fake says, and by whether the VM was heard of."""
        made = self.scene.tpu.resources()
        if not made:
            return False
        if self.case.state in HELD:
            return made[-1].state == HELD[self.case.state]
        return made[-1].state == "ACTIVE" and heard == (self.case.state == "running")

    def _strike(self) -> None:
        self.case.strike(self.scene)
        self.struck = True
        if self._hold is not None:
            self.scene.tpu.faults.remove(self._hold)

    def _without_flow(self) -> str:
        """Another process submits the job and is killed in the case's state."""
        with tempfile.TemporaryDirectory() as scratch:
            spec = Path(scratch) / "spec.json"
            spec.write_text(json.dumps(self.spec.model_dump(mode="json")))
            flow = subprocess.Popen([sys.executable, "-m", "benchmarks.tpu_faults", "--submit", str(spec)])
            while not self._is_there(self.store.read_bytes(host_status(self.spec.key, "1", 0)) is not None):
                if time.monotonic() > self._last:
                    self.endless = True
                    break
                time.sleep(0.02)
            flow.kill()
            flow.wait()
        if self.case.fault == "flow killed, run again":
            self._strike()
            self._backend = open_backend(TARGET, Settings.from_environment())
            handle = self._backend.attach(self.store, self.spec.key)
            status = self._follow(handle) if handle else JobStatus(state="failed", heartbeat=0.0, error="nothing to attach to")
            return "taken over" if status.state == "succeeded" and len(self.scene.tpu.resources()) == 1 else status.state
        if self.case.state in HELD:
            found = open_backend(TARGET, Settings.from_environment()).reap(self.store, delete=True)
            self._strike()
            return "reaped" if [one.removed for one in found] == [True] else f"found {found}"
        self._strike()
        self.scene.tpu.wait(self.scene.name, "GONE", seconds=60 * self.scene.patience)
        return "gone by itself"


def submit(file: Path) -> None:
    """Submit the job and follow it, until this process is killed."""
    spec = JobSpec.model_validate_json(file.read_text())
    backend = open_backend(TARGET, Settings.from_environment())
    handle = backend.submit(spec)
    while backend.poll(handle).state not in FINAL:
        time.sleep(0.05)
    time.sleep(600)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
