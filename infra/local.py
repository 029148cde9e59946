"""Local jobs: a worker process in its own session on this machine (`infra.process`)."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from infra.accelerator import find
from infra.backend import FINAL, JobBackend, JobHandle, Leftover
from infra.context import context
from infra.forks import ForkServer, can_fork
from infra.process import ROOT, WORKER, Worker, failed, read_lines, worker_environment
from infra.secrets import mask
from infra.settings import Settings
from infra.silence import Silence
from infra.store.store import Store, attempt_file
from schemas.base import InputError
from schemas.job import JobSpec, JobStatus

log = logging.getLogger("lyceum.local")


@dataclass
class _Job:
    """A job of this process: queued as long as its worker has not been started. `log_copied`:
    its log is in the bucket. `exclusive`: it computes on the accelerator, which has no room for
    another. `refusal`: why its worker could not be started."""

    store: Store
    worker: Worker
    environment: Mapping[str, str]
    exclusive: bool
    cancelled: bool = False
    log_copied: bool = False
    refusal: OSError | None = None


class LocalBackend(JobBackend):
    """Runs at most `settings.parallel_jobs` jobs at a time; the others wait in the order of
    submission. Of those that compute on this machine's accelerator one runs at a time; others run
    beside it, on the CPU. Threads may share one.

    A job lives no longer than the process that submitted it: the worker notices that its parent is
    gone and ends.

    Args:
        command: how to start a worker; the path of `job.json` is appended. The worker of a checkout
            begins as a fork where that is possible (`infra.forks`).
    """

    def __init__(self, settings: Settings, command: Sequence[str] = WORKER) -> None:
        self._settings = settings
        self._command, self._look = tuple(command), find
        self._jobs: dict[JobHandle, _Job] = {}
        self._silences: dict[JobHandle, Silence] = {}
        self._forks: list[tuple[Mapping[str, str], ForkServer]] = []
        self._lock = threading.Lock()

    def submit(self, spec: JobSpec) -> JobHandle:
        """See JobBackend. Raises InputError when the store cannot be written, or JAX_PLATFORMS
        names what this machine does not have."""
        store = context().store(spec.store)
        handle = JobHandle(store.uri, spec.key, spec.attempt)
        job_file = attempt_file(spec.key, spec.attempt, "job.json")
        environment, exclusive = self._place(spec)
        if store.create_json(job_file, spec):
            if not store.is_directory:
                # of an attempt of this name, whose key `lyceum gc` cleared away on another machine
                store.remove_here(job_file.rpartition("/")[0])
                store.write_here(job_file, spec)
            worker = Worker(store, spec.key, spec.attempt, command=self._command)
            with self._lock:
                self._jobs[handle] = _Job(store, worker, environment, exclusive)
            self._start_what_fits()
        return handle

    def poll(self, handle: JobHandle) -> JobStatus:
        self._start_what_fits()
        job = self._jobs.get(handle)
        if job is None:
            return self._poll_elsewhere(handle)
        if job.refusal is not None:
            queued = JobStatus(state="queued", heartbeat=time.time())
            return failed(queued, f"the worker cannot be started: {job.refusal}")
        if not job.worker.started:
            if job.cancelled:
                return JobStatus(state="cancelled", heartbeat=time.time())
            phase = "waits for the accelerator" if job.exclusive else ""
            return JobStatus(state="queued", heartbeat=time.time(), phase=phase)
        status = job.worker.poll(self._settings.stop_seconds)
        self._copy_log(handle, job)
        return status

    def cancel(self, handle: JobHandle) -> None:
        """See JobBackend. The worker is asked first (SIGTERM) and killed with all its children
        after `stop_seconds`.

        A job that another process submitted is left alone: it is that process's to cancel, and ends
        with it.
        """
        with self._lock:
            job = self._jobs.get(handle)
            if job is not None:
                job.cancelled = True
        if job is not None:
            job.worker.stop(self._settings.stop_seconds)
            self._copy_log(handle, job)

    def leave(self, handle: JobHandle) -> None:
        """See JobBackend: it is cancelled."""
        self.cancel(handle)

    def pause(self, handle: JobHandle) -> None:
        """See JobBackend. A job that another process submitted is left alone."""
        job = self._jobs.get(handle)
        if job is not None and job.worker.started:
            job.worker.pause()

    def log(self, handle: JobHandle, offset: int) -> tuple[str, int]:
        store = context().store(handle.store, write=False)
        data = read_lines(store.path(attempt_file(handle.key, handle.attempt, "log.txt")), offset)
        return mask(data.decode("utf-8", errors="replace")), offset + len(data)

    def attach(self, store: Store, key: str, run: str, attempts: Sequence[str]) -> JobHandle | None:
        """See JobBackend. There is none: a local job ends with the process that submitted it."""
        return None

    def close(self) -> list[str]:
        """See JobBackend. `cancel` leaves nothing to wait for. Where no job is left, nothing else
        is: another job starts it again."""
        with self._lock:
            if not any(job.worker.alive for job in self._jobs.values()):
                while self._forks:
                    self._forks.pop()[1].close()
        return []

    def release(self, store: Store, key: str, say: Callable[[str], None]) -> None:
        """See JobBackend. There is none: see `attach`."""

    def reap(self, store: Store, delete: bool) -> list[Leftover]:
        """See JobBackend. There is none: see `attach`."""
        return []

    def _place(self, spec: JobSpec) -> tuple[dict[str, str], bool]:
        """The variables of a job's worker, and whether it computes on the accelerator. Raises
        InputError for a JAX_PLATFORMS that this machine does not have."""
        environment = worker_environment(self._settings.compile_cache)
        if not spec.devices:
            return {**environment, "JAX_PLATFORMS": "cpu"}, False
        found = self._look()
        if found.accelerator is not None:
            return found.accelerator.environment(environment), True
        if found.wrong and os.environ.get("JAX_PLATFORMS"):
            raise InputError(f"{found.why}. Unset JAX_PLATFORMS, or set it to cpu.")
        if found.wrong:
            log.warning("stage %s runs on the CPU: %s", spec.stage, found.why)
        return environment, False

    def _start_what_fits(self) -> None:
        """Whoever calls this follows one of the jobs, and hears of no other's refusal."""
        with self._lock:
            running = [job for job in self._jobs.values() if job.worker.alive]
            for job in self._jobs.values():
                if job.worker.started or job.cancelled or job.refusal is not None:
                    continue
                if len(running) >= self._settings.parallel_jobs:
                    return
                if job.exclusive and any(other.exclusive for other in running):
                    continue
                try:
                    job.worker.start(job.environment, self._fork_server(job))
                except OSError as error:
                    job.refusal = error
                    continue
                running.append(job)

    def _fork_server(self, job: _Job) -> ForkServer | None:
        """The process that a job forks from: a process with its variables. None where it cannot."""
        if self._command != WORKER or not can_fork(job.environment):
            return None
        for environment, server in self._forks:
            if environment == job.environment and server.alive:
                return server
        job.worker.log.parent.mkdir(parents=True, exist_ok=True)
        with job.worker.log.open("ab") as log:
            server = ForkServer(job.environment, ROOT, log)
        self._forks.append((job.environment, server))
        return server

    def _copy_log(self, handle: JobHandle, job: _Job) -> None:
        """Once a worker has ended, copy to the bucket what it has said here. A view: an outage of
        the bucket makes no job fail."""
        if job.log_copied or job.store.is_directory or not job.worker.ended:
            return
        job.log_copied = True
        try:
            for name in ("log.txt", "status.json"):
                file = attempt_file(handle.key, handle.attempt, name)
                if job.store.path(file).exists():
                    text = job.store.path(file).read_text(encoding="utf-8", errors="replace")
                    job.store.write_bytes(file, mask(text).encode())
        except (OSError, InputError) as error:
            said = "the log of job %s/%s could not be copied to %s: %s"
            log.warning(said, handle.key, handle.attempt, job.store.uri, error)

    def _poll_elsewhere(self, handle: JobHandle) -> JobStatus:
        """A job that another process submitted: alive as long as its heart is seen to beat. Clocks
        are not compared."""
        name = attempt_file(handle.key, handle.attempt, "status.json")
        store = context().store(handle.store, write=False)
        status = (
            store.read_here(name, JobStatus)
            or store.read_json(name, JobStatus)
            or JobStatus(state="queued", heartbeat=0.0)
        )
        silent = self._silences.setdefault(handle, Silence()).of(status.heartbeat)
        if status.state in FINAL or silent < self._settings.lease_seconds:
            return status
        return failed(status, f"the worker has not been heard of for {silent:.0f} s", lost=True)
