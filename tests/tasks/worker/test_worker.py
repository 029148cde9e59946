"""The worker as a process: it commits, explains its failures, stops promptly, dies with its parent,
and knows nothing of Prefect.

A toy stage kind stands in for the real ones: the worker under test is `tasks.worker` itself, told
of one more kind.
"""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from infra.backend import FINAL
from infra.local import LocalBackend
from infra.process import ROOT
from infra.settings import Settings
from infra.store.store import open_store
from schemas.artifact import stage_key
from schemas.job import JobSpec, JobStatus
from tests.fakes.process import python, run_python, until
from tests.fakes.vm import STAGE
from tests.infra.store.test_store import draft
from tests.processes import exists

TOY_WORKER = """
import sys
sys.path.insert(0, {root!r})
import tasks.stages
tasks.stages.__path__.append({kinds!r})

from tasks.worker.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
WRITE = "(job.out / 'model.json').write_text('{}')\n"
BLOCK = "print('blocking', flush=True); time.sleep(60)\n"
LONG_CALL = (
    "print('blocking', flush=True); __import__('hashlib').pbkdf2_hmac('sha256', b'', b'', 10**9)\n"
)
SMALL = "this machine is too small for the stage"
STUBBORN = """
print('blocking', flush=True)
while True:
    try:
        time.sleep(60)
    except BaseException:
        print('not now')
"""


class Bench:
    """A store, and jobs of the toy kind whose stage executes the given code."""

    def __init__(self, root: Path) -> None:
        self.store = open_store(root / "store")
        self.script = root / "toy_worker.py"
        self.script.write_text(TOY_WORKER.format(root=str(ROOT), kinds=str(root / "kinds")))
        (root / "kinds").mkdir()
        (root / "kinds" / "toy.py").write_text(STAGE)
        self.backend = LocalBackend(
            Settings(compile_cache="", parallel_jobs=8, stop_seconds=8.0),
            command=[sys.executable, str(self.script)],
        )

    def spec(self, code, attempt="1", inputs=None, **changes) -> JobSpec:
        config, inputs = {"code": code}, inputs or {}
        key = stage_key("toy", 1, {}, config, {name: ref.digest for name, ref in inputs.items()})
        where: dict[str, Any] = {"store": self.store.uri, "target": "local"}
        given: dict[str, Any] = {"attempt": attempt, "config": config, "inputs": inputs}
        spec = JobSpec(stage="play", kind="toy", key=key, **where, **given)
        return spec.model_copy(update=changes)

    def run(self, code: str, **changes: Any) -> tuple[JobSpec, JobStatus]:
        spec = self.spec(code, **changes)
        return spec, self.ended(spec)

    def ended(self, spec: JobSpec) -> JobStatus:
        """The status in which a job ends, which is submitted unless it was."""
        handle = self.backend.submit(spec)
        return until(lambda: self.backend.poll(handle), lambda status: status.state in FINAL)

    def start(self, code: str) -> tuple[JobSpec, int]:
        """Start a job and wait until its stage says that it blocks; returns the worker's process
        id."""
        spec = self.spec("print(os.getpid())\n" + code)
        handle = self.backend.submit(spec)
        text = until(lambda: self.backend.log(handle, 0)[0], lambda text: "blocking" in text)
        return spec, int(text.split()[0])

    def out(self, spec: JobSpec) -> Path:
        return self.store.path(f"work/{spec.key}/{spec.attempt}/out")

    def status(self, spec: JobSpec) -> JobStatus:
        status = self.store.read_json(f"work/{spec.key}/{spec.attempt}/status.json", JobStatus)
        assert status is not None
        return status

    def log(self, spec: JobSpec) -> str:
        return self.store.path(f"work/{spec.key}/{spec.attempt}/log.txt").read_text()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_job_commits_its_artifact_with_metrics_and_circumstances(bench: Bench) -> None:
    code = "job.progress(3, 4, 'steps', loss=0.5)\njob.log.info('learning')"
    spec, status = bench.run(WRITE + code)
    assert (status.state, status.exit_code, status.error) == ("succeeded", 0, None)
    done = status.progress
    assert (done.done, done.total, done.unit, done.values) == (3, 4, "steps", {"loss": 0.5})
    manifest = bench.store.valid("toy", spec.key)
    assert status.artifact == manifest.ref()
    assert manifest.metrics == {"loss": 0.5}
    assert [entry.path for entry in manifest.files] == ["model.json"]
    assert manifest.execution["target"] == "local"
    assert manifest.execution["packages"]["jax"]
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 10 * 2**20 < manifest.execution["peak_rss_bytes"] <= most
    assert manifest.execution["seconds"] >= 0
    assert "INFO learning" in bench.log(spec)
    assert not bench.out(spec).exists()


def test_an_artifact_counts_whatever_is_left_of_its_attempts(bench: Bench) -> None:
    """The bucket was away when the checkpoints were to go: the stage had failed. The clock of an
    attempt was put back: the seconds of all were fewer than none."""
    away = "import infra.store.store as s\ndef away(*given): raise OSError('away')\n"
    spec = bench.spec(WRITE + away + "s.Store.remove = away")
    earlier = JobStatus(state="failed", began=2e9, heartbeat=1e9)
    bench.store.write_json(f"work/{spec.key}/0/status.json", earlier)
    assert (status := bench.ended(spec)).state == "succeeded", status
    assert "what the attempts of stage play have kept stays: away" in bench.log(spec)
    manifest = bench.store.valid("toy", spec.key)
    assert manifest.execution["seconds"] >= 0


def test_an_artifact_that_exists_is_adopted_and_the_stage_does_not_run(bench: Bench) -> None:
    _, status = bench.run(WRITE)
    second, again = bench.run(WRITE, attempt="2")
    assert again.artifact == status.artifact
    assert "exists already" in bench.log(second)


def test_an_artifact_that_was_committed_meanwhile_is_adopted(bench: Bench) -> None:
    wait = "job.log.info('blocking')\nwhile not (job.out.parent / 'go').exists(): time.sleep(0.02)"
    spec, _ = bench.start(WRITE + wait)
    other = bench.store.path(f"work/{spec.key}/2/out")
    other.mkdir(parents=True)
    winner = bench.store.commit(draft("2", spec.key, kind="toy", config=spec.config), other)
    (bench.out(spec).parent / "go").touch()
    status = until(lambda: bench.status(spec), lambda status: status.state in FINAL)
    assert (status.state, status.artifact) == ("succeeded", winner.ref())


def test_inputs_are_verified_and_handed_over_as_directories(bench: Bench) -> None:
    spec, status = bench.run("(job.out / 'data.txt').write_text('from the first')")
    assert status.artifact is not None
    code = "metrics = {'read': (job.inputs['policy'] / 'data.txt').read_text()}"
    second, _ = bench.run(code, inputs={"policy": status.artifact})
    manifest = bench.store.valid("toy", second.key)
    assert manifest.metrics == {"read": "from the first"}
    assert manifest.inputs == {"policy": status.artifact}
    bench.store.path(f"artifacts/toy/{spec.key}/data/1/data.txt").write_text("from the worst")
    _, damaged = bench.run(code + "\n", inputs={"policy": status.artifact})
    assert damaged.exit_code == 1
    lost = f"stage play: the artifact of its input 'policy', toy/{spec.key}, is missing, damaged"
    assert lost in (damaged.error or "")
    assert bench.store.lookup("toy", spec.key) is None


IN_A_REWARD = """
from tasks.contract.plugins import naming
with naming("reward 'mine'"):
    {}["law"]"""


@pytest.mark.parametrize(
    ("code", "exit_code", "error"),
    [
        ("raise InputError('quota 9 is larger than 5')", 2, "quota 9 is larger than 5"),
        ("raise StageFailed('the loss is not finite')", 1, "the loss is not finite"),
        ("{}['missing']", 1, "KeyError: 'missing'"),
        ("raise ModuleNotFoundError('', name='sklearn.svm')", 2, "uv sync --extra full"),
        (IN_A_REWARD, 1, "KeyError: 'law', in reward 'mine'"),
        ("import no_such", 1, "No module named 'no_such'"),
        ("sys.exit(0)", 1, "SystemExit: 0"),
        ("raise OSError(28, os.strerror(28))", 2, "no space is left on the disk"),
        ("raise RuntimeError('saving failed') from OSError(28, 'x')", 2, "no space is left"),
        ("import numpy; numpy.zeros((10**11, 128))", 1, f"memory of {SMALL} (Unable to allocate"),
        ("raise RuntimeError('RESOURCE_EXHAUSTED: 9')", 1, f"{SMALL} (RESOURCE_EXHAUSTED: 9)"),
        ("metrics = {'by': {'math': [0.5, float('nan')]}}", 1, "metrics.by.math.1 is nan"),
        ("metrics = {'path': job.out}", 1, "metrics.path is a PosixPath"),
        ("(job.out / 'link').symlink_to('/etc/hostname')", 1, "'link' is not a plain file"),
    ],
)
def test_a_failure_is_one_message_and_only_a_bug_a_traceback_and_nothing_is_left_half_written(
    bench: Bench, code: str, exit_code: int, error: str
) -> None:
    spec, status = bench.run(WRITE + code)
    assert (status.state, status.exit_code) == ("failed", exit_code)
    assert error in (status.error or "")
    assert "\n" not in (status.error or "")
    bugs = ("KeyError", "No module named 'no_such'", "SystemExit", "'link' is not a plain file")
    assert ("Traceback" in bench.log(spec)) == error.startswith(bugs)
    assert not bench.out(spec).exists()
    assert bench.store.lookup("toy", spec.key) is None


@pytest.mark.parametrize(
    ("changes", "exit_code", "error"),
    [
        ({"kind": "toys"}, 2, "unknown stage kind 'toys'. Did you mean 'toy'?"),
        ({"config": {"code": "pass", "lr": 1}}, 2, "stages.play.config: unknown key 'lr'"),
        ({"config": {"code": 1}}, 2, "stages.play.config: code = 1 is not valid"),
        ({"key": "ab" * 32}, 1, "which is not the key of kind 'toy' version 1"),
    ],
)
def test_a_spec_that_does_not_fit_this_code_is_refused(bench, changes, exit_code, error):
    _, status = bench.run("pass", **changes)
    assert status.exit_code == exit_code
    assert error in (status.error or "")


def test_progress_of_a_busy_stage_is_written_a_few_times_a_second_and_ends_with_the_last(bench):
    count = "for i in range(20000):\n    job.progress(i + 1, 20000)\n"
    spec = bench.spec(f"{count}    if i % 100 == 0: time.sleep(0.01)")
    handle = bench.backend.submit(spec)
    seen, began = set(), time.monotonic()
    while (status := bench.backend.poll(handle)).state not in FINAL:
        seen.add(status.progress.done)
        time.sleep(0.01)
    assert 2 < len(seen) < 20 + 10 * (time.monotonic() - began)
    assert status.progress.done == 20000


@pytest.mark.parametrize(
    ("code", "number"),
    [
        (BLOCK, signal.SIGTERM),
        (BLOCK, signal.SIGINT),
        (LONG_CALL, signal.SIGTERM),
        (STUBBORN, signal.SIGTERM),
    ],
    ids=["sleep", "sleep, Ctrl-C", "native call", "swallows interrupts"],
)
def test_a_signal_ends_the_job_at_once_wherever_it_is(bench, code, number):
    spec, pid = bench.start(WRITE + code)
    os.kill(pid, number)
    # Within 3 s on a quiet machine; the stage itself takes a minute.
    until(lambda: not exists(pid), seconds=45)
    assert (bench.status(spec).state, bench.status(spec).exit_code) == ("cancelled", 130)
    assert bench.store.lookup("toy", spec.key) is None


def test_a_cancelled_job_can_be_run_again(bench: Bench) -> None:
    spec, _ = bench.start(f"if job.out.parent.name == '1':\n    {BLOCK}{WRITE}")
    handle = bench.backend.submit(spec)
    bench.backend.cancel(handle)
    assert bench.backend.poll(handle).state == "cancelled"
    assert not bench.out(spec).exists()
    first = bench.status(spec)
    again = spec.model_copy(update={"attempt": "2"})
    ended = bench.ended(again)
    assert ended.state == "succeeded"
    manifest = bench.store.valid("toy", spec.key)
    took = first.heartbeat - first.began
    assert took > 0
    assert took < manifest.execution["seconds"] <= took + ended.usage.seconds, "both attempts"


def test_a_killed_worker_is_reported_and_can_be_run_again(bench: Bench) -> None:
    spec, pid = bench.start(WRITE + "job.work.write('checkpoint', b'')\n" + BLOCK)
    os.kill(pid, signal.SIGKILL)
    status = bench.ended(spec)
    assert "killed by signal 9" in (status.error or "")
    assert bench.store.path(f"work/{spec.key}/kept/checkpoint").exists()


PARENT = """
import sys, time
from infra.local import LocalBackend
from infra.settings import Settings
from schemas.job import JobSpec
backend = LocalBackend(Settings(compile_cache=""), command=[sys.executable, {script!r}])
backend.submit(JobSpec.model_validate_json(sys.stdin.readline()))
time.sleep(60)
"""


def test_a_worker_vanishes_when_its_parent_is_killed_even_in_a_native_call(bench: Bench) -> None:
    parent = python("-c", PARENT.format(script=str(bench.script)), stdin=subprocess.PIPE)
    spec = bench.spec("print(os.getpid())\n" + LONG_CALL)
    parent.stdin.write(spec.model_dump_json() + "\n")
    parent.stdin.flush()
    log = bench.store.path(f"work/{spec.key}/1/log.txt")
    text = until(lambda: log.read_text() if log.exists() else "", lambda text: "blocking" in text)
    worker = int(text.split()[0])
    assert exists(worker)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: not exists(worker), seconds=45)
    assert bench.status(spec).state == "cancelled"


def test_the_worker_loads_neither_prefect_nor_the_flows(bench: Bench) -> None:
    heavy = "{'prefect', 'flows', 'jax'}"
    spec, _ = bench.run(f"metrics = {{'modules': sorted({heavy} & set(sys.modules))}}")
    manifest = bench.store.valid("toy", spec.key)
    assert manifest.metrics == {"modules": []}


def test_called_without_a_job_it_says_how() -> None:
    done = run_python("-m", "tasks.worker")
    assert (done.returncode, done.stderr) == (2, "usage: python -m tasks.worker path/to/job.json\n")


def test_a_job_that_was_exchanged_is_not_run(bench: Bench, tmp_path: Path) -> None:
    """Its key is that of its place, and of what it holds: so nobody who writes to a store's
    directory chooses what a worker runs."""
    asked, other = bench.spec("print(1)"), bench.spec(f"open({str(tmp_path / 'ran')!r}, 'w')")
    name = f"work/{asked.key}/1/job.json"
    bench.store.create_json(name, other)
    assert run_python(bench.script, bench.store.path(name)).returncode == 2
    bench.store.write_here(name, other.model_copy(update={"key": asked.key}))
    assert run_python(bench.script, bench.store.path(name)).returncode == 1
    assert not (tmp_path / "ran").exists()
