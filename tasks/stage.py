"""THE Prefect task: what becomes of a stage (`tasks.running.execution`), as Prefect shows it. A
stage that has nothing to do ends at once, in a state called Cached; a job's log goes to Prefect's
logger, its progress to a Prefect progress artifact, and where what it made lies is another.

The manifest is the truth: Prefect's records may all be deleted, and nothing runs again. Prefect is
given no result to keep and asked for none. A stored result names its own serializer, and one of
those is pickle: whoever can write where results lie could run code here.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast
from uuid import UUID

import httpx
from prefect import get_run_logger, task
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture
from prefect.states import Cancelled, Completed, Failed, State

from infra.backend import FINAL
from infra.context import context
from schemas.base import AuditFailed, InputError, StageFailed, Stopped
from schemas.job import JobRequest, JobStatus
from tasks.running.early_start import take
from tasks.running.execution import make
from tasks.running.watch import WATCH, Listener

LINK_TRIES = 3
"""So often a link is sent to an API that is slow; one that is away is not asked again."""

PROGRESS_SECONDS = 3.0
"""A Prefect progress artifact is updated at most this often."""

CACHED = "Cached"
"""Name of the state of a stage that ran no job: its artifact was there already, or another run made
it while we waited."""

BAD_INPUT = "Bad input"
"""Name of the state of a stage that failed because of what it was given."""

UNSOUND = "Unsound"
"""Name of the state of a stage whose rewards do not pay for what its references do
(`tasks.rehearsal.reward_audit`)."""


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
    job, logger = JobRequest.parse(spec), get_run_logger()
    listener = Listener(lambda line: logger.info("%s", line), _ProgressArtifact(job).update)
    try:
        begun = take(job.key)
        ran = begun.attend(listener) if begun else make(job, WATCH.get(), listener)
    except Stopped as stopped:
        return Cancelled(message=str(stopped))
    except InputError as error:
        return Failed(name=BAD_INPUT, message=str(error))
    except AuditFailed as error:
        return Failed(name=UNSOUND, message=str(error))
    except (OSError, StageFailed) as error:
        return Failed(message=str(error))
    artifact = f"artifact {job.kind}/{job.key}"
    if ran:
        _link(job, listener.log)
        return Completed(message=f"{artifact} was made")
    return Completed(name=CACHED, message=f"{artifact} exists")


def _link(job: JobRequest, say: Callable[[str], None]) -> None:
    """Show in Prefect where what a stage made lies: in a bucket, by its page in Google's console;
    here, by its path, for a browser follows no link to a file. A view, too: where the API takes
    none, `say` tells the log what is missing."""
    key, said = f"{job.stage.replace('_', '-')}-made", f"What stage {job.stage} made"
    name = f"artifacts/{job.kind}/{job.key}"
    if job.store.startswith("gs://"):
        bucket = job.store.removeprefix("gs://")
        place = f"https://console.cloud.google.com/storage/browser/{bucket}/{name}"
        text = f"{job.kind}/{job.key[:12]}"
        show = partial(create_link_artifact, place, text, key=key, description=said)
    else:
        place = context().store(job.store).location(name)
        show = partial(create_markdown_artifact, f"`{place}`", key=key, description=said)
    for tries in range(1, LINK_TRIES + 1):
        try:
            show()
            return
        except httpx.HTTPError as error:
            if tries == LINK_TRIES or not isinstance(error, httpx.TimeoutException):
                why = f"{type(error).__name__} after {tries} of {LINK_TRIES} tries"
                say(f"Prefect has no link to what stage {job.stage} made, {place}: {why}")
                return


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
