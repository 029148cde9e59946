"""How jobs are followed: whoever does takes over what runs already, restarts what was lost, adds
up what was paid, and leaves nothing."""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from infra.backend import JobHandle, Leftover
from infra.context import context
from infra.settings import Settings
from infra.store.store import Store, attempt_file, open_store
from schemas.artifact import Manifest
from schemas.base import Stopped
from schemas.job import JobRequest, JobSpec, JobStatus
from tasks.running.backends import close_backends
from tasks.running.follower import Follower, run_to_the_end
from tasks.running.watch import Listener, Watch

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
    followed: list[str] = field(default_factory=list)

    def submit(self, spec: JobSpec) -> JobHandle:
        self.submitted.append(spec.attempt)
        return self._start(JobHandle(spec.store, spec.key, spec.attempt))

    def attach(self, store: Store, key: str, run: str, attempts: Sequence[str]) -> JobHandle | None:
        return self._start(self.running) if self.running else None

    def _start(self, handle: JobHandle) -> JobHandle:
        self._statuses: Iterator[JobStatus] = iter(self.script.pop(0))
        self.followed.append(handle.attempt)
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

    def run(self, backend: Scripted, restarts: int = 3) -> JobStatus:
        context().backends["scripted"] = backend
        listener = Listener(logging.getLogger("test").info, lambda status: None)
        settings = Settings(poll_seconds=0.001, lease_seconds=0.01)

        overtaken, newer = lambda: self.taken_over, lambda: self.newer_job
        follower = Follower(JOB, self.watch, listener, settings, overtaken, newer)
        return run_to_the_end(follower, self.store, "4", restarts)


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


def test_restarts_end_when_the_budget_is_used_up(bench: Bench) -> None:
    backend = Scripted([[LOST], [LOST], [LOST]])
    assert bench.run(backend, restarts=2) == LOST
    assert backend.submitted == ["4", "4-1", "4-2"]


def test_a_lost_job_is_not_started_again_beside_that_of_the_run_that_took_over(bench):
    """A flow stood still: two machines were paid for one stage."""
    bench.taken_over = True
    backend = Scripted([[LOST], [DONE]])
    assert bench.run(backend) == LOST
    assert backend.submitted == ["4"]


def test_the_job_of_the_run_that_took_over_is_left_alone(bench: Bench) -> None:
    """A flow stood still as soon as it had the lease, or when it had seen that it held it: it
    followed the other's machine as one that had outlived its flow, and deleted it, or noted in its
    record what it had seen before."""
    bench.store.write_bytes(attempt_file(JOB.key, "5", "lease.json"), b"{}")
    backend = Scripted([[DONE]], running=JobHandle(JOB.store, JOB.key, "5"))
    assert bench.run(backend).lost
    assert (backend.submitted, backend.cancelled, backend.followed_elsewhere) == ([], [], [])


def test_a_job_beside_that_of_the_run_that_took_over_is_given_up(bench: Bench) -> None:
    """A flow stood still within its request for a machine: two machines worked on one stage until
    both had made it."""
    bench.taken_over = bench.newer_job = True
    backend = Scripted([[status("running")] * 1000])
    assert bench.run(backend).lost
    assert (backend.submitted, backend.cancelled) == (["4"], ["4"])
    assert backend.followed_elsewhere == []


def test_a_failure_of_the_stage_itself_is_not_tried_again(bench: Bench) -> None:
    failed = status("failed", error="the loss is nan")
    backend = Scripted([[failed]])
    assert bench.run(backend) == failed
    assert backend.submitted == ["4"]
    assert bench.watch.costs == {}, "a machine of one's own costs nothing, which is not 0 dollars"


def test_a_stopped_stage_cancels_its_job(bench: Bench) -> None:
    backend = Scripted([[status("running")] * 2])
    bench.watch.stop.set()
    with pytest.raises(Stopped):
        bench.run(backend)
    assert backend.cancelled == ["4"]


def test_a_stopped_stage_leaves_its_job_to_the_run_that_has_taken_it_over(bench: Bench) -> None:
    """It stood still for longer than its lease lives. Anybody clears a job that has ended."""
    bench.taken_over = True
    ended = Scripted([[DONE]])
    bench.run(ended)
    backend = Scripted([[status("running")] * 2])
    bench.watch.stop.set()
    with pytest.raises(Stopped):
        bench.run(backend)
    assert (backend.cancelled, backend.followed_elsewhere) == ([], ["4"])
    assert (ended.cancelled, ended.followed_elsewhere) == (["4"], [])


PAUSED = status("paused", error="paused at its checkpoint after step 3 of 8")


@dataclass
class Near(Scripted):
    """A deadline comes near when the job is first looked at."""

    near: threading.Event = field(default_factory=threading.Event)

    def poll(self, handle: JobHandle) -> JobStatus:
        self.near.set()
        return super().poll(handle)


def test_before_a_deadline_a_running_job_is_asked_once_to_pause(bench: Bench) -> None:
    backend = Near([[status("running")] * 3 + [PAUSED]], near=bench.watch.pause)
    assert bench.run(backend) == PAUSED
    assert (backend.paused, backend.cancelled, backend.submitted) == (["4"], ["4"], ["4"])


def test_before_a_deadline_a_job_that_was_taken_over_is_left_to_the_other_run(
    bench: Bench,
) -> None:
    """It was asked to pause, and the other run had to ask for another machine."""
    bench.taken_over = True
    backend = Near([[status("running")] * 3], near=bench.watch.pause)
    with pytest.raises(Stopped, match="another run goes on"):
        bench.run(backend)
    assert (backend.paused, backend.cancelled, backend.followed_elsewhere) == ([], [], ["4"])


def test_before_a_deadline_no_machine_is_waited_for(bench: Bench) -> None:
    backend = Near([[status("queued")] * 2], near=bench.watch.pause)
    with pytest.raises(Stopped, match="had no machine yet"):
        bench.run(backend)
    assert (backend.paused, backend.cancelled) == ([], ["4"])


def test_before_a_deadline_what_is_lost_is_not_started_again(bench: Bench) -> None:
    backend = Near([[status("running"), LOST]], near=bench.watch.pause)
    assert bench.run(backend) == LOST
    assert backend.submitted == ["4"]


def test_after_a_deadline_came_near_nothing_is_submitted(bench: Bench) -> None:
    backend = Scripted([])
    bench.watch.pause.set()
    with pytest.raises(Stopped, match="stage sft had not begun"):
        bench.run(backend)
    assert backend.submitted == []


@pytest.mark.parametrize("ended", [LOST, PAUSED], ids=["lost", "paused"])
def test_a_job_of_an_earlier_run_that_was_lost_or_paused_goes_on(bench: Bench, ended) -> None:
    backend = Scripted([[ended], [DONE]], running=JobHandle(JOB.store, JOB.key, "3"))
    assert bench.run(backend) == DONE
    assert backend.submitted == ["4"]


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
            made = {"version": 1, "config": {}, "inputs": {}, "files": (), "attempt": "4"}
            draft = Manifest(kind=JOB.kind, key=JOB.key, **made)
            self.made = bench.store.commit(draft, tmp_path / "out").ref()
            return super().submit(spec)

    backend = Committed([[LOST], [DONE]])
    assert bench.run(backend).artifact == backend.made
    assert backend.submitted == ["4"]
