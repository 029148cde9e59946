"""What an engine has in memory for its caller: requests that have no reply yet, and replies that
wait for those before them."""

import threading
from collections import deque
from concurrent.futures import Future
from typing import Generic, TypeVar

from tasks.chat.reply import Reply

T = TypeVar("T")

MOST_REPLIES = 16_384
MOST_CHARACTERS = 50_000_000
"""Replies wait for those before them: so many, and so much, at most. One request that hangs for
minutes must not stop the others."""


class Window(Generic[T]):
    """Items and the replies to their requests, in order. Each number has one writer.

    Args:
        size: requests that have no reply yet, at most.
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
        """The reply that the caller gets next."""
        return self._pending[0][1]

    def add(self, item: T, future: Future[Reply]) -> None:
        """A request was handed to the engine's loop."""
        self._begun += 1
        self._pending.append((item, future))
        future.add_done_callback(self._finish)

    def _finish(self, future: Future[Reply]) -> None:
        """It has its reply, or never will."""
        self._finished += 1
        if not future.cancelled() and future.exception() is None:
            self._characters += _characters(future.result())
        self.moved.set()

    def take(self) -> tuple[T, Reply]:
        """The first item and its reply, which goes to the caller. Raises what the reply's future
        does."""
        item, reply = self._pending[0][0], self.first.result()
        self._pending.popleft()
        self._taken += _characters(reply)
        return item, reply

    def has_room(self) -> bool:
        """Whether another request may be taken on."""
        return (
            self._begun - self._finished < self._most
            and len(self._pending) < MOST_REPLIES
            and self._characters - self._taken < MOST_CHARACTERS
        )


def _characters(reply: Reply) -> int:
    return len(reply.text) + len(reply.reasoning or "")
