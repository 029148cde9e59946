"""Executes a stage: adopts the artifact under its key, or runs one job that makes it.

1. If there is a valid manifest, there is nothing to do (`adopt`, the one rule for what is cached).
2. Otherwise it takes the lease of the key; another run that has it is waited for.
3. Somebody else may have committed in the meantime: adopt what is there.
4. A job that an earlier holder of the lease submitted to a machine in the cloud, and that outlived
   it, is taken over.
5. Otherwise submit one job to the target's backend and follow it. Whatever ends this early (Ctrl-C,
   a cancelled flow, an error here) cancels the job; a deadline that comes near pauses it before. A
   job whose worker was killed, or whose machine is gone, is submitted again, as another attempt, a
   limited number of times.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from infra.context import context
from infra.store import lease
from infra.store.store import Store
from schemas.artifact import Manifest
from schemas.base import AuditFailed, InputError, StageFailed, Stopped
from schemas.job import JobRequest
from tasks.chat.provider import travelling
from tasks.contract.kinds import stage_kind
from tasks.models.shipping import ship_model, shipped_models
from tasks.running.backends import backend
from tasks.running.follower import Follower, run_to_the_end
from tasks.running.watch import Listener, Watch

_FAILURES: dict[int | None, type[Exception]] = {2: InputError, 3: AuditFailed}

Say = Callable[[str], None]

LOOK_SECONDS = 10.0
"""How long to ask the store whether another run has taken a stage over, before cancelling its
job."""


def adopt(job: JobRequest, store: Store, watch: Watch, say: Say) -> Manifest | None:
    """The artifact of a stage that has nothing to do, because it is there and verifies; else None.

    It sets a damaged artifact aside, and releases a machine that a killed run of the stage left
    behind. Raises InputError, and OSError when the store does not answer.
    """
    manifest = _valid(job, store, watch, say)
    if manifest is not None:
        _release(job, store, say)
    return manifest


def make(job: JobRequest, watch: Watch, listener: Listener) -> bool:
    """Adopt the artifact of a stage, or run one job that makes it; returns whether a job ran.

    Raises:
        Stopped: the run was stopped, or its deadline came near.
        InputError: the job found its input wrong (an unfillable quota, a full store).
        AuditFailed: the stage's rewards do not pay for what its references do.
        StageFailed: the job failed.
        OSError: the store does not answer.
    """
    job = job.model_copy(update={"devices": stage_kind(job.kind).devices(job.config)})
    settings, store = context().settings, context().store(job.store)

    def say(message: str) -> None:
        listener.log(message)
        watch.say(job.stage, message)

    if adopt(job, store, watch, say) is not None:
        return False
    timing = {"seconds": settings.lease_seconds, "poll_seconds": settings.poll_seconds}
    with lease.hold(store, job.key, job.stage, **timing, waiting=say, stop=watch.stop) as claim:
        status = None
        if _valid(job, store, watch, say) is None:
            if job.target != "local":
                job = job.model_copy(update={"environment": travelling(job.config)})
            for model in shipped_models(job):
                ship_model(store, model, job.dependencies, settings, say)
            another = partial(lease.taken_over, store, claim, LOOK_SECONDS)
            newer = partial(_has_newer_job, store, claim)
            follower = Follower(job, watch, listener, settings, another, newer)
            status = run_to_the_end(follower, store, claim.attempt, settings.restarts)
    if status is None:
        _release(job, store, say)
        return False
    if follower.overtaken:
        say("another run works on this stage now")
        return make(job, watch, listener)
    if watch.pause.is_set() and (status.state == "paused" or status.lost):
        raise Stopped(status.error)
    if status.artifact is None and _valid(job, store, watch, say) is None:
        raise _FAILURES.get(status.exit_code, StageFailed)(
            status.error
            or f"the job of stage {job.stage} ended as {status.state} without saying why"
        )
    # a job may fail because another run took it for dead and was faster: the stage is done
    return status.artifact is not None


def _has_newer_job(store: Store, claim: lease.Lease) -> bool:
    """Whether another run has taken the lease over and submitted a job of its own; False when the
    store does not answer."""
    if claim.lost.is_set():
        with suppress(OSError, InputError):
            return any(
                lease.is_submitted(store, claim.key, name)
                for name in lease.later(lease.attempts(store, claim.key), claim.generation)
            )
    return False


def _valid(job: JobRequest, store: Store, watch: Watch, say: Say) -> Manifest | None:
    def damaged(what: str) -> None:
        watch.repairs[job.stage] = (
            f"its artifact was damaged ({what}), was set aside and has been made again"
        )
        say(f"its artifact is damaged ({what}) and was set aside; making it again")

    return store.valid(job.kind, job.key, damaged)


def _release(job: JobRequest, store: Store, say: Say) -> None:
    """Delete a machine that a killed run left behind, once the lease is free; a stage whose lease
    is held keeps its machine."""
    if job.target != "local":
        backend(job.target).release(store, job.key, say)
