"""Tells how long nothing has been heard of something: a lease's holder, a worker, a machine."""

import math
import time


class Silence:
    """Measure for how many seconds something has been seen without a change.

    Between two looks that are more than `most` seconds apart the store did not answer, so that
    nobody could have said anything: then the count starts again.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most = most
        self._seen: object = None
        self._looked = self._since = time.monotonic()

    def of(self, seen: object) -> float:
        """A look has found this."""
        now = time.monotonic()
        if seen != self._seen or now - self._looked > self._most:
            self._seen, self._since = seen, now
        self._looked = now
        return now - self._since
