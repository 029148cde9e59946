"""Workers that begin as forks: of one process for all jobs with the same variables, which leaves
nothing behind. The worker is the real one."""

import errno
import fcntl
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from infra.forks import Fork
from infra.local import LocalBackend
from infra.settings import Settings
from infra.store.store import Store
from schemas.job import JobSpec
from tasks.worker.fork_server import serve
from tests.fakes.process import python, until
from tests.infra.test_local import final
from tests.processes import descendants, state_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")


def spec(store: Store, key: str = "a" * 64) -> JobSpec:
    """A job that ends as soon as its worker has looked at it: this is not the key of its config."""
    return JobSpec(
        stage="play",
        kind="rebalance",
        key=key,
        attempt="1",
        store=store.uri,
        target="local",
        config={"quotas": {"math": {"train": 1}}},
    )


def backend() -> LocalBackend:
    return LocalBackend(Settings(compile_cache="", parallel_jobs=4, stop_seconds=8.0))


def servers() -> list[int]:
    """Fork servers that this process has started, and that live."""
    found = []
    for pid, state in descendants(os.getpid()):
        line = Path(f"/proc/{pid}/cmdline").read_bytes() if state not in "ZX" else b""
        if b"tasks.worker.fork_server" in line and Path(f"/proc/{pid}").stat():
            found.append(pid)
    return found


def test_jobs_are_forks_of_one_process_that_ends_when_none_is_left(store: Store) -> None:
    jobs = backend()
    handles = [jobs.submit(spec(store, letter * 64)) for letter in "abc"]
    server = jobs._forks[0][1]
    for handle in handles:
        status = final(jobs, handle)
        assert (status.state, status.exit_code) == ("failed", 1)
        assert "is not the key of" in status.error
        assert "ERROR stage play: the job was submitted for key" in jobs.log(handle, 0)[0]
    assert len(jobs._forks) == 1
    assert server.alive
    jobs.close()
    assert not server.alive
    assert servers() == []
    again = jobs.submit(spec(store, "e" * 64))
    assert final(jobs, again).exit_code == 1
    jobs.close()


def test_a_job_with_other_variables_has_another_process(store, monkeypatch):
    jobs = backend()
    first = jobs.submit(spec(store, "b" * 64))
    monkeypatch.setenv("XLA_FLAGS", "")
    second = jobs.submit(spec(store, "c" * 64))
    assert len(jobs._forks) == 2
    assert {final(jobs, handle).exit_code for handle in (first, second)} == {1}
    jobs.close()


def test_a_job_that_is_cancelled_before_it_begins_never_begins(store: Store) -> None:
    """The server still imports what the job needs."""
    jobs = backend()
    handle = jobs.submit(spec(store))
    jobs.cancel(handle)
    assert jobs.poll(handle).state == "cancelled"
    after = jobs.submit(spec(store, "c" * 64))
    assert final(jobs, after).exit_code == 1
    assert "status.json" not in store.children(f"work/{handle.key}/1")
    jobs.close()


def test_a_server_that_is_gone_is_a_lost_job_and_the_next_job_has_another(store: Store) -> None:
    jobs = backend()
    handle = jobs.submit(spec(store))
    os.kill(jobs._forks[0][1]._process.pid, signal.SIGKILL)
    status = final(jobs, handle)
    assert (status.state, status.lost) == ("failed", True)
    assert "killed by signal 9" in status.error
    assert "is not the key of" in final(jobs, jobs.submit(spec(store, "c" * 64))).error
    jobs.close()


def test_a_fork_that_the_system_refuses_ends_its_job_and_not_the_server(tmp_path, monkeypatch):
    """A limit of processes or of memory ended the server, and with it all workers at work."""
    refused = BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    monkeypatch.setattr(os, "fork", Mock(side_effect=refused))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told, tells = os.pipe()
    with (tmp_path / "log.txt").open("wb") as log:
        socket.send_fds(ours, [b"/nowhere/job.json"], [log.fileno(), tells])
    os.close(tells)
    ours.close()
    before = signal.getsignal(signal.SIGCHLD)
    try:
        assert serve(theirs) is None
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, before)
        gc.unfreeze()
        theirs.close()
    assert Fork(told).wait(5) == -signal.SIGKILL
    said = (tmp_path / "log.txt").read_text()
    assert said.startswith("the worker cannot be forked: [Errno 11]")


def test_exit_codes_and_signals_come_through_the_pipe() -> None:
    for said, code in ((b"code 2\n", 2), (b"code -9\n", -9), (b"", -9)):
        told, tells = os.pipe()
        worker = Fork(told)
        assert worker.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0)
        os.write(tells, b"pid 4\n")
        assert worker.poll() is None
        assert worker.withdraw() == 4
        os.write(tells, said)
        os.close(tells)
        assert worker.wait(5) == worker.poll() == code


def test_a_process_with_thousands_of_open_files_follows_a_worker() -> None:
    """`select` refused descriptors from 1024 on, and the run ended."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 4096), limits[1]))
    try:
        low, tells = os.pipe()
        worker = Fork(fcntl.fcntl(low, fcntl.F_DUPFD, 2048))
        os.close(low)
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0.1)
        os.write(tells, b"pid 4\ncode 2\n")
        os.close(tells)
        assert worker.wait(5) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


SUBMITTER = """
import sys, time
from infra.local import LocalBackend
from infra.settings import Settings
from schemas.job import JobSpec
jobs = LocalBackend(Settings(compile_cache=""))
jobs.submit(JobSpec.model_validate_json(sys.argv[1]))
print(jobs._forks[0][1]._process.pid, flush=True)
time.sleep(3600)
"""


def test_whoever_submitted_it_is_killed_and_nothing_is_left(store: Store) -> None:
    with python("-c", SUBMITTER, spec(store).model_dump_json()) as process:
        server = int(process.stdout.readline())
        process.kill()
    until(lambda: state_of(server) in "XZ")
