"""Attempts at a request that has passed the gate (`tasks.chat.engine`), until its answer is in the
store or there is reason to give up.

A request is sent when a slot is free (`tasks.chat.limiter`). After a refusal or a loss it is sent
again after a random pause (exponential backoff with full jitter; Brooker, AWS Architecture Blog,
2015), before new ones, with the same Idempotency-Key. An answer counts once it is in the store; an
empty or truncated one may be requested again. Each attempt has its worst case reserved in the
budget, and is settled with what it cost.
"""

import asyncio
import random
from contextlib import suppress
from dataclasses import replace

from infra.settings import Settings
from tasks.chat.answer_record import AnswerRecord, RecordStore, RequestState
from tasks.chat.breaker import Breaker
from tasks.chat.budget import Budget, Cost, Prices
from tasks.chat.limiter import Limiter
from tasks.chat.meter import Meter
from tasks.chat.reply import Reply, error_status, read
from tasks.chat.request import ChatRequest
from tasks.chat.transport import Answer, Failure, Transport

FIRST_DELAY = 0.5  # seconds, doubled after each failure of a request
LONGEST_DELAY = 60.0
MALFORMED_TRIES = 3


class Attempts:
    """The attempts at all requests of one engine, in its event loop.

    Args:
        longer: ask a truncated answer once more, with twice its bound of tokens.

    Attributes:
        waiting: digests of requests without a reply.
        final: hashes of digests whose final answer was read or written here.
        settled: set when the budget may have room again, and when nothing more is sent.
        error: why nothing more is sent; None while requests are.
    """

    def __init__(
        self,
        transport: Transport,
        store: RecordStore,
        breaker: Breaker,
        meter: Meter,
        budget: Budget,
        prices: Prices,
        settings: Settings,
        *,
        longer: bool,
    ) -> None:
        self.transport, self.store, self.breaker, self.meter = transport, store, breaker, meter
        self.budget, self.prices, self.settings, self.longer = budget, prices, settings, longer
        self.limiter = Limiter(settings.teacher_concurrency)
        self.waiting, self.final = set[str](), set[int]()
        self.settled, self._stopped = asyncio.Event(), asyncio.Event()
        self.error: BaseException | None = None
        self._writing = asyncio.Semaphore(settings.teacher_concurrency)

    def stop(self, error: BaseException) -> None:
        """Send nothing more: who waits for a slot, a pause or the budget gets the first error."""
        if self.error is None or self.error is error:
            self.error = error
            self.limiter.close(error)
            self._stopped.set()
            self.settled.set()

    def open(self) -> None:
        """Send again."""
        self.error = None
        self.limiter.open()
        self._stopped.clear()

    async def slot(self, reserved: Cost, *, first: bool) -> float:
        """Wait for a slot; see `Limiter.acquire`. The reservation is given back on an error."""
        try:
            return await self.limiter.acquire(first=first)
        except BaseException:
            self._settle(reserved, Cost())
            raise

    async def answer(self, state: RequestState, reserved: Cost, sent: float) -> Reply:
        """Attempts until there is a final answer, or reason to give up. Begins with a slot and a
        reservation."""
        counted = malformed = 0
        while True:
            counts = True
            outcome, cost = await self._attempt(state, reserved, sent)
            state.attempts += 1
            if isinstance(outcome, AnswerRecord):
                state.record, state.doubtful, counted = outcome, Cost(), 0
                final = outcome.is_final(state.request, self.longer)
                if final:
                    self.final.add(hash(state.request.digest))
            else:
                counts = self._counts(state.request, outcome)
                counted += counts
                malformed += counts and outcome.kind == "malformed"
                state.doubtful += cost
                if (
                    counted >= self.settings.teacher_attempts
                    or malformed >= MALFORMED_TRIES
                    or outcome.kind in ("rejected", "filtered")
                ):
                    return state.lost(outcome)
                await self._back_off(max(1, counted))
                final = False
            reserved = self.budget.worst(state.request, self.prices, state.bound)
            if not final and await self.reserve(reserved):
                # a failure that does not count leaves it to the others to tell: they go first
                sent = await self.slot(reserved, first=counts)
            elif isinstance(outcome, AnswerRecord):
                return outcome.reply(state.account, cached=False, attempts=state.attempts)
            else:
                return state.lost(outcome, "; no budget is left for another attempt")

    async def reserve(self, most: Cost) -> bool:
        """Reserve the most that an attempt can cost, once requests under way have left room by
        costing less than their worst case. False: there is none, with none under way. Raises the
        error of `stop`."""
        while not self.budget.reserve(most):
            if self.error is not None:
                raise self.error
            if self.budget.in_flight.tokens <= 0:
                return False
            self.settled.clear()
            await self.settled.wait()
        return True

    async def _attempt(
        self, state: RequestState, reserved: Cost, sent: float
    ) -> tuple[AnswerRecord | Failure, Cost]:
        """One attempt, with a slot that is free afterwards, and what it cost."""
        self.meter.count("requests")
        request, actual, slot = state.request, reserved, True
        try:  # a request that is interrupted from here on may be billed
            body, answered = request.encoded(state.bound), self.breaker.answered
            sending = await self.transport.send(body, request.path, state.key, answered=answered)
            outcome = self._read(state, sending) if isinstance(sending, Answer) else sending
            if isinstance(outcome, Failure):
                actual = reserved if outcome.perhaps_paid else Cost()
                self._failed(request, outcome, sent)
                return outcome, actual
            new, actual = outcome
            async with self._writing:  # a slow store slows the asking down
                self.limiter.release()
                slot = False
                await self.store.keep(request, new)
            return new, actual
        finally:
            if slot:
                self.limiter.release()
            self._settle(reserved, actual)

    def _settle(self, reserved: Cost, actual: Cost) -> None:
        self.budget.settle(reserved, actual)
        self.settled.set()

    def _read(self, state: RequestState, answer: Answer) -> tuple[AnswerRecord, Cost] | Failure:
        """The record of a body with status 200, and the cost of this body alone."""
        self.limiter.pause(min(answer.pause, LONGEST_DELAY))
        content, value = read(answer.body)
        if content.problem == "malformed":
            if status := error_status(value):
                refused = self.transport.refused(status, {}, answer.body, self.breaker.answered)
                return replace(refused, perhaps_paid=bool(value.get("choices")))
            return Failure("malformed", content.detail, perhaps_paid=True)
        self.breaker.succeeded()
        self.limiter.succeeded()
        new, cost = state.answered(value, content, self.prices)
        self.meter.count("answers", cost.tokens)
        return new, cost

    def _failed(self, request: ChatRequest, failure: Failure, sent: float) -> None:
        self.meter.count(failure.kind)
        if failure.kind == "rejected":
            self.breaker.rejected(request.digest, failure.detail)
        elif failure.kind == "filtered":  # it works
            self.breaker.succeeded()
        else:
            self.limiter.pause(self.breaker.failed(request.digest, sent, failure))
            if failure.kind == "rate_limited" or self._counts(request, failure):
                self.limiter.failed(sent)

    def _counts(self, request: ChatRequest, failure: Failure) -> bool:
        return self.breaker.counts(request.digest, failure, len(self.waiting))

    async def _back_off(self, failures: int) -> None:
        """Wait between two attempts. Raises the error of `stop` when there will be none."""
        delay = random.uniform(0, min(LONGEST_DELAY, FIRST_DELAY * 2 ** min(failures - 1, 16)))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopped.wait(), delay)
            assert self.error is not None
            raise self.error
