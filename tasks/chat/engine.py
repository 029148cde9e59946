"""The engine: many requests at a time, each answered once, whatever the endpoint does.

1. Look the answer up in the store. If it is there, nothing is sent.
2. At the gate, one request after the other in order: wait until its worst case fits into the
   budget. If it does not fit although nothing is under way any more, it and all later ones are
   `unasked`, so that costs decide which, and not speed.
3. Send it when a slot is free (`tasks.chat.limiter`). After a refusal or a loss, send it again
   after a random pause (exponential backoff with full jitter; Brooker, AWS Architecture Blog,
   2015), before new ones, with the same Idempotency-Key.
4. Write the answer to the store; only then it counts. An empty or truncated one may be requested
   again.

Requests under way at a kill (at most `teacher_concurrency`, and as many whose answer is being
written) are sent again with the same Idempotency-Key: a provider that honours it bills once,
another twice. Answers in the store are never requested again.

asyncio runs in a thread of its own, and further threads read and write the store, so that neither
waits for the other, nor for the caller. Memory is bounded (`tasks.chat.window`)."""

import asyncio
import logging
import random
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, Self, TypeVar

from infra.context import context
from infra.settings import Settings
from infra.store.answers import Answers
from tasks.chat.answer_record import Question, Record, RecordStore
from tasks.chat.breaker import Breaker
from tasks.chat.budget import Budget, Cost, Prices
from tasks.chat.limiter import Limiter
from tasks.chat.meter import Meter
from tasks.chat.provider import Endpoint
from tasks.chat.reply import Reply, read
from tasks.chat.request import ChatRequest
from tasks.chat.transport import Answer, Failure, Transport
from tasks.chat.window import Window

T = TypeVar("T")
Progress = Callable[[int, Mapping[str, float]], None]
"""Called with the number of replies given, and with the numbers of `Meter.values`, `in_flight` and
`limit`."""

FIRST_DELAY = 0.5  # seconds, doubled after each failure of a request
LONGEST_DELAY = 60.0
MALFORMED_TRIES = 3
_WINDOW = 16  # requests per slot that are looked up, or wait for a slot, or are under way
_PROGRESS_SECONDS = 1.0
_STORE_THREADS = 32
_PACE = 0.001  # seconds that `ask` gives the store to look a request up before it makes the next
_TOLD_FAILURES = 5  # of each kind; all are counted

log = logging.getLogger("lyceum")


class _Halted(Exception):
    """The caller does not want further replies."""


class ChatEngine:
    """Sends chat completions to an endpoint. A context manager; inside it call `ask_singly`, one
    call after the other, or `ask`.

    Args:
        budget: counts on over all calls.
        longer: ask a truncated answer once more, with twice its bound of tokens.
        patience: seconds to wait for an endpoint that is down, at no request's cost; None: see
            `tasks.chat.breaker`.
        progress: called about once a second while `ask_singly` runs, in the caller's thread.
        settings: the `teacher_*` fields are read; None: those of the process.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        answers: Answers,
        *,
        budget: Budget,
        prices: Prices,
        longer: bool = False,
        patience: float | None = None,
        progress: Progress = lambda done, values: None,
        settings: Settings | None = None,
    ) -> None:
        self.endpoint, self.answers = endpoint, answers
        self.budget, self.prices, self.longer = budget, prices, longer
        self.settings = settings or context().settings
        self.meter = Meter()
        self.breaker = Breaker(
            endpoint,
            self.settings.teacher_dead_seconds if patience is None else patience,
            patient=patience is not None,
        )
        self._progress = progress
        self._told = time.monotonic()

    def __enter__(self) -> Self:
        slots = self.settings.teacher_concurrency
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="chat", daemon=True)
        self._thread.start()
        self.store = RecordStore(self.answers, min(slots, _STORE_THREADS))
        self._limiter = Limiter(slots)
        self._writing = asyncio.Semaphore(slots)
        self._settled = asyncio.Event()
        self._stopped = asyncio.Event()
        self._under_way: dict[str, asyncio.Event] = {}
        self._final: set[int] = set()  # what was answered here
        self._last: asyncio.Event | None = None
        self._waiting = set[str]()  # digests of requests without a reply
        self._error: BaseException | None = None
        self.transport: Transport = self.run(self._connect())
        return self

    async def _connect(self) -> Transport:
        return Transport(
            self.endpoint, self.settings.teacher_concurrency, self.settings.teacher_timeout_seconds
        )

    def __exit__(self, *error: object) -> None:
        self.run(self._drain())
        self.run(self.transport.close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.store.close()
        self.loop.close()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine in the engine's loop, reporting progress, and return its result."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        while not future.done():
            wait([future], _PROGRESS_SECONDS)
            self._tell()
        return future.result()

    def ask(
        self, requests: Iterable[ChatRequest], read: Callable[[ChatRequest, Reply], T]
    ) -> list[T]:
        """Return what `read` makes of each request and its reply, in order. Several threads may
        call it at a time.

        The engine's loop makes the requests, no more than a window ahead, and reads the replies:
        another thread would have to take the GIL from it for each. Neither may wait for the engine.

        Raises as `ask_singly` does.
        """
        asking = self._ask_each(requests, read)
        return asyncio.run_coroutine_threadsafe(asking, self.loop).result()

    def _turn(self) -> tuple[asyncio.Event | None, asyncio.Event]:
        """Two events: the request before has passed the gate; this one has."""
        before, self._last = self._last, asyncio.Event()
        return before, self._last

    def ask_singly(self, requests: Iterable[tuple[T, ChatRequest]]) -> Iterator[tuple[T, Reply]]:
        """Yield each item with the reply to its request, in the order in which they come.
        `requests` is read as replies are taken.

        Raises:
            InputError: a person must fix something first: key, model, URL, parameters.
            StageFailed: the endpoint has been failing for too long, or there is nothing left to pay
            with. Both after everything that is under way was answered and kept.
        """
        window: Window[T] = Window(_WINDOW * self.settings.teacher_concurrency)
        try:
            for item, request in requests:
                asked = self._answer(request, *self._turn())
                window.add(item, asyncio.run_coroutine_threadsafe(asked, self.loop))
                while window and (window.first.done() or not window.has_room()):
                    yield from self._waited(window)
            while window:
                yield from self._waited(window)
        finally:
            if window and not self.loop.is_closed():
                self.run(self._drain())

    def _waited(self, window: Window[T]) -> Iterator[tuple[T, Reply]]:
        """Wait until a pending request has its reply; return the first one, if it is that."""
        window.moved.clear()
        if not window.first.done():
            window.moved.wait(_PROGRESS_SECONDS)
            self._tell()
            if self._error is not None and not window.first.done():
                raise self._error
        if window.first.done():
            item, reply = window.take()
            self.give(reply)
            yield item, reply

    def give(self, reply: Reply) -> None:
        """Count a reply that goes to the caller, and report progress if it is time."""
        self.meter.give(reply)
        failed = reply.problem in ("failed", "malformed")
        if failed and self.meter.replies[str(reply.problem)] <= _TOLD_FAILURES:
            told = (self.endpoint.provider, reply.attempts, reply.detail)
            log.warning("%s gave no answer after %d attempts: %s", *told)
        self._tell()

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told >= _PROGRESS_SECONDS:
            self._told = now
            self._progress(self.meter.replies["done"], self.values())

    def values(self) -> dict[str, float]:
        """All values of a progress report."""
        return {
            **self.meter.values(),
            "in_flight": float(self._limiter.active),
            "limit": float(int(self._limiter.limit)),
        }

    async def _drain(self) -> None:
        """Send nothing more, and wait for requests under way, so that answers that may cost money
        are stored."""
        failing, settings = self._error is not None, self.settings
        patience = settings.teacher_timeout_seconds if failing else 0.8 * settings.stop_seconds
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            self._stop(self._error or _Halted())
            _, late = await asyncio.wait(tasks, timeout=patience)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)
        if isinstance(self._error, _Halted):  # be ready to be asked again
            self._error = self._last = None
            self._limiter.open()
            self._stopped.clear()

    def _stop(self, error: BaseException) -> None:
        if self._error is None or self._error is error:
            self._error = error
            self._limiter.close(error)
            self._stopped.set()
            self._settled.set()

    # In the engine's loop

    async def _ask_each(
        self, requests: Iterable[ChatRequest], read: Callable[[ChatRequest, Reply], T]
    ) -> list[T]:
        room = asyncio.Semaphore(_WINDOW * self.settings.teacher_concurrency)

        async def answered(request: ChatRequest, asked: Coroutine[Any, Any, Reply]) -> T:
            self.give(reply := await asked)
            return read(request, reply)

        tasks: list[asyncio.Task[T]] = []
        try:
            for request in requests:
                await room.acquire()
                if self._error is not None:
                    raise self._error
                before, passed = self._turn()
                asked = self._answer(request, before, passed)
                tasks.append(asyncio.create_task(answered(request, asked)))
                tasks[-1].add_done_callback(lambda _: room.release())
                if not self.store.at_once:  # its threads need the GIL, too
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_PACE):
                            await passed.wait()
                await asyncio.sleep(0)  # it takes its slot
                await asyncio.sleep(0)  # and is written, before the next one is made
        finally:  # whatever fails, what is under way is answered and kept
            await asyncio.gather(*tasks, return_exceptions=True)
        return [task.result() for task in tasks]

    async def _answer(
        self, request: ChatRequest, before: asyncio.Event | None, passed: asyncio.Event
    ) -> Reply:
        self._waiting.add(request.digest)
        try:
            return await self._answer_in_turn(request, before, passed)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            self._waiting.discard(request.digest)
            passed.set()

    async def _answer_in_turn(
        self, request: ChatRequest, before: asyncio.Event | None, passed: asyncio.Event
    ) -> Reply:
        record = await self.store.record(request)
        if before is not None:
            await before.wait()
        if self._error is not None:
            raise self._error
        twin = self._under_way.get(request.digest)
        if twin is not None or hash(request.digest) in self._final:
            # Its record may have come since we looked, and was counted then.
            passed.set()
            if twin is not None:
                await twin.wait()
            if record := await self.store.record(request):
                return record.reply(None, cached=True)
            return Reply("", problem="failed", detail="the same request just failed")
        if record is not None and record.account == self.budget.account:
            self.budget.settle(Cost(), record.cost)
        if record is not None and record.is_final(request, self.longer):
            self._final.add(hash(request.digest))
            return record.reply(self.budget.account, cached=True)
        question = Question(request, self.budget.account, record)
        reserved = self.budget.worst(request, self.prices, question.bound)
        if not await self._admitted(reserved):
            if record is not None:
                return record.reply(self.budget.account, cached=True)
            return Reply("", problem="unasked", detail="the budget is spent")
        self._under_way[request.digest] = asyncio.Event()
        try:
            sent = await self._slot(reserved, first=False)
            passed.set()
            return await self._ask(question, reserved, sent)
        finally:
            self._under_way.pop(request.digest).set()

    async def _admitted(self, most: Cost) -> bool:
        """Whether the budget has room. It waits for requests under way, which may cost less than
        their worst case."""
        while not self.budget.closed and not self.budget.reserve(most):
            self._settled.clear()
            if self.budget.in_flight.tokens <= 0:
                self.budget.closed = True
            else:
                await self._settled.wait()
                if self._error is not None:
                    raise self._error
        return not self.budget.closed

    def _settle(self, reserved: Cost, actual: Cost) -> None:
        self.budget.settle(reserved, actual)
        self._settled.set()

    async def _slot(self, reserved: Cost, *, first: bool) -> float:
        try:
            return await self._limiter.acquire(first=first)
        except BaseException:
            self._settle(reserved, Cost())
            raise

    async def _ask(self, question: Question, reserved: Cost, sent: float) -> Reply:
        """Attempts until there is a final answer, or reason to give up. Begins with a slot and a
        reservation."""
        counted = malformed = 0
        while True:
            outcome, cost = await self._attempt(question, reserved, sent)
            question.attempts += 1
            if isinstance(outcome, Record):
                question.record, question.doubtful, counted = outcome, Cost(), 0
                final = outcome.is_final(question.request, self.longer)
                if final:
                    self._final.add(hash(question.request.digest))
            else:
                counts = self._counts(question.request, outcome)
                counted += counts
                malformed += counts and outcome.kind == "malformed"
                question.doubtful += cost
                if (
                    counted >= self.settings.teacher_attempts
                    or malformed >= MALFORMED_TRIES
                    or outcome.kind == "rejected"
                ):
                    return question.lost(outcome)
                await self._back_off(max(1, counted))
                final = False
            reserved = self.budget.worst(question.request, self.prices, question.bound)
            if not final and self.budget.reserve(reserved):
                sent = await self._slot(reserved, first=True)
            elif isinstance(outcome, Record):
                return outcome.reply(question.account, cached=False, attempts=question.attempts)
            else:
                return question.lost(outcome, "; no budget is left for another attempt")

    async def _attempt(
        self, question: Question, reserved: Cost, sent: float
    ) -> tuple[Record | Failure, Cost]:
        """One attempt, with a slot that is free afterwards, and what it cost."""
        self.meter.count("requests")
        request, actual, slot = question.request, reserved, True
        try:  # a request that is interrupted from here on may be billed
            body, answered = request.encoded(question.bound), self.breaker.answered
            sending = await self.transport.send(body, request.path, question.key, answered=answered)
            outcome = self._read(question, sending) if isinstance(sending, Answer) else sending
            if isinstance(outcome, Failure):
                actual = reserved if outcome.perhaps_paid else Cost()
                self._failed(request, outcome, sent)
                return outcome, actual
            new, actual = outcome
            async with self._writing:  # a slow store slows the asking down
                self._limiter.release()
                slot = False
                await self.store.keep(request, new)
            return new, actual
        finally:
            if slot:
                self._limiter.release()
            self._settle(reserved, actual)

    def _read(self, question: Question, answer: Answer) -> tuple[Record, Cost] | Failure:
        """The record of a body with status 200, and the cost of this body alone."""
        self._limiter.pause(min(answer.pause, LONGEST_DELAY))
        content, value = read(answer.body)
        if content.problem == "malformed":
            return Failure("malformed", content.detail, perhaps_paid=True)
        self.breaker.succeeded()
        self._limiter.succeeded()
        new, cost = question.answered(value, content, self.prices)
        self.meter.count("answers", cost.tokens)
        return new, cost

    def _failed(self, request: ChatRequest, failure: Failure, sent: float) -> None:
        self.meter.count(failure.kind)
        if failure.kind == "rejected":
            self.breaker.rejected(request.digest, failure.detail)
        else:
            self._limiter.pause(self.breaker.failed(request.digest, sent, failure))
            if failure.kind == "rate_limited" or self._counts(request, failure):
                self._limiter.failed(sent)

    def _counts(self, request: ChatRequest, failure: Failure) -> bool:
        return self.breaker.counts(request.digest, failure, len(self._waiting))

    async def _back_off(self, failures: int) -> None:
        """Wait between two attempts. Raises the engine's error when there will be none."""
        delay = random.uniform(0, min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures - 1, 16)))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), delay)
            assert self._error is not None
            raise self._error
