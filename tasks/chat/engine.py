"""The engine: many requests at a time, each answered once, whatever the endpoint does.

1. Look the answer up in the store. If it is there, nothing is sent.
2. At the gate, one request after the other in order: wait until its worst case fits into the
   budget. If it does not fit although nothing is under way any more, it and all later ones are
   `unasked`, so that costs decide which, and not speed.
3. Attempt it until its answer is in the store (`tasks.chat.attempts`).

Requests under way at a kill (at most `teacher_concurrency`, and as many whose answer is being
written) are sent again with the same Idempotency-Key: a provider that honours it bills once,
another twice. Answers in the store are never requested again.

asyncio runs in a thread of its own, and further threads read and write the store, so that neither
waits for the other, nor for the caller. Memory is bounded (`tasks.chat.window`)."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, Self, TypeVar

from infra.context import context
from infra.settings import Settings
from infra.store.answers import Answers
from schemas.base import digest
from tasks.chat.answer_record import RecordStore, RequestState
from tasks.chat.attempts import Attempts
from tasks.chat.breaker import Breaker
from tasks.chat.budget import Budget, Cost, Prices
from tasks.chat.meter import Meter
from tasks.chat.provider import Endpoint, endpoint_of
from tasks.chat.reply import Reply
from tasks.chat.request import ChatRequest
from tasks.chat.transport import Transport
from tasks.chat.window import Window

T = TypeVar("T")
Progress = Callable[[int, Mapping[str, float]], None]
"""Called with the number of replies given, and with the numbers of `Meter.values`, `in_flight` and
`limit`."""

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

    @classmethod
    def of(cls, config: Any, answers: Answers, *, account: Any, **more: Any) -> Self:
        """The engine of the model in a config, within the config's budget.

        Args:
            config: an ApiModel with `prices` and `max_usd`.
            account: JSON: who pays, the same for a stage and for its continuation after a kill.
            more: other arguments of an engine.

        Raises:
            InputError: the endpoint or its key is not set, or wrong.
        """
        budget = Budget(config.max_usd, account=digest(account))
        endpoint, prices = endpoint_of(config.provider), config.prices
        return cls(endpoint, answers, budget=budget, prices=prices, **more)

    def __enter__(self) -> Self:
        slots = self.settings.teacher_concurrency
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="chat", daemon=True)
        self._thread.start()
        self.store = RecordStore(self.answers, min(slots, _STORE_THREADS))
        self._under_way: dict[str, asyncio.Event] = {}
        self._last: asyncio.Event | None = None
        connecting = asyncio.run_coroutine_threadsafe(self._connect(), self.loop)
        self.transport = connecting.result()
        shared = self.breaker, self.meter, self.budget, self.prices, self.settings
        self._attempts = Attempts(self.transport, self.store, *shared, longer=self.longer)
        self.final = self._attempts.final
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
                asked, _ = self._begin(request)
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
            if self._attempts.error is not None and not window.first.done():
                raise self._attempts.error
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
            "in_flight": float(self._attempts.limiter.active),
            "limit": float(int(self._attempts.limiter.limit)),
        }

    async def _drain(self) -> None:
        """Send nothing more, and wait for requests under way, so that answers that may cost money
        are stored."""
        failing, settings = self._attempts.error is not None, self.settings
        patience = settings.teacher_timeout_seconds if failing else 0.8 * settings.stop_seconds
        if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            self._attempts.stop(self._attempts.error or _Halted())
            _, late = await asyncio.wait(tasks, timeout=patience)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=1.0)
        if isinstance(self._attempts.error, _Halted):  # be ready to be asked again
            self._last = None
            self._attempts.open()

    def _begin(self, request: ChatRequest) -> tuple[Coroutine[Any, Any, Reply], asyncio.Event]:
        """What answers a request, in its turn at the gate, and the event that it has passed it."""
        before, self._last = self._last, asyncio.Event()
        return self._answer(request, before, self._last), self._last

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
                if self._attempts.error is not None:
                    raise self._attempts.error
                asked, passed = self._begin(request)
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
        self._attempts.waiting.add(request.digest)
        try:
            return await self._answer_in_turn(request, before, passed)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._attempts.stop(error)
            raise
        finally:
            self._attempts.waiting.discard(request.digest)
            passed.set()

    async def _answer_in_turn(
        self, request: ChatRequest, before: asyncio.Event | None, passed: asyncio.Event
    ) -> Reply:
        record = await self.store.record(request)
        if before is not None:
            await before.wait()
        if self._attempts.error is not None:
            raise self._attempts.error
        twin = self._under_way.get(request.digest)
        if twin is not None or hash(request.digest) in self._attempts.final:
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
            self._attempts.final.add(hash(request.digest))
            return record.reply(self.budget.account, cached=True)
        state = RequestState(request, self.budget.account, record)
        reserved = self.budget.worst(request, self.prices, state.bound)
        if self.budget.closed or not await self._attempts.reserve(reserved):
            self.budget.closed = True
            if record is not None:
                return record.reply(self.budget.account, cached=True)
            return Reply("", problem="unasked", detail="the budget is spent")
        self._under_way[request.digest] = asyncio.Event()
        try:
            sent = await self._attempts.slot(reserved, first=False)
            passed.set()
            return await self._attempts.answer(state, reserved, sent)
        finally:
            self._under_way.pop(request.digest).set()
