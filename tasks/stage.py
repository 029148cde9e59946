"""THE Prefect task: a stage is a key, a manifest, and, where there is none, one job.

1. If there is a valid manifest, there is nothing to do: the task ends at once, in a state called
   Cached.
2. Otherwise it takes the lease of the key; another run that has it is waited for.
3. Somebody else may have committed in the meantime: adopt what is there.
4. A job that an earlier holder of the lease submitted to a machine in the cloud, and that outlived
   it, is taken over.
5. Otherwise submit one job to the target's backend. Follow it: its log goes to Prefect's logger,
   its progress to the terminal and to a Prefect progress artifact. Whatever ends the task early
   (Ctrl-C, a cancelled flow, an error here) cancels the job; a deadline that comes near pauses it
   before. A job whose worker was killed, or
   whose machine is gone, is submitted again, as another attempt, a limited number of times.

The manifest is the truth: Prefect's records may all be deleted, and nothing runs again. Prefect is
given no result to keep and asked for none. A stored result names its own serializer, and one of
those is pickle: whoever can write where results lie could run code here.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import httpx
from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.logging.loggers import LoggingAdapter
from prefect.states import Cancelled, Completed, Failed, State

from infra.backend import FINAL, JobBackend, JobHandle
from infra.context import context
from infra.settings import Settings
from infra.store import lease
from infra.store.store import Store
from infra.targets import open_backend
from infra.visible import visible
from schemas.base import AuditFailed, InputError, StageFailed, Stopped
from schemas.job import JobRequest, JobStatus, Usage
from schemas.reports import RunRecord
from tasks.chat.provider import travelling
from tasks.contract.kinds import stage_kind
from tasks.models.shipping import ship_model, shipped_models

PROGRESS_SECONDS = 3.0
"""A Prefect progress artifact is updated at most this often."""


@dataclass(frozen=True)
class Watch:
    """What a flow and its running stages share within this process, and what cannot be a parameter
    because it is not data.

    Attributes:
        stop: set it, and every stage cancels its job and ends.
        pause: set it, and no stage begins any more; every job is asked to save a checkpoint and to
            end, and one that waits for its machine is cancelled.
        progress: is told how a running stage's job is, from the stage's thread.
        say: is told what else there is to know of a stage, e.g. that it waits for another run.
        record: is told each new version of the run record.
        costs: stage -> what its jobs have cost in this run, US dollars; stages that cost nothing
            are absent.
        usages: stage -> what the worker of its last job measured.
        repairs: stage -> what was wrong with its artifact, which is made again.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    pause: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[str, JobStatus], None] = field(default=lambda stage, status: None)
    say: Callable[[str, str], None] = field(default=lambda stage, text: None)
    record: Callable[[RunRecord], None] = field(default=lambda record: None)
    costs: dict[str, float] = field(default_factory=dict)
    usages: dict[str, Usage] = field(default_factory=dict)
    repairs: dict[str, str] = field(default_factory=dict)


Logger = logging.Logger | LoggingAdapter
WATCH: ContextVar[Watch] = ContextVar("lyceum_watch")


CACHED = "Cached"
"""Name of the state of a stage that ran no job: its artifact was there already, or another run made
it while we waited."""

BAD_INPUT = "Bad input"
"""Name of the state of a stage that failed because of what it was given."""

UNSOUND = "Unsound"
"""Name of the state of a stage whose rewards do not pay for what its references do
(`tasks.rehearsal.reward_audit`)."""

_FAILURES: dict[int | None, type[Exception]] = {2: InputError, 3: AuditFailed}


def submit_stage(request: JobRequest) -> PrefectFuture[Any]:
    """Submit a stage to the flow's task runner. See `run_stage` for the states that the future may
    end in."""
    # No tags: for each, Prefect's engine would ask its API for a slot before the stage may begin.
    configured = run_stage.with_options(description=f"{request.kind} {request.key}")
    return configured.submit(request.model_dump(mode="json"))


@task(name="stage", task_run_name="{spec[stage]}", cache_policy=NO_CACHE, persist_result=False)
def run_stage(spec: dict[str, Any]) -> State[Any]:
    """Adopt the artifact of a stage, or run one job that makes it.

    Args:
        spec: a JobRequest as JSON.

    Returns:
        Completed, by the name of `CACHED` when no job ran: what was made is in the store, not in
        the state. Or Cancelled. Or Failed, by the name of `BAD_INPUT` when the job found its input
        wrong (an unfillable quota, a full store), with the worker's message. A failure
        that people can read is returned, not raised: Prefect shows a traceback of whatever is
            raised.
    """
    try:
        return _run_stage(JobRequest.parse(spec))
    except Stopped as stopped:
        return Cancelled(message=str(stopped))
    except InputError as error:
        return Failed(name=BAD_INPUT, message=str(error))
    except AuditFailed as error:
        return Failed(name=UNSOUND, message=str(error))
    except (OSError, StageFailed) as error:
        return Failed(message=str(error))


def _run_stage(job: JobRequest) -> State[Any]:
    """Raises Stopped, InputError, StageFailed, and OSError when the store does not answer."""
    job = job.model_copy(update={"devices": stage_kind(job.kind).devices(job.config)})
    watch, settings, logger = WATCH.get(), context().settings, get_run_logger()
    store = context().store(job.store)
    adopted: State[Any] = Completed(name=CACHED, message=f"artifact {job.kind}/{job.key} exists")

    def say(message: str) -> None:
        logger.info(message)
        watch.say(job.stage, message)

    def damaged(what: str) -> None:
        watch.repairs[job.stage] = (
            f"its artifact was damaged ({what}), was set aside and has been made again"
        )
        say(f"its artifact is damaged ({what}) and was set aside; making it again")

    def released() -> State[Any]:
        """The stage is done; a machine of its that a killed run left behind is not needed."""
        if job.target != "local":
            backend(job.target).release(store, job.key, say)
        return adopted

    if store.valid(job.kind, job.key, damaged) is not None:
        return released()

    timing = {"seconds": settings.lease_seconds, "poll_seconds": settings.poll_seconds}
    with lease.hold(store, job.key, job.stage, **timing, waiting=say, stop=watch.stop) as held:
        status = None
        if store.valid(job.kind, job.key, damaged) is None:
            if job.target != "local":
                job = job.model_copy(update={"environment": travelling(job.config)})
            for model in shipped_models(job):
                ship_model(store, model, job.dependencies, settings, say)
            status = _run_to_the_end(
                _Follower(job, watch, settings, logger, say), store, held.attempt, settings.restarts
            )
    if status is None:
        return released()
    if watch.pause.is_set() and (status.state == "paused" or status.lost):
        raise Stopped(status.error)
    if status.artifact is None:
        raise _FAILURES.get(status.exit_code, StageFailed)(
            status.error
            or f"the job of stage {job.stage} ended as {status.state} without saying why"
        )
    return Completed(message=f"artifact {job.kind}/{job.key} was made")


def backend(target: str) -> JobBackend:
    """The backend of a target in this process."""
    return context().backend(target, open_backend)


def close_backends() -> list[str]:
    """Wait until nothing of this process' jobs is left running or is paid for. Returns a message
    per thing that is still there."""
    return [message for one in list(context().backends.values()) for message in one.close()]


class _Follower:
    """Follows jobs of one stage to their ends: forwards what they say, and sees to it that none
    outlives this task."""

    def __init__(
        self,
        job: JobRequest,
        watch: Watch,
        settings: Settings,
        logger: Logger,
        say: Callable[[str], None],
    ) -> None:
        self.job, self.say = job, say
        self.machines = backend(job.target)
        self._watch, self._settings, self._logger = watch, settings, logger
        self._bar = _ProgressArtifact(job)
        self._spent = 0.0

    @property
    def pausing(self) -> bool:
        """Whether no job is to begin any more."""
        return self._watch.pause.is_set()

    def submit(self, attempt: str) -> JobStatus:
        """Submit the job as an attempt and follow it. Raises Stopped."""
        if self.pausing:
            raise Stopped(f"stage {self.job.stage} had not begun")
        return self.follow(self.machines.submit(self.job.as_attempt(attempt)))

    def follow(self, handle: JobHandle) -> JobStatus:
        """Follow a job until it ends. Raises Stopped."""
        offset, phase, asked = 0, "", False
        status = JobStatus(state="queued", heartbeat=0.0)
        try:
            while True:
                status = self.machines.poll(handle)
                offset = self._forward_log(handle, offset)
                # what follows a comma is how long it takes
                if status.phase.partition(",")[0] != phase:
                    phase = status.phase.partition(",")[0]
                    self._logger.info("%s", status.phase or status.state)
                self._tell(status)
                if status.state in FINAL:
                    return status
                if self.pausing and status.state == "queued":
                    raise Stopped(f"stage {self.job.stage} had no machine yet")
                if self.pausing and not asked:
                    self.machines.pause(handle)
                    asked = True
                if self._watch.stop.wait(self._settings.poll_seconds):
                    raise Stopped(f"stage {self.job.stage} was stopped")
        finally:
            self.machines.cancel(handle)
            self._spent += status.cost_usd or 0.0

    def _tell(self, status: JobStatus) -> None:
        self._watch.progress(self.job.stage, status)
        self._bar.update(status)
        if status.cost_usd is not None:
            self._watch.costs[self.job.stage] = self._spent + status.cost_usd
        if status.usage is not None:
            self._watch.usages[self.job.stage] = status.usage

    def _forward_log(self, handle: JobHandle, offset: int) -> int:
        text, offset = self.machines.log(handle, offset)
        for line in text.splitlines():
            self._logger.info("%s", visible(line))
        return offset


def _run_to_the_end(follower: _Follower, store: Store, attempt: str, restarts: int) -> JobStatus:
    """Take over the job that outlived whoever submitted it, or submit one; and again, a limited
    number of times, for one that was lost, or that paused for an earlier run's sake."""
    attempts = iter([attempt, *(f"{attempt}-{restart}" for restart in range(1, restarts + 1))])
    running = follower.machines.attach(store, follower.job.key)
    if running:
        follower.say(f"job {running.attempt} of an earlier run goes on; following it")
    status = follower.follow(running) if running else follower.submit(next(attempts))
    while (status.lost or status.state == "paused") and not follower.pausing:
        if (again := next(attempts, None)) is None:
            break
        follower.say(
            f"{status.error}\nstarted again from its last checkpoint (attempt {again}; up to"
            f" {restarts} restarts a run)"
        )
        status = follower.submit(again)
    return status


class _ProgressArtifact:
    """The job's progress in percent, as a Prefect artifact. It is only a view: when Prefect's API
    cannot be reached the work goes on."""

    def __init__(self, job: JobRequest) -> None:
        self._key = job.stage.replace("_", "-")
        self._id: UUID | None = None
        self._next = 0.0

    def update(self, status: JobStatus) -> None:
        progress = status.progress
        if not (progress.total or status.phase) or (
            time.monotonic() < self._next and status.state not in FINAL
        ):
            return
        self._next = time.monotonic() + PROGRESS_SECONDS
        percent = 100.0 * progress.done / progress.total if progress.total else 0.0
        values = ", ".join(f"{name} {value:.4g}" for name, value in progress.values.items())
        text = status.phase or f"{progress.done}/{progress.total} {progress.unit} {values}".strip()
        with suppress(httpx.HTTPError):  # whoever started the flow says that the API is away
            if self._id is None:
                self._id = cast(
                    UUID, create_progress_artifact(percent, key=self._key, description=text)
                )
            else:
                update_progress_artifact(self._id, percent, description=text)
