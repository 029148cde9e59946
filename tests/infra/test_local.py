"""Local jobs: started once, stopped with all their children, never silent about their death. The
workers here are a few lines of Python."""

import json
import os
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from infra.accelerator import Accelerator, Found
from infra.backend import FINAL, JobHandle
from infra.local import LocalBackend
from infra.settings import Settings
from infra.store.store import open_store
from schemas.base import InputError
from schemas.job import JobSpec, JobStatus
from tests.fakes.process import until
from tests.processes import exists

LINES = """
import json, os, pathlib, signal, subprocess, sys, time
here = pathlib.Path(sys.argv[-1]).parent

def status(state, **fields):
    value = {"state": state, "heartbeat": time.time(), **fields}
    (here / "status.new").write_text(json.dumps(value))
    os.replace(here / "status.new", here / "status.json")

def told():
    while not (here / "go").exists():
        time.sleep(0.02)

"""
WORKER = f'{LINES}print("started", os.getpid(), flush=True)\n'


class Workshop:
    """A store and a backend whose worker runs the given lines."""

    def __init__(self, root: Path) -> None:
        self.store = open_store(root / "store")

    def spec(self, key: str = "k", attempt: str = "1") -> JobSpec:
        given = {"stage": "sft", "kind": "sft", "target": "local", "config": {}}
        return JobSpec(**given, key=key, attempt=attempt, store=self.store.uri)

    def go(self, key: str = "k") -> None:
        """Let the worker go on that waits to be told."""
        self.store.write_bytes(f"work/{key}/1/go", b"")

    def backend(self, lines: str, **settings: object) -> LocalBackend:
        given = {"stop_seconds": 1.0, "parallel_jobs": 8, "compile_cache": "", **settings}
        return LocalBackend(Settings.parse(given), command=[sys.executable, "-c", WORKER + lines])


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    return Workshop(tmp_path)


def final(backend: LocalBackend, handle: JobHandle) -> JobStatus:
    return until(lambda: backend.poll(handle), lambda status: status.state in FINAL)


def pids(backend: LocalBackend, handle: JobHandle, count: int = 1) -> list[int]:
    """Process ids that the worker has printed."""
    until(lambda: len(backend.log(handle, 0)[0].split()) >= 2 * count)
    return [int(word) for word in backend.log(handle, 0)[0].split() if word.isdecimal()]


def test_a_job_runs_to_its_final_status_and_leaves_no_process(workshop: Workshop) -> None:
    backend = workshop.backend("status('running'); told(); status('succeeded', exit_code=0)")
    handle = backend.submit(workshop.spec())
    until(lambda: backend.poll(handle).state == "running")
    workshop.go()
    assert final(backend, handle).exit_code == 0
    assert not exists(pids(backend, handle)[0])
    backend.cancel(handle)
    assert backend.poll(handle).state == "succeeded"


def test_the_same_key_and_attempt_are_started_once(workshop: Workshop) -> None:
    backend = workshop.backend("time.sleep(0.2); status('succeeded')")
    handles = {backend.submit(workshop.spec()) for _ in range(3)}
    assert len(handles) == 1
    assert final(backend, handles.pop()).state == "succeeded"
    assert workshop.store.path("work/k/1/log.txt").read_text().count("started") == 1


def test_another_process_attaches_to_a_running_job(workshop: Workshop) -> None:
    first = workshop.backend("status('running'); told(); status('succeeded')")
    second = workshop.backend("raise SystemExit('must not start')")
    handle = first.submit(workshop.spec())
    assert second.submit(workshop.spec()) == handle
    until(lambda: second.poll(handle).state == "running")
    workshop.go()
    assert final(second, handle).state == "succeeded"
    first.cancel(handle)


def test_a_job_of_another_process_that_fell_silent_is_failed(workshop: Workshop) -> None:
    backend = workshop.backend("", lease_seconds=1.0)
    workshop.store.create_json("work/k/1/job.json", workshop.spec())
    handle = backend.submit(workshop.spec())
    assert backend.poll(handle).state == "queued"
    status = final(backend, handle)
    assert (status.state, status.exit_code) == ("failed", 1)
    assert "not been heard of" in status.error


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("print('last words'); sys.exit(3)", ["ended with exit code 3", "last words"]),
        ("raise ValueError('a bug')", ["ended with exit code 1", "ValueError: a bug"]),
        (
            "print('last words', flush=True); os.kill(os.getpid(), 9)",
            ["killed by signal 9", "memory ran out", "last words"],
        ),
        ("status('running'); os.abort()", ["killed by signal 6", "log.txt"]),
        ("pass", ["ended with exit code 0"]),
        ("sys.exit(2)", ["ended with exit code 2"]),
    ],
)
def test_a_worker_that_dies_silently_is_failed_with_its_last_words(workshop, lines, expected):
    backend = workshop.backend(lines)
    status = final(backend, backend.submit(workshop.spec()))
    # 2 is bad input, where no status could be written
    assert (status.state, status.exit_code) == ("failed", 2 if "exit(2)" in lines else 1)
    assert [part for part in expected if part not in status.error] == []


CHILD = (
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)']);"
    " print('child', child.pid, flush=True)\n"
)
DEAF = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"


@pytest.mark.parametrize("deaf", [False, True])
def test_cancel_ends_the_worker_and_its_children_even_when_it_does_not_listen(workshop, deaf):
    backend = workshop.backend((DEAF if deaf else "") + CHILD + "time.sleep(3600)")
    handle = backend.submit(workshop.spec())
    worker, child = pids(backend, handle, count=2)
    started = time.monotonic()
    backend.cancel(handle)
    assert time.monotonic() - started < 600
    assert not exists(worker)
    until(lambda: not exists(child))
    assert backend.poll(handle).state == "cancelled"
    backend.cancel(handle)


def test_a_job_is_asked_to_pause_by_a_file_beside_it_and_says_so(workshop: Workshop) -> None:
    backend = workshop.backend(
        "status('running')\nwhile not (here / 'pause').exists(): time.sleep(0.02)\n"
        "status('paused', error='after step 3')"
    )
    handle = backend.submit(workshop.spec())
    until(lambda: backend.poll(handle).state == "running")
    backend.pause(handle)
    status = final(backend, handle)
    assert (status.state, status.error) == ("paused", "after step 3")
    backend.pause(JobHandle(workshop.store.uri, "another", "1"))  # somebody else's: left alone


def test_children_of_a_worker_that_ended_are_ended(workshop: Workshop) -> None:
    backend = workshop.backend(CHILD + "status('succeeded')")
    handle = backend.submit(workshop.spec())
    _, child = pids(backend, handle, count=2)
    assert final(backend, handle).state == "succeeded"
    until(lambda: not exists(child))


def test_a_group_whose_processes_have_all_ended_is_no_error(workshop, monkeypatch) -> None:
    """Which macOS says is not ours to kill, as long as nobody has waited for them."""
    monkeypatch.setattr(os, "killpg", Mock(side_effect=PermissionError))
    backend = workshop.backend("status('succeeded')")
    assert final(backend, backend.submit(workshop.spec())).state == "succeeded"


def test_jobs_beyond_the_limit_wait_in_order(workshop: Workshop) -> None:
    backend = workshop.backend("told(); status('succeeded')", parallel_jobs=1)
    handles = [backend.submit(workshop.spec(key)) for key in ("a", "b", "c", "d")]
    states = [backend.poll(handle).state for handle in handles]
    assert states == ["running", "queued", "queued", "queued"]
    backend.cancel(handles[2])
    for key in ("a", "b", "d"):
        workshop.go(key)
    states = [final(backend, handle).state for handle in handles]
    assert states == ["succeeded", "succeeded", "cancelled", "succeeded"]
    started = {key: workshop.store.path(f"work/{key}/1/log.txt") for key in ("a", "b", "c", "d")}
    assert not started["c"].exists()
    times = [started[key].stat().st_mtime for key in "abd"]
    assert times == sorted(times)


def test_a_worker_that_cannot_be_started_fails_its_own_job_and_no_other(workshop: Workshop) -> None:
    """Whoever followed the first job met the second one's full disk, and so did the third."""
    backend = workshop.backend("told(); status('succeeded')", parallel_jobs=1)
    first = backend.submit(workshop.spec("a"))
    workshop.store.path("work/b/1/log.txt").mkdir(parents=True)
    second, third = (backend.submit(workshop.spec(key)) for key in ("b", "c"))
    for key in ("a", "c"):
        workshop.go(key)
    assert [final(backend, one).state for one in (first, third)] == ["succeeded", "succeeded"]
    status = final(backend, second)
    assert (status.state, status.exit_code, status.lost) == ("failed", 1, False)
    assert "cannot be started: [Errno 21] Is a directory" in status.error
    backend.cancel(second)


GPU = Accelerator(platform="cuda", kind="a GPU", devices=1, memory_bytes=2**34, driver="of a test")


def test_of_the_jobs_on_an_accelerator_one_runs_at_a_time_and_others_beside_it(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two jobs on the GPU and two on the CPU, of which one at first has no place."""
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    lines = "print(os.environ['JAX_PLATFORMS'], flush=True); told(); status('succeeded')"
    backend = workshop.backend(lines, parallel_jobs=2)
    backend._look = lambda: Found(GPU)
    given = {"first": True, "second": True, "data": False, "more": False}
    handles = {
        key: backend.submit(workshop.spec(key).model_copy(update={"devices": devices}))
        for key, devices in given.items()
    }

    def states() -> list[str]:
        return [backend.poll(handle).state for handle in handles.values()]

    assert states() == ["running", "queued", "running", "queued"]
    workshop.go("data")
    until(lambda: states() == ["running", "queued", "succeeded", "running"])
    workshop.go("first")
    until(lambda: states() == ["succeeded", "running", "succeeded", "running"])
    for key in ("second", "more"):
        workshop.go(key)
    assert {final(backend, handle).state for handle in handles.values()} == {"succeeded"}
    said = [backend.log(handle, 0)[0].split()[-1] for handle in handles.values()]
    assert said == ["cuda,cpu", "cuda,cpu", "cpu", "cpu"]


def test_hardware_that_jax_cannot_use_leaves_the_cpu_with_a_word_unless_it_was_asked_for(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    backend = workshop.backend("print(os.environ['JAX_PLATFORMS']); status('succeeded')")
    backend._look = lambda: Found(None, "this machine has a GPU, and no driver", wrong=True)
    spec = workshop.spec().model_copy(update={"devices": True})
    handle = backend.submit(spec)
    assert final(backend, handle).state == "succeeded"
    assert backend.log(handle, 0)[0].split()[-1] == "cpu"
    assert "stage sft runs on the CPU: this machine has a GPU, and no driver" in caplog.text
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    with pytest.raises(InputError, match="no driver\\. Unset JAX_PLATFORMS, or set it to cpu"):
        backend.submit(spec.model_copy(update={"attempt": "2"}))
    assert workshop.store.children("work/k") == ["1"]


def test_the_log_is_streamed_by_whole_lines(workshop: Workshop) -> None:
    backend = workshop.backend(
        "print('größe'); sys.stdout.write('half'); sys.stdout.flush(); time.sleep(0.3); print('"
        " done'); status('succeeded')"
    )
    handle = backend.submit(workshop.spec())
    assert backend.log(JobHandle(workshop.store.uri, "other", "1"), 0) == ("", 0)
    text, offset = "", 0
    while backend.poll(handle).state not in FINAL:
        new, offset = backend.log(handle, offset)
        assert new == "" or new.endswith("\n")
        text += new
        time.sleep(0.02)
    new, offset = backend.log(handle, offset)
    assert (text + new).splitlines()[1:] == ["größe", "half done"]
    assert backend.log(handle, offset) == ("", offset)


def test_a_worker_has_the_directory_of_the_code_a_session_and_the_variables_for_it(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    backend = workshop.backend(
        "print(json.dumps([dict(os.environ), os.getcwd(), os.getsid(0) == os.getpid()]));"
        " status('succeeded')",
        compile_cache="/jax",
    )
    handle = backend.submit(workshop.spec())
    assert final(backend, handle).state == "succeeded"
    values, cwd, own_session = json.loads(backend.log(handle, 0)[0].splitlines()[1])
    assert (Path(cwd) / "tasks" / "worker").exists()
    assert own_session
    assert (values["JAX_PLATFORMS"], values["LYCEUM_PARENT_PID"]) == ("cpu", str(os.getpid()))
    assert values["JAX_COMPILATION_CACHE_DIR"] == "/jax"


def test_a_store_that_is_a_file_is_refused_before_anything_starts(workshop, tmp_path):
    (tmp_path / "file").write_text("")
    spec = workshop.spec().model_copy(update={"store": (tmp_path / "file").as_uri()})
    with pytest.raises(InputError, match="is a file"):
        workshop.backend("").submit(spec)


def test_a_job_is_not_taken_for_one_that_ended_here_and_was_cleared_away_elsewhere(
    gcs_bucket: str, workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a bucket this machine has working files of its own; `lyceum gc` on another one removed all
    that belonged to the key, whose attempts are numbered anew. The new job had the old one's
    status, and was killed."""
    workshop.store = open_store(f"gs://{gcs_bucket}/store")
    ended = workshop.backend("status('succeeded', exit_code=0)")
    assert final(ended, ended.submit(workshop.spec())).state == "succeeded"
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("LYCEUM_CACHE", str(tmp_path / "elsewhere"))
        open_store(workshop.store.uri).remove("work/k")
    backend = workshop.backend("time.sleep(600)")
    handle = backend.submit(workshop.spec())
    pids(backend, handle)
    assert backend.poll(handle).state not in FINAL
    backend.cancel(handle)
