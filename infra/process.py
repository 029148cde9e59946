"""A worker as a process of this machine: what `infra.local` and the agent of a cloud machine
(`infra.tpu.host`) share.

The worker's environment is the caller's, except Prefect's variables, with these defaults, which an
empty variable has, too: JAX on the CPU, quiet native logs, unbuffered output, a fixed hash seed,
huge pages, and JAX's persistent compilation cache, so that a program is compiled once and not once
per stage. That cache was tried with jax 0.10.2 on a CPU: other processes hit it, results are
bitwise the same, and a damaged entry is noticed (a warning) and compiled again. `infra.accelerator`
has what differs for a job that gets this machine's GPU or TPU.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from infra.backend import FINAL, pause_file
from infra.forks import Fork, ForkServer
from infra.secrets import mask
from infra.store.store import Store, attempt_file
from schemas.base import InputError
from schemas.job import JobStatus

ROOT = Path(__file__).resolve().parent.parent
"""The directory that holds the packages `schemas`, `infra` and `tasks`: a checkout, site-packages,
or what a machine was sent."""

WORKER = (sys.executable, "-m", "tasks.worker")
KILL_SECONDS = 30.0
"""Seconds to wait for a killed worker: one that is stuck in a driver does not even end then."""
LOG_LINES_IN_ERROR = 10


class Worker:
    """The worker of one job: not started, running, or ended, which it is when nothing of its
    process group is left, or nothing that can be killed.

    Args:
        store: where `job.json` lies (`Store.path`), the worker writes `status.json`, and its output
            goes.
        key, attempt: the job.
        log: name of the file that takes the output, beside `job.json`.
        command: how to start a worker; the path of `job.json` is appended.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        attempt: str,
        log: str = "log.txt",
        command: Sequence[str] = WORKER,
    ) -> None:
        self._store = store
        self._job = store.path(attempt_file(key, attempt, "job.json"))
        self._command = [*command, str(self._job)]
        self._status = attempt_file(key, attempt, "status.json")
        self._log = attempt_file(key, attempt, log)
        self.log = store.path(self._log)
        self._pause = store.path(pause_file(key, attempt))
        self._process: subprocess.Popen[bytes] | Fork | None = None
        self._stopped = False
        self.ended = False

    @property
    def started(self) -> bool:
        """Whether there is, or was, a process."""
        return self._process is not None

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, environment: Mapping[str, str], forks: ForkServer | None = None) -> None:
        """Start the process, in a session of its own, with these variables
        (`worker_environment`); where `forks` is given, as a fork of that server, which has them."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            if forks is not None:
                self._process = forks.start(self._job, out)
                return
            self._process = subprocess.Popen(
                self._command,
                # makes `tasks` importable; the user's directory might hold a file of that name
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def pause(self) -> None:
        """Ask a started worker to pause (`infra.backend.JobBackend.pause`)."""
        self._pause.touch()

    def poll(self, stop_seconds: float) -> JobStatus:
        """The status of a started worker. Once it is final the worker has ended.

        Args:
            stop_seconds: how long a worker that has written its final status may take to end before
                it is killed.
        """
        assert self._process is not None
        # before the status is read: a worker that has ended will not write another one
        code = self._process.poll()
        status = self._store.read_here(self._status, JobStatus)
        if status is not None and status.state in FINAL:
            self._end(stop_seconds)
            return status
        status = status or JobStatus(state="running", heartbeat=time.time())
        if code is None and not self.ended:
            return status
        self._end(stop_seconds)
        if self._stopped or code is None:
            return JobStatus(state="cancelled", heartbeat=time.time())
        return self._died(status, code)

    def stop(self, seconds: float) -> None:
        """Ask the worker to stop (SIGTERM), and kill it with all its children after so many
        seconds. Returns when it is gone, or cannot be killed."""
        self._stopped = True
        if self._process is not None and not self.ended:
            self._signal(signal.SIGTERM)
            self._end(seconds)

    def _end(self, seconds: float) -> None:
        """Wait for a worker that is about to end, then end whatever is left of its process group;
        once, for ids are used again."""
        if self.ended or self._process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self._signal(signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        self.ended = True

    def _signal(self, number: int) -> None:
        """To all of the worker's process group; one that has not begun never begins."""
        assert self._process is not None
        process = self._process
        pid = process.withdraw() if isinstance(process, Fork) else process.pid
        if pid is not None:
            # the second is macOS' word for a group whose processes have ended, not waited for yet
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, number)

    def _died(self, status: JobStatus, code: int) -> JobStatus:
        """The status of a worker that ended without a final one: how it ended, and the end of its
        log."""
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was killed by signal {-code} ({signal.strsignal(-code)})"
        if -code == signal.SIGKILL:
            how += ", most likely because memory ran out"
        if -code == signal.SIGABRT and os.environ.get("LYCEUM_HOSTS", "1") != "1":
            how += ", as JAX does when another host of the job is gone"
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        end = lines[-LOG_LINES_IN_ERROR:] or ["(empty)"]
        where = f"the worker {how}; the end of {self._store.location(self._log)}:"
        error = "\n".join([where, *end])
        final = failed(status, error, 2 if code == 2 else 1, lost=code < 0)
        try:
            self._store.write_here(self._status, final)
        except InputError as problem:  # it said nothing because there was no place left to say it
            return failed(status, str(problem), exit_code=2)
        return final


def failed(status: JobStatus, error: str, exit_code: int = 1, lost: bool = False) -> JobStatus:
    """`status` as that of a job that failed."""
    return status.model_copy(
        update={"state": "failed", "error": mask(error), "exit_code": exit_code, "lost": lost}
    )


def read_lines(path: Path, offset: int, limit: int = -1) -> bytes:
    """The complete lines of a growing file from byte `offset` on, b"" if there are none yet.

    Args:
        limit: at most so many bytes, -1 for all there are; a longer line comes in pieces.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(limit)
    except FileNotFoundError:
        return b""
    return data if len(data) == limit and b"\n" not in data else data[: data.rfind(b"\n") + 1]


_PATHS = {
    *("GOOGLE_APPLICATION_CREDENTIALS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH"),
    *("KAGGLE_CONFIG_DIR", "KAGGLEHUB_CACHE"),
}
"""Variables that name a file or directory, as people may: relative to where they are."""


def _from_here(name: str, value: str) -> str:
    """A variable's value for a process in another directory."""
    if name == "PYTHONPATH" and value:
        return os.pathsep.join(map(os.path.abspath, value.split(os.pathsep)))
    return os.path.abspath(value) if name in _PATHS and value and value[0] != "~" else value


HUGE_PAGES = "glibc.malloc.hugetlb=1"
"""XLA gives a step's buffers back to the kernel and asks for them anew, and the kernel clears them
page by page: a quarter of a step of `gemma3-tiny`. With transparent huge pages, which glibc from
2.35 on asks for, it clears 512 at a time (docs/measurements.md)."""


def worker_environment(compile_cache: str) -> dict[str, str]:
    """The variables of a worker. `compile_cache`: JAX's directory for compiled programs, or empty
    for none."""
    defaults = {
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONHASHSEED": "0",
        "GLIBC_TUNABLES": HUGE_PAGES,
    }
    if compile_cache:
        defaults |= {
            "JAX_COMPILATION_CACHE_DIR": compile_cache,
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            # with them the directory's path would be part of every entry's name
            "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
        }
    # A job knows nothing of Prefect, and runs what models write: it gets no key of a Prefect
    # server.
    caller = {
        name: _from_here(name, value)
        for name, value in os.environ.items()
        if not name.startswith("PREFECT_") and (value or name not in defaults)
    }
    return {**defaults, **caller, "PYTHONUNBUFFERED": "1", "LYCEUM_PARENT_PID": str(os.getpid())}
