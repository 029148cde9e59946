"""What the engine holds in memory for its caller: requests that have no reply yet, and replies that
wait for those before them."""

import threading
from concurrent.futures import Future

from tasks.chat.reply import Reply

MOST_HELD = 16_384
HELD_CHARACTERS = 50_000_000
"""Replies wait for those before them: so many, and so much, at most. One request that hangs for
minutes must not stop the others."""


class Held:
    """Counts. Each number has one writer.

    Args:
        window: requests that have no reply yet, at most.
    """

    def __init__(self, window: int) -> None:
        self.moved = threading.Event()
        self._begun = self._taken = 0  # written by the caller
        self._finished = self._size = 0  # written by the engine's loop
        self._window = window

    def begin(self, future: Future[Reply]) -> None:
        """A request was handed to the engine's loop."""
        self._begun += 1
        future.add_done_callback(self._finish)

    def _finish(self, future: Future[Reply]) -> None:
        """It has its reply, or never will."""
        self._finished += 1
        if not future.cancelled() and future.exception() is None:
            self._size += _size(future.result())
        self.moved.set()

    def take(self, reply: Reply) -> None:
        """A reply goes to the caller."""
        self._taken += _size(reply)

    def has_room(self, pending: int) -> bool:
        """Whether another request may be taken on; `pending` were and have not gone to the
        caller."""
        return (
            self._begun - self._finished < self._window
            and pending < MOST_HELD
            and self._size - self._taken < HELD_CHARACTERS
        )


def _size(reply: Reply) -> int:
    return len(reply.text) + len(reply.reasoning or "")
