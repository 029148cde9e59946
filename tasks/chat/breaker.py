"""The circuit breaker: stops asking an endpoint that only fails (Nygard, Release It!, 2007).

While nothing succeeds, pauses grow, so that an outage costs each request few of its attempts; after
`seconds` the stage ends with a message. One request that always fails does not make a dead
endpoint: three must.

A patient breaker waits for an endpoint that is down, at no request's cost: a failure counts against
a request only if the request may be the cause. Refused connections and rate limits are the
endpoint's failures, and so is every failure while three or more requests have failed since the last
success. Until there is one, a request's next failure says no more than its first, and only counts
when too few others are left to tell.
"""

import logging
import time
from collections import Counter

from schemas.base import InputError, StageFailed
from tasks.chat.provider import Endpoint
from tasks.chat.transport import Failure

_REQUESTS = 3
"""Requests that tell whether the endpoint fails, or only some of them."""
_PATIENT_BURSTS = 2
"""Consecutive bursts of failures without a pause; later ones pause, each twice as long as the one
before."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds
_PATIENT_PAUSE = 5.0
"""The longest pause of a patient breaker, in seconds: a machine is idle meanwhile, and asking
whether the endpoint is back is free."""
_REJECTIONS = 16
"""Consecutive requests rejected as bad (400, 413, 422, ...) after which all requests count as
bad."""
_TELL_SECONDS = 10.0
"""Seconds that a patient breaker waits before it logs the outage; it logs again after each
doubling."""

log = logging.getLogger("lyceum")


class Breaker:
    """Counts failures since the last success.

    Args:
        seconds: how long an endpoint may fail without a success.
        patient: see above.

    Attributes:
        waited: seconds of outages that are over.
    """

    def __init__(self, endpoint: Endpoint, seconds: float, *, patient: bool = False) -> None:
        self.answered, self.waited = False, 0.0
        self._endpoint, self._seconds, self._patient = endpoint, seconds, patient
        self._since: float | None = None
        self._failures = self._bursts = 0
        self._tell, self._burst = _TELL_SECONDS, float("-inf")
        self._failed, self._rejected = Counter[str](), set[str]()

    @property
    def down(self) -> float:
        """Seconds since which the endpoint has only failed."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def succeeded(self) -> None:
        self.answered = True
        if self._since is not None:
            self.waited += self.down
            if self._tell > _TELL_SECONDS:
                log.warning("%s answers again, after %.0f s", self._endpoint.place, self.down)
        self._since, self._failures, self._bursts, self._tell = None, 0, 0, _TELL_SECONDS
        self._failed.clear()
        self._rejected.clear()

    def counts(self, digest: str, failure: Failure, waiting: int) -> bool:
        """Whether a failure, recorded by `failed`, counts against its request. `waiting`: how
        many different requests have no reply yet, this one included."""
        if failure.kind == "rejected" or not self._patient:
            return True
        again = self._failed[digest] > 1 and waiting >= _REQUESTS
        return not (again or self._is_down(failure))

    def _is_down(self, failure: Failure) -> bool:
        """Whether the endpoint fails, and not a request. For a patient breaker a single clear
        failure is enough."""
        refused = failure.kind == "connection" and not failure.perhaps_paid
        alone = self._patient and (refused or failure.kind == "rate_limited")
        return alone or len(self._failed) >= _REQUESTS

    def failed(self, digest: str, sent: float, failure: Failure) -> float:
        """Record a request without an answer; returns how long everybody should pause, in seconds.

        Args:
            sent: when it was sent: failures of requests that were sent before the last burst are
                part of that.

        Raises:
            StageFailed: the endpoint has only failed for `seconds`, or asks for a longer wait.
        """
        now = time.monotonic()
        if sent > self._burst:
            self._bursts, self._burst = self._bursts + 1, now
        self._since = now if self._since is None else self._since
        self._failures += 1
        self._failed[digest] += 1
        wait = failure.wait or 0.0
        if wait > self._seconds:
            raise StageFailed(
                f"{self._endpoint.place} asks to wait {wait:.0f} s ({failure.detail}). Answers that"
                f" arrived are kept: run again later, or raise {self._setting} to wait that long."
            )
        if self._is_down(failure):
            if now - self._since >= self._seconds:
                raise StageFailed(
                    f"{self._endpoint.place} has answered nothing for {now - self._since:.0f} s:"
                    f" {self._failures} failures, the last: {failure.detail}. Check that it runs"
                    f" and that {self._endpoint.variable('URL')} is right. Answers that"
                    " arrived are kept: run again to continue."
                    f" {self._setting} sets the longest wait."
                )
            if self._patient and now - self._since >= self._tell:
                self._tell *= 2
                log.warning(
                    "%s has answered nothing for %.0f s (%s); waiting for it for up to %.0f s",
                    *(self._endpoint.place, now - self._since, failure.detail, self._seconds),
                )
        late = self._bursts - _PATIENT_BURSTS
        longest = _PATIENT_PAUSE if self._patient else LONGEST_PAUSE
        return max(wait, min(longest, FIRST_PAUSE * 2 ** min(late - 1, 16)) if late > 0 else 0.0)

    def rejected(self, digest: str, detail: str) -> None:
        """Record a request that the endpoint rejected as bad. Raises InputError after too many in a
        row without a success."""
        self._rejected.add(digest)
        if len(self._rejected) >= _REJECTIONS:
            raise InputError(
                f"{self._endpoint.place} rejects every request, the last {len(self._rejected)} in a"
                f" row: {detail}. Change the model or the parameters to what it takes. Answers that"
                " arrived are kept."
            )

    @property
    def _setting(self) -> str:
        return "LYCEUM_JUDGE_PATIENCE_SECONDS" if self._patient else "LYCEUM_TEACHER_DEAD_SECONDS"
