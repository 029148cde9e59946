"""When to stop asking an endpoint that only fails (the circuit breaker; Nygard, Release It!, 2007).

While nothing succeeds, pauses grow, so an outage costs each request few of its attempts; and after `seconds` the stage ends with a message.
One request that always fails is no dead endpoint: it takes three that do.
"""

import time

from schemas.base import InputError, StageFailed
from tasks.chat.endpoint import Endpoint

_REQUESTS = 3
_PATIENT_BURSTS = 2
"""Bursts of failures in a row that cost nobody a pause; later ones do, twice as long each time."""
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0  # seconds
_REJECTIONS = 16
"""Requests in a row that the endpoint rejects as bad (400, 413, 422, ...), after which the fault is in what they have in common."""


class Breaker:
    """Counts failures since the last success.

    Args:
        seconds: how long an endpoint may only fail.
    """

    def __init__(self, endpoint: Endpoint, seconds: float) -> None:
        self.answered = False
        self._endpoint = endpoint
        self._seconds = seconds
        self._since: float | None = None
        self._failures = self._bursts = 0
        self._burst = float("-inf")
        self._failed: set[str] = set()
        self._rejected: set[str] = set()

    def succeeded(self) -> None:
        self.answered = True
        self._since, self._failures, self._bursts = None, 0, 0
        self._failed.clear()
        self._rejected.clear()

    def failed(self, digest: str, sent: float, detail: str, wait: float | None) -> float:
        """A request was not answered; returns how long everybody should pause, in seconds.

        Args:
            sent: when it was sent: failures of requests that were sent before the last burst are part of that.
            wait: what the endpoint asks for.

        Raises:
            StageFailed: it has only failed for `seconds`, or asks to wait longer than that.
        """
        now = time.monotonic()
        if sent > self._burst:
            self._bursts, self._burst = self._bursts + 1, now
        self._since = now if self._since is None else self._since
        self._failures += 1
        self._failed.add(digest)
        if wait is not None and wait > self._seconds:
            raise StageFailed(
                f"{self._place} asks to wait {wait:.0f} s ({detail}). What was answered is kept: run again later, or raise "
                "LYCEUM_TEACHER_DEAD_SECONDS to wait that long."
            )
        if now - self._since >= self._seconds and len(self._failed) >= _REQUESTS:
            raise StageFailed(
                f"{self._place} has answered nothing for {now - self._since:.0f} s: {self._failures} failures, the last: {detail}. "
                f"Check that it runs and that {self._endpoint.variable('URL')} is right. What was answered is kept: run again to continue."
            )
        late = self._bursts - _PATIENT_BURSTS
        return max(wait or 0.0, min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(late - 1, 16)) if late > 0 else 0.0)

    def rejected(self, digest: str, detail: str) -> None:
        """The endpoint found a request bad. Raises InputError when it has found so many bad in a row, and none good."""
        self._rejected.add(digest)
        if len(self._rejected) >= _REJECTIONS:
            raise InputError(
                f"{self._place} rejects every request, the last {len(self._rejected)} in a row: {detail}. Change the teacher's model or "
                "parameters to what it takes. What was answered is kept."
            )

    @property
    def _place(self) -> str:
        return f"the endpoint of {self._endpoint.provider} at {self._endpoint.url}"
