"""A stage that is begun before anybody follows it: nothing that it says is lost, and it ends as it
would have."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.backend import JobHandle
from infra.context import context
from infra.store.store import open_store
from schemas.base import StageFailed, Stopped
from schemas.job import JobRequest, JobStatus
from tasks.running import early_start
from tasks.running.early_start import Begun, begin, begun, take
from tasks.running.execution import make
from tasks.running.watch import Listener, Watch
from tests.infra.store.test_store import draft
from tests.tasks.running.test_follower import Scripted

KEY = "0" * 64


class Gate(Scripted):
    """A backend whose job runs until the test lets it end, as `last`."""

    def __init__(self, last: JobStatus) -> None:
        super().__init__([[last], [last]])
        self.last, self.open, self.polled = last, threading.Event(), threading.Event()
        self.ended = threading.Event()

    def poll(self, handle: JobHandle) -> JobStatus:
        self.polled.set()
        return self.last if self.open.is_set() else JobStatus(state="running", heartbeat=0.0)

    def log(self, handle: JobHandle, offset: int) -> tuple[str, int]:
        return ("a first line\n" if not offset else "", 13)

    def cancel(self, handle: JobHandle) -> None:
        self.ended.set()


Bench = Callable[[str], tuple[JobRequest, Gate]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A job, and the backend that it goes to; the job fails in the end, with this message."""
    monkeypatch.setenv("LYCEUM_POLL_SECONDS", "0.01")

    def made(error: str) -> tuple[JobRequest, Gate]:
        gate = Gate(JobStatus(state="failed", heartbeat=0.0, error=error, exit_code=1))
        monkeypatch.setattr(context(), "backends", {"local": gate})
        store = open_store(tmp_path / "store").uri
        job = JobRequest(
            stage="s", kind="rebalance", key=KEY, store=store, target="local", config={}
        )
        return job, gate

    return made


def heard() -> tuple[list[Any], Listener]:
    said: list[Any] = []
    return said, Listener(said.append, said.append)


def test_a_job_that_failed_beside_anothers_commit_is_done(bench: Bench, tmp_path: Path) -> None:
    """This run stood still, another took its lease, made the artifact and cleared the job's
    directory away: the job fails when it goes on, and what it was for is there."""
    job, gate = bench("FileNotFoundError: work/0/1/checkpoint")
    begin(job, Watch())
    assert gate.polled.wait(10)
    (tmp_path / "out").mkdir()
    open_store(tmp_path / "store").commit(draft("2", KEY, kind=job.kind), tmp_path / "out")
    gate.open.set()
    assert take(KEY).attend(heard()[1]) is False, "what another run made counts as cached"


def test_whoever_attends_hears_all_of_it_in_order(bench: Bench) -> None:
    job, gate = bench("that is enough")
    begin(job, Watch())
    assert gate.polled.wait(10), "it is under way, and nobody has asked"
    known, taken = begun(KEY), take(KEY)
    assert known is taken is not None
    assert (take(KEY), begun(KEY)) == (None, None), "one task has it"
    gate.open.set()
    late, listener = heard()
    with pytest.raises(StageFailed, match="that is enough"):
        taken.attend(listener)
    prompt, listener = heard()
    with pytest.raises(StageFailed, match="that is enough"):
        make(job, Watch(), listener)
    assert late[0] == prompt[0] == "a first line"
    assert late[-1] == prompt[-1] == gate.last


def test_one_that_nobody_attends_is_stopped_with_its_job(bench: Bench) -> None:
    job, gate = bench("")
    watch = Watch()
    begin(job, watch)
    assert gate.polled.wait(10)
    watch.stop.set()
    alone = take(KEY)
    alone.wait()
    assert gate.ended.is_set()
    with pytest.raises(Stopped):
        alone.attend(heard()[1])


def test_it_ran_neither_while_it_was_queued_nor_while_nobody_asked(bench, monkeypatch):
    """Its seconds were those until its task saw it: 12.6 for a distillation of 5.5."""
    now, states = [0.0], {1.0: "queued", 4.0: "running", 9.0: "failed"}
    monkeypatch.setattr(early_start, "time", SimpleNamespace(monotonic=lambda: now[0]))
    job, gate = bench("")

    def poll(handle: JobHandle) -> JobStatus:
        now[0] = next(iter(states))
        return JobStatus(state=states.pop(now[0]), heartbeat=0.0)

    monkeypatch.setattr(gate, "poll", poll)
    stage = Begun(job, Watch())
    with pytest.raises(StageFailed):
        stage.attend(heard()[1])
    now[0] = 20.0
    assert stage.seconds() == 8.0
