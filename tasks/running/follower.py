"""Follows the jobs of one stage to their ends: passes their messages on, lets none outlive its
follower, and submits a lost one again."""

import time
from collections.abc import Callable
from contextlib import suppress

from infra.backend import FINAL, JobHandle
from infra.settings import Settings
from infra.store import lease
from infra.store.store import Store
from infra.visible import visible
from schemas.base import InputError, Stopped
from schemas.job import JobRequest, JobStatus
from tasks.running.backends import backend
from tasks.running.watch import Listener, Watch

LONGEST_PAUSE = 900.0
"""The most seconds between two requests for a machine."""


class Follower:
    """Follows jobs of one stage to their ends and forwards their messages. None outlives this
    process, except one that another run follows.

    Args:
        taken_over: whether another run works on the stage now.
        has_newer_job: whether that run works with a job of its own, so that it does not follow
            ours.

    Attributes:
        overtaken: another run worked on the stage when the job was lost, so that it was not started
            again, or works on it with a job of its own.
    """

    def __init__(
        self,
        job: JobRequest,
        watch: Watch,
        listener: Listener,
        settings: Settings,
        taken_over: Callable[[], bool],
        has_newer_job: Callable[[], bool],
    ) -> None:
        self.job = job
        self._taken_over, self._has_newer_job = taken_over, has_newer_job
        self.machines = backend(job.target)
        self._watch, self._listener, self._settings = watch, listener, settings
        self._spent = 0.0
        self._asked, self._refusals = 0.0, 0  # when last; requests in a row of which nothing ran
        self.overtaken = False

    @property
    def pausing(self) -> bool:
        """Whether the run is pausing, so that no further job begins."""
        return self._watch.pause.is_set()

    def is_overtaken(self) -> bool:
        """Whether another run, which took this one for dead, works on the stage now, so that we
        must not start it again. Once true, it stays true."""
        self.overtaken = self.overtaken or self._taken_over()
        return self.overtaken

    def say(self, message: str) -> None:
        """Log a message and show it to people at the terminal, too."""
        self._listener.log(message)
        self._watch.say(self.job.stage, message)

    def submit(self, attempt: str) -> JobStatus:
        """Submit the job as an attempt and follow it. Raises Stopped."""
        if self.pausing:
            raise Stopped(f"stage {self.job.stage} had not begun")
        self._asked, self._refusals = time.monotonic(), self._refusals + 1
        return self.follow(self.machines.submit(self.job.as_attempt(attempt)))

    def follow(self, handle: JobHandle) -> JobStatus:
        """Follow a job until it ends, or until another run makes the same with a job of its own,
        which is looked for every `lease_seconds`: two machines for one stage are one too many.
        Raises Stopped."""
        offset, phase, asked = 0, "", False
        looked = time.monotonic()
        status = JobStatus(state="queued", heartbeat=0.0)
        try:
            while True:
                status = self.machines.poll(handle)
                offset = self._forward_log(handle, offset)
                # after a comma stands how long it takes
                if status.phase.partition(",")[0] != phase:
                    phase = status.phase.partition(",")[0]
                    self._listener.log(status.phase or status.state)
                self._tell(status)
                if status.state == "running":
                    self._refusals = 0
                if status.state in FINAL:
                    return status
                if time.monotonic() - looked > self._settings.lease_seconds:
                    looked = time.monotonic()
                    if self._has_newer_job():
                        self.overtaken = True
                        return _lost("another run works on this stage with a job of its own")
                if self.pausing and status.state == "queued":
                    raise Stopped(f"stage {self.job.stage} still waited for its machine")
                if self.pausing and not asked:
                    if self._taken_over():
                        raise Stopped(f"another run goes on with stage {self.job.stage}")
                    self.machines.pause(handle)
                    asked = True
                if self._watch.stop.wait(self._settings.poll_seconds):
                    raise Stopped(f"stage {self.job.stage} was stopped")
        finally:
            over = status.state in FINAL or self._has_newer_job()
            if not over and self._taken_over():
                self.machines.leave(handle)
            else:
                self.machines.cancel(handle)
            self._spent += status.cost_usd or 0.0

    def wait_to_ask_again(self, status: JobStatus) -> bool:
        """A machine that is refused is refused within seconds, time after time: between two
        requests lie `lease_seconds`, then twice as long, and so on. Returns whether it waited, and
        said why. Raises Stopped."""
        if self.job.target == "local" or not status.lost or not self._refusals:
            return False
        pause = self._settings.lease_seconds * 2 ** (self._refusals - 1)
        until = self._asked + min(pause, LONGEST_PAUSE)
        if (left := until - time.monotonic()) <= 0:
            return False
        self.say(f"{status.error}\nno machine yet: waiting {left:.0f} s before the next request")
        while not self.pausing and (left := until - time.monotonic()) > 0:
            if self._watch.stop.wait(min(left, self._settings.poll_seconds)):
                raise Stopped(f"stage {self.job.stage} was stopped")
        return True

    def _tell(self, status: JobStatus) -> None:
        self._watch.progress(self.job.stage, status)
        self._listener.progress(status)
        if status.cost_usd is not None:
            self._watch.costs[self.job.stage] = self._spent + status.cost_usd
        if status.usage is not None:
            self._watch.usages[self.job.stage] = status.usage

    def _forward_log(self, handle: JobHandle, offset: int) -> int:
        text, offset = self.machines.log(handle, offset)
        for line in text.splitlines():
            self._listener.log(visible(line))
        return offset


def run_to_the_end(follower: Follower, store: Store, attempt: str, restarts: int) -> JobStatus:
    """Take over the job that outlived its submitter, or submit one. Submit again, a limited number
    of times, after a job that was lost without an artifact, or that paused for an earlier run. Do
    nothing where another run has taken the stage over since the lease was granted: its job has not
    outlived it. The listing in which jobs are looked for tells, since this process may stand still
    at any time."""
    known = lease.attempts(store, follower.job.key)
    generation = lease.attempt_numbers(attempt)[0]
    if lease.later(known, generation):
        follower.overtaken = True
        return _lost("another run follows it")
    attempts = iter([attempt, *(f"{attempt}-{restart}" for restart in range(1, restarts + 1))])
    running = follower.machines.attach(store, follower.job.key, follower.job.run, known)
    if running:
        follower.say(f"job {running.attempt} of an earlier run goes on; following it")
    status = follower.follow(running) if running else follower.submit(next(attempts))
    while (status.lost or status.state == "paused") and not follower.pausing:
        if (again := next(attempts, None)) is None or follower.is_overtaken():
            break
        what = f"{status.error}\nstarted again from its last checkpoint"
        if follower.wait_to_ask_again(status):
            what = "asking for a machine again"
            if follower.pausing or follower.is_overtaken():
                break
        with suppress(OSError, InputError):  # a store that is away tells nothing
            if lease.later(lease.attempts(store, follower.job.key), generation):
                follower.overtaken = True  # even by one that has ended: the lease is not ours
                break
            if (made := store.valid(follower.job.kind, follower.job.key)) is not None:
                return status.model_copy(update={"artifact": made.ref()})
        follower.say(f"{what} (attempt {again}; up to {restarts} restarts a run)")
        status = follower.submit(again)
    return status


def _lost(why: str) -> JobStatus:
    return JobStatus(state="failed", heartbeat=0.0, lost=True, error=why)
