"""When to stop asking an endpoint that only fails (the circuit breaker; Nygard, Release It!, 2007).

While nothing succeeds, pauses grow, so an outage costs each request few of its attempts; and after
`seconds` the stage ends with a message. One request that always fails is no dead endpoint: it takes
three that do.

A patient breaker waits for an endpoint that is down, and no request suffers for it: a failure
counts against the request only when it may be the request's own. That of a refused connection or of
a rate limit is the endpoint's, and so is every failure while three requests or more have failed
since the last success.
"""

import logging
import time

from schemas.base import InputError, StageFailed
from tasks.chat.provider import Endpoint
from tasks.chat.transport import Failure

_REQUESTS = 3
_PATIENT_BURSTS = 2
"""Bursts of failures in a row that cost nobody a pause; later ones do, twice as long each time."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds
_PATIENT_PAUSE = 5.0
"""The longest pause of a patient breaker: a machine stands idle meanwhile, and asking whether the
endpoint is back costs nothing."""
_REJECTIONS = 16
"""Requests in a row that the endpoint rejects as bad (400, 413, 422, ...), after which the fault is
in what they have in common."""
_TELL_SECONDS = 10.0
"""An endpoint that a patient breaker has waited for so long is logged, and again each time it has
waited twice as long."""

log = logging.getLogger("lyceum")


class Breaker:
    """Counts failures since the last success.

    Args:
        seconds: how long an endpoint may only fail.
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
        self._failed, self._rejected = set[str](), set[str]()

    @property
    def down(self) -> float:
        """For how many seconds the endpoint has only failed."""
        return 0.0 if self._since is None else time.monotonic() - self._since

    def succeeded(self) -> None:
        self.answered = True
        if self._since is not None:
            self.waited += self.down
            if self._tell > _TELL_SECONDS:
                log.warning("%s answers again, after %.0f s", self._place, self.down)
        self._since, self._failures, self._bursts, self._tell = None, 0, 0, _TELL_SECONDS
        self._failed.clear()
        self._rejected.clear()

    def counts(self, failure: Failure) -> bool:
        """Whether a failure, which `failed` was told of, counts against its request."""
        return failure.kind == "rejected" or not (self._patient and self._is_down(failure))

    def _is_down(self, failure: Failure) -> bool:
        """Whether it is the endpoint that fails and not a request. A patient breaker does not need
        three to see it in a single failure."""
        refused = failure.kind == "connection" and not failure.perhaps_paid
        alone = self._patient and (refused or failure.kind == "rate_limited")
        return alone or len(self._failed) >= _REQUESTS

    def failed(self, digest: str, sent: float, failure: Failure) -> float:
        """A request was not answered; returns how long everybody should pause, in seconds.

        Args:
            sent: when it was sent: failures of requests that were sent before the last burst are
                part of that.

        Raises:
            StageFailed: the endpoint has only failed for `seconds`, or asks to wait longer than
                that.
        """
        now = time.monotonic()
        if sent > self._burst:
            self._bursts, self._burst = self._bursts + 1, now
        self._since = now if self._since is None else self._since
        self._failures += 1
        self._failed.add(digest)
        wait = failure.wait or 0.0
        if wait > self._seconds:
            raise StageFailed(
                f"{self._place} asks to wait {wait:.0f} s ({failure.detail}). What was answered is"
                f" kept: run again later, or raise {self._setting} to wait that long."
            )
        if self._is_down(failure):
            if now - self._since >= self._seconds:
                raise StageFailed(
                    f"{self._place} has answered nothing for {now - self._since:.0f} s:"
                    f" {self._failures} failures, the last: {failure.detail}. Check that it runs"
                    f" and that {self._endpoint.variable('URL')} is right. What was answered is"
                    f" kept: run again to continue. {self._setting} says how long is waited."
                )
            if self._patient and now - self._since >= self._tell:
                self._tell *= 2
                log.warning(
                    "%s has answered nothing for %.0f s (%s); waiting for it for up to %.0f s",
                    *(self._place, now - self._since, failure.detail, self._seconds),
                )
        late = self._bursts - _PATIENT_BURSTS
        longest = _PATIENT_PAUSE if self._patient else LONGEST_PAUSE
        return max(wait, min(longest, FIRST_PAUSE * 2 ** min(late - 1, 16)) if late > 0 else 0.0)

    def rejected(self, digest: str, detail: str) -> None:
        """The endpoint found a request bad. Raises InputError when it has found so many bad in a
        row, and none good."""
        self._rejected.add(digest)
        if len(self._rejected) >= _REJECTIONS:
            raise InputError(
                f"{self._place} rejects every request, the last {len(self._rejected)} in a row:"
                f" {detail}. Change the model or the parameters to what it takes. What was answered"
                " is kept."
            )

    @property
    def _setting(self) -> str:
        return "LYCEUM_JUDGE_PATIENCE_SECONDS" if self._patient else "LYCEUM_TEACHER_DEAD_SECONDS"

    @property
    def _place(self) -> str:
        return f"the endpoint of {self._endpoint.provider} at {self._endpoint.url}"
