"""The stored record of a request, its newest paid body with the cost of all of them, and the state
of a request under way.

A body that will be requested again (an empty or a truncated one) is stored first, so that a run
that is killed in between does not pay for it twice.
"""

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Any

from infra.store.answers import Answers
from tasks.chat.budget import Cost, Prices
from tasks.chat.reply import Content, Problem, Reply, read_value
from tasks.chat.request import ChatRequest
from tasks.chat.transport import Failure

_LATE = 0.1
"""Seconds that reads and writes wait for a thread before there is one more."""
_AT_ONCE = 0.001
"""Seconds that a read may hold up the loop: a directory needs fewer than it takes to wake a thread
and to get the GIL back from it."""

_Job = tuple[float, "asyncio.Future[Any]", Callable[..., Any], tuple[Any, ...]]

EMPTY_TRIES = 3
"""The most paid answers to a request when none of them has text."""


@dataclass(frozen=True)
class AnswerRecord:
    """The stored answer to a request.

    Attributes:
        body: JSON from the server.
        asked: the number of paid bodies, of which this is the last.
        max_tokens: the bound of this response.
        cost: of all attempts.
        account: who paid.
        content: the parsed body; not stored.
    """

    body: Any
    asked: int
    max_tokens: int | None
    cost: Cost
    account: str
    content: Content

    def to_bytes(self) -> bytes:
        value = {name: one for name, one in vars(self).items() if name != "content"}
        return json.dumps(value, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, raw: bytes) -> "AnswerRecord":
        """Raises ValueError, KeyError or TypeError for what `to_bytes` did not write."""
        value = json.loads(raw)
        content = read_value(value["body"])
        return cls(**{**value, "cost": Cost(*value["cost"]), "content": content})

    def is_final(self, request: ChatRequest, longer: bool) -> bool:
        """Whether the request should not be paid for again. `longer`: a truncated answer may be,
        once, with twice the bound."""
        if self.content.problem == "empty":
            return self.asked >= EMPTY_TRIES
        first = self.max_tokens == request.max_tokens is not None
        return not (self.content.problem == "truncated" and longer and first)

    def reply(self, account: str | None, *, cached: bool, attempts: int = 0) -> Reply:
        """The caller's reply; it is free if another account than `account` paid."""
        content = {name: one for name, one in vars(self.content).items() if name != "usage"}
        cost = self.cost if self.account == account else Cost()
        return Reply(**content, **cost._asdict(), cached=cached, attempts=attempts)


def cost_of(content: Content, request: ChatRequest, max_tokens: int | None, prices: Prices) -> Cost:
    """The cost of one body; if it has no usage, a byte of text counts as a token."""
    if content.usage is not None:
        inputs, outputs = content.usage
    else:
        text = len(f"{content.text}{content.reasoning or ''}".encode())
        outputs = text if max_tokens is None else min(text, max_tokens)
        inputs = request.most_input_tokens
    return Cost(inputs, outputs, prices.usd(inputs, outputs))


@dataclass
class RequestState:
    """A request, and the results of its attempts.

    Attributes:
        account: who pays.
        record: its newest answer.
        attempts: the number made by this process.
        doubtful: what attempts since that answer may have cost.
    """

    request: ChatRequest
    account: str
    record: AnswerRecord | None
    attempts: int = 0
    doubtful: Cost = field(default_factory=Cost)

    @property
    def bound(self) -> int | None:
        """The bound of the next response, in tokens."""
        if self.record is None:
            return self.request.max_tokens
        last, cut_off = self.record.max_tokens, self.record.content.problem == "truncated"
        return 2 * last if cut_off and last is not None else last

    @property
    def key(self) -> str:
        """The Idempotency-Key of the next answer, the same for all its attempts."""
        asked = self.record.asked if self.record else 0
        return f"{self.request.digest}-{asked}" if asked else self.request.digest

    @property
    def cost(self) -> Cost:
        """The cost of all attempts so far, without what another account paid."""
        mine = self.record is not None and self.record.account == self.account
        return self.doubtful + (self.record.cost if self.record and mine else Cost())

    def answered(self, value: Any, content: Content, prices: Prices) -> tuple[AnswerRecord, Cost]:
        """The record of a new body, and the cost of this body alone."""
        cost = cost_of(content, self.request, self.bound, prices)
        asked = self.record.asked + 1 if self.record else 1
        body = self.request.trimmed(value)
        kept = content if body is value else read_value(body)
        return AnswerRecord(body, asked, self.bound, self.cost + cost, self.account, kept), cost

    def lost(self, failure: Failure, why: str = "") -> Reply:
        """The caller's reply when this attempt was the last."""
        known: dict[str, Problem] = {"malformed": "malformed", "filtered": "refused"}
        problem = known.get(failure.kind, "failed")
        detail, tried = f"{failure.detail}{why}", self.attempts
        return Reply("", problem=problem, **self.cost._asdict(), attempts=tried, detail=detail)


class RecordStore:
    """The store of records for an event loop: threads read and write, and wake the loop once for
    all that they have done. A directory needs one thread, since more would wait for each other, and
    for reads none; a slow store gets up to `threads`.

    Attributes:
        at_once: the last read took so little that the next needs no thread.
    """

    def __init__(self, answers: Answers, threads: int) -> None:
        self._answers, self._most = answers, threads
        self._told = self.at_once = False
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._threads: list[Thread] = []
        self._start()

    async def record(self, request: ChatRequest) -> AnswerRecord | None:
        """The record of a request."""
        raw = await self.get(request.digest)
        try:
            return None if raw is None else AnswerRecord.from_bytes(raw)
        except (ValueError, KeyError, TypeError):
            return None

    async def keep(self, request: ChatRequest, record: AnswerRecord) -> None:
        """Write the record of a request."""
        await self.put(request.digest, record.to_bytes())

    async def get(self, name: str) -> bytes | None:
        """The bytes below a name."""
        if self.at_once:
            return self._read(name)
        found: bytes | None = await self._in_thread(self._read, name)
        return found

    async def put(self, name: str, value: bytes) -> None:
        """Write bytes below a name."""
        await self._in_thread(self._answers.put, name, value)

    def close(self) -> None:
        """Wait for what is under way."""
        self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _read(self, name: str) -> bytes | None:
        began = time.monotonic()
        found = self._answers.get(name)
        self.at_once = time.monotonic() - began < _AT_ONCE
        return found

    def _start(self) -> None:
        self._grown = time.monotonic()
        self._threads.append(Thread(target=self._work, name="answers", daemon=True))
        self._threads[-1].start()

    def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> "asyncio.Future[Any]":
        future = asyncio.get_running_loop().create_future()
        self._jobs.put((time.monotonic(), future, call, arguments))
        return future

    def _work(self) -> None:
        while job := self._jobs.get():
            asked, future, call, arguments = job
            late = time.monotonic() - max(asked, self._grown) > _LATE
            if late and len(self._threads) < self._most:
                self._start()
            try:
                self._done.append((future, call(*arguments), None))
            except BaseException as error:  # noqa: BLE001, it is raised where the answer is awaited
                self._done.append((future, None, error))
            if not self._told:
                self._told = True
                future.get_loop().call_soon_threadsafe(self._hand_on)
        self._jobs.put(None)  # for the next thread

    def _hand_on(self) -> None:
        self._told = False  # first, so that answers from here on announce themselves again
        while self._done:
            future, value, error = self._done.popleft()
            if future.done():  # the asking task was cancelled
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
