"""THE Prefect task: a stage is a key, a manifest, and, where there is none, one job.

1. If there is a valid manifest, there is nothing to do: the task ends at once, in a state called Cached.
2. Otherwise it takes the lease of the key; another run that has it is waited for.
3. Somebody else may have committed in the meantime: adopt what is there.
4. Otherwise submit one job to the target's backend, and follow it: its log goes to Prefect's logger, its progress to the terminal and to a
   Prefect progress artifact. Whatever ends the task early (Ctrl-C, a cancelled flow, an error here) cancels the job. A job whose worker was
   killed is submitted again, as another attempt, a limited number of times.

The manifest is the truth: Prefect's records may all be deleted, and nothing runs again. Prefect is given no result to keep and asked for
none. A stored result names its own serializer, and one of those is pickle: whoever can write where results lie could run code here.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast
from uuid import UUID

import httpx
from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.logging.loggers import LoggingAdapter
from prefect.states import Cancelled, Completed, State

from infra import lease
from infra.backend import FINAL, JobBackend, JobHandle
from infra.settings import Settings
from infra.store import open_store
from infra.targets import open_backend
from schemas.base import InputError, StageFailed, Stopped
from schemas.job import JobSpec, JobStatus, Progress
from schemas.reports import RunRecord

PROGRESS_SECONDS = 3.0
"""A Prefect progress artifact is updated at most this often."""


@dataclass(frozen=True)
class Watch:
    """What a flow and its running stages share within this process, and what cannot be a parameter because it is not data.

    Attributes:
        stop: set it, and every stage cancels its job and ends.
        progress: is told how far a stage is, from the stage's thread.
        say: is told what else there is to know of a stage, e.g. that it waits for another run.
        record: is told each new version of the run record.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[str, Progress], None] = field(default=lambda stage, progress: None)
    say: Callable[[str, str], None] = field(default=lambda stage, text: None)
    record: Callable[[RunRecord], None] = field(default=lambda record: None)


Logger = logging.Logger | LoggingAdapter
WATCH: ContextVar[Watch] = ContextVar("lyceum_watch")


CACHED = "Cached"
"""Name of the state of a stage that ran no job: its artifact was there already, or another run made it while we waited."""


def submit_stage(spec: JobSpec) -> PrefectFuture[Any]:
    """Submit a stage to the flow's task runner. See `run_stage` for the states that the future may end in."""
    configured = run_stage.with_options(description=f"{spec.kind} {spec.key}", tags={spec.kind})
    return configured.submit(spec.model_dump(mode="json"))


@task(name="stage", task_run_name="{spec[stage]}", cache_policy=NO_CACHE, persist_result=False)
def run_stage(spec: dict[str, Any]) -> State[Any]:
    """Adopt the artifact of a stage, or run one job that makes it.

    Args:
        spec: a JobSpec as JSON; its `attempt` is filled in here.

    Returns:
        Completed, by the name of `CACHED` when no job ran, or Cancelled. What was made is in the store, not in the state.

    Raises:
        StageFailed: the job failed; the message is the worker's.
        InputError: the job found its input wrong (an unfillable quota, a full store); the message is the worker's.
    """
    job, watch, settings, logger = JobSpec.parse(spec), WATCH.get(), Settings.from_environment(), get_run_logger()
    store = open_store(job.store)
    adopted: State[Any] = Completed(name=CACHED, message=f"artifact {job.kind}/{job.key} exists")
    if store.valid(job.kind, job.key) is not None:
        return adopted

    def say(message: str) -> None:
        logger.info(message)
        watch.say(job.stage, message)

    timing = {"seconds": settings.lease_seconds, "poll_seconds": settings.poll_seconds}
    try:
        with lease.hold(store, job.key, job.stage, **timing, waiting=say, stop=watch.stop) as held:
            if store.valid(job.kind, job.key) is not None:
                return adopted
            status = _run_job(job.model_copy(update={"attempt": held.attempt}), watch, settings, logger)
            for restart in range(1, settings.restarts + 1):
                if status.lost:
                    say(f"{status.error}\nstarted again from its last checkpoint ({restart} of {settings.restarts} restarts)")
                    status = _run_job(job.model_copy(update={"attempt": f"{held.attempt}-{restart}"}), watch, settings, logger)
    except Stopped as stopped:
        return Cancelled(message=str(stopped))
    if status.artifact is None:
        failure = InputError if status.exit_code == 2 else StageFailed
        raise failure(status.error or f"the job of stage {job.stage} ended as {status.state} without saying why")
    return Completed(message=f"artifact {job.kind}/{job.key} was made")


@cache
def backend(target: str) -> JobBackend:
    """The backend of a target; one per process, because it limits how many jobs run side by side."""
    return open_backend(target, Settings.from_environment())


def _run_job(job: JobSpec, watch: Watch, settings: Settings, logger: Logger) -> JobStatus:
    """Submit the job and follow it to its end; it never outlives this call. Raises Stopped."""
    machines = backend(job.target)
    bar = _ProgressArtifact(job, logger)
    handle = machines.submit(job)
    offset = 0
    try:
        while True:
            status = machines.poll(handle)
            offset = _forward_log(machines, handle, offset, logger)
            watch.progress(job.stage, status.progress)
            bar.update(status)
            if status.state in FINAL:
                return status
            if watch.stop.wait(settings.poll_seconds):
                raise Stopped(f"stage {job.stage} was stopped")
    finally:
        machines.cancel(handle)


def _forward_log(machines: JobBackend, handle: JobHandle, offset: int, logger: Logger) -> int:
    text, offset = machines.log(handle, offset)
    for line in text.splitlines():
        logger.info(line)
    return offset


class _ProgressArtifact:
    """The job's progress in percent, as a Prefect artifact. It is only a view: when Prefect's API cannot be reached the work goes on."""

    def __init__(self, job: JobSpec, logger: Logger) -> None:
        self._key = job.stage.replace("_", "-")
        self._logger = logger
        self._id: UUID | None = None
        self._next = 0.0

    def update(self, status: JobStatus) -> None:
        progress = status.progress
        if not progress.total or (time.monotonic() < self._next and status.state not in FINAL):
            return
        self._next = time.monotonic() + PROGRESS_SECONDS
        percent = 100.0 * progress.done / progress.total
        values = ", ".join(f"{name} {value:.4g}" for name, value in progress.values.items())
        text = f"{progress.done}/{progress.total} {progress.unit} {values}".strip()
        try:
            if self._id is None:
                self._id = cast(UUID, create_progress_artifact(percent, key=self._key, description=text))
            else:
                update_progress_artifact(self._id, percent, description=text)
        except httpx.HTTPError as error:
            self._logger.warning("the progress could not be shown in Prefect: %s", error)
