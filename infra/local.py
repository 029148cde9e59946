"""Local jobs: a worker subprocess in its own session on this machine.

The worker's environment is the caller's with these defaults: JAX on the CPU, quiet native logs, unbuffered output, a fixed hash seed,
and JAX's persistent compilation cache, so that a program is compiled once and not once per stage. That cache was tried with jax 0.10.2
on a CPU: other processes hit it, results are bitwise the same, and a damaged entry is noticed (a warning) and compiled again.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infra.backend import FINAL, JobHandle, Leftover
from infra.secrets import mask
from infra.settings import Settings
from infra.store import Store, attempt_file, open_store
from schemas.base import InputError
from schemas.job import JobSpec, JobStatus

log = logging.getLogger("lyceum.local")

ROOT = Path(__file__).resolve().parent.parent
"""The directory that holds the packages `schemas`, `infra` and `tasks`: a checkout, or site-packages."""

WORKER = (sys.executable, "-m", "tasks.worker")
LOG_LINES_IN_ERROR = 10


@dataclass
class _Job:
    """A job of this process: queued as long as it has no process, ended when nothing of its process group is left."""

    store: Store
    log: Path
    command: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None
    cancelled: bool = False
    ended: bool = False


class LocalBackend:
    """Runs at most `settings.parallel_jobs` jobs at a time; the others wait in the order of submission. Threads may share one.

    A job lives no longer than the process that submitted it: the worker notices that its parent is gone and ends.

    Args:
        settings: execution settings.
        command: how to start a worker; the path of `job.json` is appended.
    """

    def __init__(self, settings: Settings, command: Sequence[str] = WORKER) -> None:
        self._settings = settings
        self._command = tuple(command)
        self._jobs: dict[JobHandle, _Job] = {}
        self._heard: dict[JobHandle, tuple[float | None, float]] = {}
        self._lock = threading.Lock()

    def submit(self, spec: JobSpec) -> JobHandle:
        """See JobBackend. Raises InputError when the store cannot be written."""
        store = open_store(spec.store)
        handle = JobHandle(store.uri, spec.key, spec.attempt)
        job_file = attempt_file(spec.key, spec.attempt, "job.json")
        if store.create_json(job_file, spec):
            if not store.is_directory:
                store.write_here(job_file, spec)
            log = store.path(attempt_file(spec.key, spec.attempt, "log.txt"))
            with self._lock:
                self._jobs[handle] = _Job(store, log, (*self._command, str(store.path(job_file))))
            self._start_what_fits()
        return handle

    def poll(self, handle: JobHandle) -> JobStatus:
        """See JobBackend."""
        self._start_what_fits()
        job = self._jobs.get(handle)
        if job is None:
            return self._poll_elsewhere(handle)
        if job.process is None:
            return JobStatus(state="cancelled" if job.cancelled else "queued", heartbeat=time.time())
        code = job.process.poll()  # before the status is read: a worker that has ended will not write another one
        status = job.store.read_here(attempt_file(handle.key, handle.attempt, "status.json"), JobStatus)
        if status is not None and status.state in FINAL:
            self._end(handle, job, job.process)
            return status
        if code is None:
            return status or JobStatus(state="running", heartbeat=time.time())
        self._end(handle, job, job.process)
        if job.cancelled:
            return JobStatus(state="cancelled", heartbeat=time.time())
        return self._died(job, status or JobStatus(state="running", heartbeat=time.time()), code)

    def cancel(self, handle: JobHandle) -> None:
        """See JobBackend. The worker is asked first (SIGTERM) and killed with all its children after `stop_seconds`.

        A job that another process submitted is left alone: it is that process's to cancel, and ends with it.
        """
        with self._lock:
            job = self._jobs.get(handle)
            if job is not None:
                job.cancelled = True
        if job is not None and job.process is not None and not job.ended:
            with suppress(ProcessLookupError):
                os.killpg(job.process.pid, signal.SIGTERM)
            self._end(handle, job, job.process)

    def log(self, handle: JobHandle, offset: int) -> tuple[str, int]:
        """See JobBackend."""
        job = self._jobs.get(handle)
        store = job.store if job else open_store(handle.store, write=False)
        path = store.path(attempt_file(handle.key, handle.attempt, "log.txt"))
        if not path.exists():
            return "", offset
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        return mask(data.decode("utf-8", errors="replace")), offset + len(data)

    def attach(self, store: Store, key: str) -> JobHandle | None:
        """See JobBackend. There is none: a local job ends with the process that submitted it."""
        return None

    def close(self) -> list[str]:
        """See JobBackend. `cancel` leaves nothing to wait for."""
        return []

    def reap(self, store: Store, delete: bool) -> list[Leftover]:
        """See JobBackend. There is none: see `attach`."""
        return []

    def _start_what_fits(self) -> None:
        with self._lock:
            running = sum(job.process is not None and job.process.poll() is None for job in self._jobs.values())
            waiting = [job for job in self._jobs.values() if job.process is None and not job.cancelled]
            for job in waiting[: max(0, self._settings.parallel_jobs - running)]:
                job.process = self._start(job)

    def _start(self, job: _Job) -> subprocess.Popen[bytes]:
        with job.log.open("ab") as out:
            return subprocess.Popen(
                [*job.command],
                cwd=ROOT,  # makes `tasks` importable; the user's directory might hold a file of that name
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        defaults = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONHASHSEED": "0"}
        if self._settings.compile_cache:
            defaults |= {
                "JAX_COMPILATION_CACHE_DIR": self._settings.compile_cache,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
        return {**defaults, **os.environ, "PYTHONUNBUFFERED": "1", "LYCEUM_PARENT_PID": str(os.getpid())}

    def _end(self, handle: JobHandle, job: _Job, process: subprocess.Popen[bytes]) -> None:
        """Wait for a worker that is about to end, then end whatever is left of its process group; once, for ids are used again."""
        if job.ended:
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(self._settings.stop_seconds)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        job.ended = True
        if not job.store.is_directory:
            self._keep_log(handle, job)

    def _keep_log(self, handle: JobHandle, job: _Job) -> None:
        """Copy to the bucket what the job has said on this machine. A view: an outage of the bucket does not make the job fail."""
        try:
            for name in ("log.txt", "status.json"):
                file = attempt_file(handle.key, handle.attempt, name)
                if job.store.path(file).exists():
                    job.store.write_bytes(file, job.store.path(file).read_bytes())
        except (OSError, InputError) as error:
            log.warning("the log of job %s/%s could not be copied to %s: %s", handle.key, handle.attempt, job.store.uri, error)

    def _poll_elsewhere(self, handle: JobHandle) -> JobStatus:
        """A job that another process submitted: alive as long as its heart is seen to beat. Clocks are not compared."""
        name = attempt_file(handle.key, handle.attempt, "status.json")
        store = open_store(handle.store, write=False)
        status = store.read_here(name, JobStatus) or store.read_json(name, JobStatus) or JobStatus(state="queued", heartbeat=0.0)
        beat, since = self._heard.get(handle, (None, 0.0))
        if beat != status.heartbeat:
            since = time.monotonic()
            self._heard[handle] = (status.heartbeat, since)
        silent = time.monotonic() - since
        if status.state in FINAL or silent < self._settings.lease_seconds:
            return status
        return _failed(status, f"the worker has not been heard of for {silent:.0f} s", lost=True)

    def _died(self, job: _Job, status: JobStatus, code: int) -> JobStatus:
        """The status of a worker that ended without a final one: how it ended, and the end of its log."""
        try:
            open_store(job.store.uri)
        except InputError as error:  # it said nothing because there was no place left to say it
            return _failed(status, str(error), exit_code=2)
        how = f"ended with exit code {code}"
        if code < 0:
            how = f"was killed by signal {-code} ({signal.strsignal(-code)})"
        if -code == signal.SIGKILL:
            how += ", most likely because memory ran out"
        lines = job.log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_IN_ERROR:]
        return _failed(
            status, "\n".join([f"the worker {how}; the end of {job.log}:", *(lines or ["(empty)"])]), 2 if code == 2 else 1, lost=code < 0
        )


def _failed(status: JobStatus, error: str, exit_code: int = 1, lost: bool = False) -> JobStatus:
    return status.model_copy(update={"state": "failed", "error": mask(error), "exit_code": exit_code, "lost": lost})
