"""How jobs are followed: whoever does takes over what runs already, restarts what was lost, adds
up what was paid, and leaves nothing."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from infra.backend import JobHandle, Leftover
from infra.context import context
from infra.settings import Settings
from infra.store.store import Store, attempt_file, open_store
from schemas.base import Stopped
from schemas.job import JobRequest, JobSpec, JobStatus
from tasks.running import follower
from tasks.running.backends import close_backends
from tasks.running.follower import Follower, run_to_the_end
from tasks.running.watch import Listener, Watch
from tests.infra.store.test_store import draft

JOB = JobRequest(
    stage="sft", kind="sft", key="0" * 64, store="file:///nowhere", target="scripted", config={}
)


def status(state: Any, cost: float | None = None, **more: Any) -> JobStatus:
    return JobStatus(state=state, heartbeat=0.0, cost_usd=cost, **more)


LOST = status("failed", 2.0, lost=True, error="the TPU was preempted")
DONE = status("succeeded", 3.0)


@dataclass
class Scripted:
    """A backend whose jobs do what `script` says: per submitted or attached job the statuses that
    `poll` returns."""

    script: list[list[JobStatus]]
    running: JobHandle | None = None
    submitted: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    followed_elsewhere: list[str] = field(default_factory=list)
    paused: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def submit(self, spec: JobSpec) -> JobHandle:
        self.submitted.append(spec.attempt)
        return self._start(JobHandle(spec.store, spec.key, spec.attempt))

    def attach(self, store: Store, key: str, run: str, attempts: Sequence[str]) -> JobHandle | None:
        return self._start(self.running) if self.running else None

    def _start(self, handle: JobHandle) -> JobHandle:
        self._statuses: Iterator[JobStatus] = iter(self.script.pop(0))
        return handle

    def poll(self, handle: JobHandle) -> JobStatus:
        return next(self._statuses)

    def log(self, handle: JobHandle, offset: int) -> tuple[str, int]:
        return "", offset

    def cancel(self, handle: JobHandle) -> None:
        self.cancelled.append(handle.attempt)

    def leave(self, handle: JobHandle) -> None:
        self.followed_elsewhere.append(handle.attempt)

    def pause(self, handle: JobHandle) -> None:
        self.paused.append(handle.attempt)

    def close(self) -> list[str]:
        return self.left

    def release(self, store: Store, key: str, say: Callable[[str], None]) -> None:
        pass

    def reap(self, store: Store, delete: bool) -> list[Leftover]:
        return []


@dataclass
class Bench:
    store: Store
    watch: Watch
    said: list[str]
    taken_over: bool = False
    newer_job: bool = False

    def run(self, backend: Scripted) -> JobStatus:
        context().backends["scripted"] = backend
        listener = Listener(logging.getLogger("test").info, lambda status: None)
        settings = Settings(poll_seconds=0.001, lease_seconds=0.01)

        overtaken, newer = lambda: self.taken_over, lambda: self.newer_job
        follower = Follower(JOB, self.watch, listener, settings, overtaken, newer)
        return run_to_the_end(follower, self.store, "4", restarts=3)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(context(), "backends", {})
    said: list[str] = []
    watch = Watch(say=lambda about, text: said.append(text))
    return Bench(open_store(tmp_path / "store"), watch, said)


def test_a_job_that_outlived_its_flow_is_followed_and_none_is_submitted(bench: Bench) -> None:
    backend = Scripted([[status("running"), DONE]], running=JobHandle(JOB.store, JOB.key, "2-1"))
    assert bench.run(backend) == DONE
    assert (backend.submitted, backend.cancelled) == ([], ["2-1"])
    assert bench.said == ["job 2-1 of an earlier run goes on; following it"]


def test_a_lost_job_is_submitted_again_under_a_new_name_and_all_of_it_is_paid(bench: Bench) -> None:
    backend = Scripted([[status("queued"), LOST], [LOST], [status("running", 1.0), DONE]])
    assert bench.run(backend) == DONE
    assert backend.submitted == backend.cancelled == ["4", "4-1", "4-2"]
    assert bench.watch.costs == {"sft": 7.0}
    assert "the TPU was preempted" in bench.said[0]


class Clock(threading.Event):
    """A watch's `stop`, which is never set, and a clock that stands still but where that is waited
    for."""

    now = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.now += timeout or 0.0
        return False

    def monotonic(self) -> float:
        return self.now


def test_a_machine_that_is_refused_at_once_is_asked_for_again_later_and_later(bench, monkeypatch):
    """All restarts were used up within seconds, while a zone had no TPU."""
    clock = Clock()
    bench.watch = replace(bench.watch, stop=clock)
    monkeypatch.setattr(follower, "time", clock)
    refused = status("failed", lost=True, error="the zone has no free TPUs")
    script = [[refused], [status("queued"), refused], [status("running"), refused], [DONE]]
    asked: list[float] = []

    class Asked(Scripted):
        def submit(self, spec: JobSpec) -> JobHandle:
            asked.append(clock.now)
            return super().submit(spec)

    assert bench.run(Asked(script)) == DONE
    gaps = [after - before for before, after in pairwise(asked)]
    assert gaps == pytest.approx([0.01, 0.02, 0.001])  # what has run is started again at once
    waits = ["no machine yet: waiting" in line for line in bench.said]
    assert waits == [True, False, True, False, False]
    assert bench.said[1] == "asking for a machine again (attempt 4-1; up to 3 restarts a run)"


def test_the_job_of_the_run_that_took_over_is_left_alone(bench: Bench) -> None:
    """A flow stood still as soon as it had the lease, or when it had seen that it held it: it
    followed the other's machine as one that had outlived its flow, and deleted it, or noted in its
    record what it had seen before."""
    bench.store.write_bytes(attempt_file(JOB.key, "5", "lease.json"), b"{}")
    backend = Scripted([[DONE]], running=JobHandle(JOB.store, JOB.key, "5"))
    assert bench.run(backend).lost
    assert (backend.submitted, backend.cancelled, backend.followed_elsewhere) == ([], [], [])


def test_a_failure_of_the_stage_itself_is_not_tried_again(bench: Bench) -> None:
    failed = status("failed", error="the loss is nan")
    backend = Scripted([[failed]])
    assert bench.run(backend) == failed
    assert backend.submitted == ["4"]
    assert bench.watch.costs == {}, "a machine of one's own costs nothing, which is not 0 dollars"


PAUSED = status("paused", error="paused at its checkpoint after step 3 of 8")


@dataclass
class Near(Scripted):
    """A deadline comes near when the job is first looked at."""

    near: threading.Event = field(default_factory=threading.Event)

    def poll(self, handle: JobHandle) -> JobStatus:
        self.near.set()
        return super().poll(handle)


RUNNING = status("running")


@pytest.mark.parametrize(
    ("given", "script", "ended", "submitted", "cancelled", "left", "paused"),
    [
        # restarts end when the budget is used up
        ("", [[LOST]] * 4, LOST, "4 4-1 4-2 4-3", "4 4-1 4-2 4-3", "", ""),
        # not beside the job of the run that took over: two machines were paid for one stage
        ("taken over", [[LOST], [DONE]], LOST, "4", "4", "", ""),
        # the flow stood still within its request: two machines worked until both had made it
        ("taken over, newer job", [[RUNNING] * 1000], "lost", "4", "4", "", ""),
        ("stop", [[RUNNING] * 2], "was stopped", "4", "4", "", ""),
        # it stood still for longer than its lease lives
        ("stop, taken over", [[RUNNING] * 2], "was stopped", "4", "", "4", ""),
        # anybody clears a job that has ended
        ("taken over", [[DONE]], DONE, "4", "4", "", ""),
        # before a deadline a running job is asked once to pause
        ("near", [[RUNNING] * 3 + [PAUSED]], PAUSED, "4", "4", "", "4"),
        # but not one that was taken over: the other run had to ask for another machine
        ("near, taken over", [[RUNNING] * 3], "another run goes on", "4", "", "4", ""),
        # no machine is waited for, what is lost is not started again, and nothing is submitted
        ("near", [[status("queued")] * 2], "still waited for its machine", "4", "4", "", ""),
        ("near", [[RUNNING, LOST]], LOST, "4", "4", "", "4"),
        ("pause", [], "stage sft had not begun", "", "", "", ""),
        # a job of an earlier run that was lost or paused goes on
        ("earlier", [[LOST], [DONE]], DONE, "4", "3 4", "", ""),
        ("earlier", [[PAUSED], [DONE]], DONE, "4", "3 4", "", ""),
    ],
)
def test_a_job_is_followed_cancelled_paused_or_left(
    bench: Bench, given, script, ended, submitted, cancelled, left, paused
) -> None:
    bench.taken_over, bench.newer_job = "taken over" in given, "newer job" in given
    running = JobHandle(JOB.store, JOB.key, "3") if given == "earlier" else None
    near = bench.watch.pause if "near" in given else threading.Event()
    for event in [name for name in ("stop", "pause") if name in given]:
        getattr(bench.watch, event).set()
    backend = Near([list(one) for one in script], running=running, near=near)
    if isinstance(ended, JobStatus):
        assert bench.run(backend) == ended
    elif ended == "lost":
        assert bench.run(backend).lost
    else:
        with pytest.raises(Stopped, match=ended):
            bench.run(backend)
    did = backend.submitted, backend.cancelled, backend.followed_elsewhere, backend.paused
    assert tuple(map(" ".join, did)) == (submitted, cancelled, left, paused)


def test_what_is_left_over_is_said(bench: Bench) -> None:
    bench.run(Scripted([[DONE]], left=["queued resource x could not be deleted"]))
    assert close_backends() == ["queued resource x could not be deleted"]


def test_phases_are_logged_once_and_their_duration_is_not_news(bench, caplog):
    phases = [f"waiting for v5e-8 in us-central1-a, {minutes} min" for minutes in range(3)]
    phases.append("booting in us-central1-a")
    queued = [status("queued", phase=phase) for phase in phases]
    with caplog.at_level(logging.INFO, logger="test"):
        bench.run(Scripted([[*queued, status("running"), DONE]]))
    told = [record.getMessage() for record in caplog.records]
    assert told == [phases[0], phases[-1], "running"]


def test_a_lost_job_is_not_started_again_once_another_run_has_had_the_lease(bench: Bench) -> None:
    """It stood still meanwhile, and the other run has made the stage and gone: what is started
    without the lease is nobody's for gc."""

    class Passed(Scripted):
        def submit(self, spec: JobSpec) -> JobHandle:
            bench.store.write_bytes(attempt_file(JOB.key, "5", "lease.json"), b"{}")
            return super().submit(spec)

    backend = Passed([[LOST], [DONE]])
    assert bench.run(backend).lost
    assert backend.submitted == ["4"]


def test_a_lost_job_that_has_made_the_artifact_is_not_submitted_again(
    bench: Bench, tmp_path: Path
) -> None:
    """Its flow stood still until the machine had worked and gone, and could not read the last word:
    another machine was paid for a stage that was made."""

    class Committed(Scripted):
        def submit(self, spec: JobSpec) -> JobHandle:
            (tmp_path / "out").mkdir()
            self.made = bench.store.commit(draft("4", JOB.key), tmp_path / "out").ref()
            return super().submit(spec)

    backend = Committed([[LOST], [DONE]])
    assert bench.run(backend).artifact == backend.made
    assert backend.submitted == ["4"]
