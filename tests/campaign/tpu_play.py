"""How a case of `tests/campaign/tpu_scenes.py` is played, as `tasks/stage.py` would follow its job,
and judged."""

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.recipe.resolve import resolve
from infra.backend import FINAL, JobBackend, JobHandle
from infra.context import context
from infra.store.remote import host_status
from infra.store.store import Store, open_store
from infra.targets import open_backend
from schemas.base import InputError, StageFailed
from schemas.job import JobSpec, JobStatus
from tests.campaign.tpu_scenes import FIRST_ZONE, HELD, Case, Scene
from tests.fakes.tpu_fake import FakeTpu

_CASE_SECONDS = 150.0
_CLEAN_SECONDS = 20.0


class _Log(logging.Handler):
    """What was logged."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def play(case: Case, tpu: FakeTpu, uri: str, recipe: str, patience: float) -> dict[str, Any]:
    """Play one case in a store of its own; see `Case`. Returns what has happened, as JSON; `wrong`
    says what should have been otherwise."""
    with _environment(case.environment), _logged() as log:
        tpu.forget()
        tpu.set_seconds(DELETING=0.3, SUSPENDING=2 * patience)
        stage, began = resolve(recipe).stages[0], time.monotonic()
        spec = JobSpec(
            stage=stage.name,
            kind=stage.kind,
            key=stage.key({}),
            attempt="1",
            store=uri,
            target=case.target,
            run="campaign",
            config=stage.config_json,
            dependencies=stage.dependencies,
        )
        player = _Player(
            case, Scene(tpu, case.state, spec.key[:24], patience), spec, open_store(uri)
        )
        outcome = player.outcome()
        ended = time.monotonic()
        messages = player.close()
        fired = {fault: tpu.faults.fired(fault) for fault in player.scene.faults}
        if case.leftover:
            tpu.faults.clear()
        left, closed = tpu.leaked(), time.monotonic()
        while left and time.monotonic() - closed < _CLEAN_SECONDS * patience and not player.endless:
            time.sleep(0.05)
            left = tpu.leaked()
        wrong = player.judge(outcome, messages, left)
        wrong += (
            [] if player.struck and all(fired.values()) else [f"the fault did not strike: {fired}"]
        )
        player.scene.end()
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
            "log": (
                [*dict.fromkeys(log.said), *tpu.output(player.scene.name).splitlines()[-20:]]
                if wrong and tpu.resources()
                else []
            ),
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
            self._backend = open_backend(self.spec.target)
            status, again = self._follow(None), 0
            while status.lost and again < context().settings.restarts:
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
        """Submit an attempt, or go on with one, and follow it to its end, as tasks/stage.py
        does."""
        assert self._backend is not None
        self.attempts.append(handle.attempt if handle else attempt)
        handle = handle or self._backend.submit(self.spec.model_copy(update={"attempt": attempt}))
        offset = 0
        try:
            while True:
                status = self._backend.poll(handle)
                _, offset = self._backend.log(handle, offset)
                self.said += [
                    text for text in (status.phase.partition(",")[0], status.error) if text
                ]
                if status.state in FINAL:
                    return status
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
        """Whether the job is in the case's state by what the fake says, and by whether the VM was
        heard of."""
        made = self.scene.tpu.resources()
        if not made:
            return False
        if self.case.state in HELD:
            return made[-1].state == HELD[self.case.state]
        return made[-1].state == "ACTIVE" and heard == (self.case.state != "booting")

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
            flow = subprocess.Popen(
                [sys.executable, "-m", "tests.campaign.tpu_faults", "--submit", str(spec)]
            )
            while not self._is_there(
                self.store.read_bytes(host_status(self.spec.key, "1", 0)) is not None
            ):
                if time.monotonic() > self._last:
                    self.endless = True
                    break
                time.sleep(0.02)
            flow.kill()
            flow.wait()
        if self.case.fault == "flow killed, run again":
            self._strike()
            self._backend = open_backend(self.spec.target)
            handle = self._backend.attach(self.store, self.spec.key)
            status = (
                self._follow(handle)
                if handle
                else JobStatus(state="failed", heartbeat=0.0, error="nothing to attach to")
            )
            return (
                "taken over"
                if status.state == "succeeded" and len(self.scene.tpu.resources()) == 1
                else status.state
            )
        if self.case.state in HELD:
            found = open_backend(self.spec.target).reap(self.store, delete=True)
            self._strike()
            return "reaped" if [one.removed for one in found] == [True] else f"found {found}"
        self._strike()
        self.scene.tpu.wait(self.scene.name, "GONE", seconds=60 * self.scene.patience)
        return "gone by itself"


def submit(file: Path) -> None:
    """Submit the job and follow it, until this process is killed."""
    spec = JobSpec.model_validate_json(file.read_text())
    backend = open_backend(spec.target)
    handle = backend.submit(spec)
    while backend.poll(handle).state not in FINAL:
        time.sleep(0.05)
    time.sleep(600)


@contextmanager
def _logged() -> Iterator[_Log]:
    """What the backend logs goes there, and nowhere else."""
    logger, log = logging.getLogger("lyceum"), _Log()
    logger.addHandler(log)
    logger.propagate = False
    try:
        yield log
    finally:
        logger.removeHandler(log)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
