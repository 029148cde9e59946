"""Limits the requests under way at a time by additive increase, multiplicative decrease (Chiu and
Jain, 1989; TCP's rule).

It begins with all slots. A failure that means "too much" halves them, once per burst: requests sent
before the last halving do not count. Every round of successes gives one back. A pause that the
endpoint asks for (Retry-After) holds all requests.
"""

import asyncio
import time
from collections import deque


class Limiter:
    """Slots for requests. To be used in one event loop.

    Attributes:
        limit: slots that may be used now, 1 to `most`; a fraction while it grows.
        active: slots in use.
    """

    def __init__(self, most: int) -> None:
        self.limit = float(most)
        self.active = 0
        self._most = most
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._halved = self._resume = float("-inf")
        self._alarm: asyncio.TimerHandle | None = None
        self._error: BaseException | None = None

    async def acquire(self, *, first: bool = False) -> float:
        """Wait for a slot; returns the time, which `failed` wants. `first`: before waiting requests
        (for a retry).

        Raises what `close` was given.
        """
        if self._error is not None:
            raise self._error
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        self._wake()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release()
            raise
        return time.monotonic()

    def release(self) -> None:
        self.active -= 1
        self._wake()

    def succeeded(self) -> None:
        self.limit = min(float(self._most), self.limit + 1 / self.limit)
        self._wake()

    def failed(self, sent: float) -> None:
        """Record that a request sent at that time was refused or lost."""
        if sent > self._halved:
            self.limit, self._halved = max(1.0, self.limit / 2), time.monotonic()

    def pause(self, seconds: float) -> None:
        """Send nothing for so long."""
        self._resume = max(self._resume, time.monotonic() + seconds)

    def close(self, error: BaseException) -> None:
        """Give no more slots: waiting and later requests get the error."""
        self._error = error
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_exception(error)

    def open(self) -> None:
        """Give slots again."""
        self._error = None

    def _wake(self) -> None:
        left = self._resume - time.monotonic()
        if left > 0:
            if self._waiting and self._alarm is None:
                self._alarm = asyncio.get_running_loop().call_later(left, self._resumed)
            return
        while self._waiting and self.active < int(self.limit):
            turn = self._waiting.popleft()
            if not turn.done():
                self.active += 1
                turn.set_result(None)

    def _resumed(self) -> None:
        self._alarm = None
        self._wake()
