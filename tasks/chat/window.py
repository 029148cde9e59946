"""An engine's memory for its caller: requests without a reply, and replies that wait for earlier
ones."""

import threading
from collections import deque
from concurrent.futures import Future
from typing import Generic, TypeVar

from tasks.chat.reply import Reply

T = TypeVar("T")

MOST_REPLIES = 16_384
MOST_CHARACTERS = 50_000_000
"""Bounds of the replies that wait for earlier ones, large enough that one request that hangs for
minutes does not stop the others."""


class Window(Generic[T]):
    """Items and the replies to their requests, in order. Each number has one writer.

    Args:
        size: the most requests without a reply.
    """

    def __init__(self, size: int) -> None:
        self.moved = threading.Event()
        self._pending: deque[tuple[T, Future[Reply]]] = deque()
        self._begun = self._taken = 0  # written by the caller
        self._finished = self._characters = 0  # written by the engine's loop
        self._most = size

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def first(self) -> Future[Reply]:
        """The caller's next reply."""
        return self._pending[0][1]

    def add(self, item: T, future: Future[Reply]) -> None:
        """Add a request that went to the engine's loop."""
        self._begun += 1
        self._pending.append((item, future))
        future.add_done_callback(self._finish)

    def _finish(self, future: Future[Reply]) -> None:
        """Record that a request has its reply, or never will."""
        self._finished += 1
        if not future.cancelled() and future.exception() is None:
            self._characters += _characters(future.result())
        self.moved.set()

    def take(self) -> tuple[T, Reply]:
        """Remove and return the first item and its reply. Raises the error of the reply's
        future."""
        item, reply = self._pending[0][0], self.first.result()
        self._pending.popleft()
        self._taken += _characters(reply)
        return item, reply

    def has_room(self) -> bool:
        """Whether there is room for another request."""
        return (
            self._begun - self._finished < self._most
            and len(self._pending) < MOST_REPLIES
            and self._characters - self._taken < MOST_CHARACTERS
        )


def _characters(reply: Reply) -> int:
    return len(reply.text) + len(reply.reasoning or "")
