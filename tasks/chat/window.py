"""What an engine has in memory for its caller: requests that have no reply yet, and replies that
wait for those before them."""

import threading
from concurrent.futures import Future

from tasks.chat.reply import Reply

MOST_REPLIES = 16_384
MOST_CHARACTERS = 50_000_000
"""Replies wait for those before them: so many, and so much, at most. One request that hangs for
minutes must not stop the others."""


class Window:
    """Counts. Each number has one writer.

    Args:
        size: requests that have no reply yet, at most.
    """

    def __init__(self, size: int) -> None:
        self.moved = threading.Event()
        self._begun = self._taken = 0  # written by the caller
        self._finished = self._characters = 0  # written by the engine's loop
        self._most = size

    def begin(self, future: Future[Reply]) -> None:
        """A request was handed to the engine's loop."""
        self._begun += 1
        future.add_done_callback(self._finish)

    def _finish(self, future: Future[Reply]) -> None:
        """It has its reply, or never will."""
        self._finished += 1
        if not future.cancelled() and future.exception() is None:
            self._characters += _characters(future.result())
        self.moved.set()

    def take(self, reply: Reply) -> None:
        """A reply goes to the caller."""
        self._taken += _characters(reply)

    def has_room(self, pending: int) -> bool:
        """Whether another request may be taken on; `pending` were and have not gone to the
        caller."""
        return (
            self._begun - self._finished < self._most
            and pending < MOST_REPLIES
            and self._characters - self._taken < MOST_CHARACTERS
        )


def _characters(reply: Reply) -> int:
    return len(reply.text) + len(reply.reasoning or "")
