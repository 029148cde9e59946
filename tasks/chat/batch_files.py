"""Batch files: files of requests that a provider answers within a day, at half the price (OpenAI's
/v1/files and /v1/batches).

Requests come in chunks. A chunk's open requests go into one batch, a *round*; those still open
afterwards (expired, failed on the provider's side, empty, or too dear before) go into the next.
Answers are stored one by one, as in `tasks.chat.engine`.

A kill costs nothing: the store keeps the batch's id below `answers/`, under the digest of its chunk
and round, and a batch submitted just before the kill is found again by the same name in its
metadata. Chunks depend on count and size of the requests alone, so a rerun makes the same ones.
Prices are the config's; with a provider's discount for batches, the bill is smaller than the budget
assumes.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from schemas.base import InputError, StageFailed, digest
from tasks.chat.answer_record import RequestState
from tasks.chat.budget import Cost
from tasks.chat.engine import ChatEngine
from tasks.chat.reply import Reply, read_value
from tasks.chat.request import ChatRequest
from tasks.chat.transport import Failure, is_filtered

if TYPE_CHECKING:
    from openai.types import Batch

T = TypeVar("T")
C = TypeVar("C")

CHUNK = 5000
"""Requests in a chunk, which stay in memory until they are answered. OpenAI takes 50,000."""
_CHUNK_BYTES = 50_000_000  # OpenAI takes 200 MB
POLL_SECONDS = 20.0
_RECENT = 500
"""The number of newest batches to search for one that a killed process submitted."""
_ID = 60
"""Characters of a request's digest in its custom_id, which may have 64 in all at OpenRouter."""
_IDLE_ROUNDS = 3
"""Consecutive batches without a single answer after which the rest counts as failed."""
_URL: Literal["/v1/chat/completions"] = "/v1/chat/completions"
log = logging.getLogger("lyceum")
_OVER = ("completed", "expired", "failed", "cancelled")


def ask_all(
    engine: ChatEngine, requests: Iterable[tuple[T, ChatRequest]]
) -> Iterator[tuple[T, Reply]]:
    """Yield each item with the reply to its request, in order. Raises what `ChatEngine.ask_singly`
    and `ask_in_batches` do."""
    batches = engine.settings.teacher_batch
    return ask_in_batches(engine, requests) if batches else engine.ask_singly(requests)


def ask_in_batches(
    engine: ChatEngine, requests: Iterable[tuple[T, ChatRequest]]
) -> Iterator[tuple[T, Reply]]:
    """`ChatEngine.ask_singly` by batch files. Raises as that, and InputError where the provider has
    none."""
    for chunk in _chunks(requests):
        try:
            replies = engine.run(_Chunk(engine, [request for _, request in chunk]).answer())
        except InputError as error:
            raise InputError(
                f"{error} If this provider has no batch files, unset LYCEUM_TEACHER_BATCH."
            ) from error
        for (item, _), reply in zip(chunk, replies, strict=True):
            engine.give(reply)
            yield item, reply


def _chunks(requests: Iterable[tuple[T, ChatRequest]]) -> Iterator[list[tuple[T, ChatRequest]]]:
    chunk: list[tuple[T, ChatRequest]] = []
    size = 0
    for item, request in requests:
        chunk.append((item, request))
        size += len(request.encoded())
        if len(chunk) >= CHUNK or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Chunk:
    """Requests that share batches."""

    def __init__(self, engine: ChatEngine, requests: Sequence[ChatRequest]) -> None:
        self._engine, self._requests = engine, requests
        self._states = {
            request.digest: RequestState(request, engine.budget.account, None)
            for request in requests
        }
        self._named = {name[:_ID]: state for name, state in self._states.items()}
        self._rejected: dict[str, str] = {}
        self._affordable = True
        self._name = digest(["batch", *self._states])

    async def answer(self) -> list[Reply]:
        """The replies to the requests, in order. What was counted once is free."""
        states, budget = list(self._states.values()), self._engine.budget
        found = [self._engine.store.record(state.request) for state in states]
        for state, record in zip(states, await asyncio.gather(*found), strict=True):
            state.record = record
            counted = hash(state.request.digest) in self._engine.final
            if record is not None and record.account == budget.account and not counted:
                budget.settle(Cost(), record.cost)
        before = {state.request.digest for state in states if self._is_final(state)}
        number = idle = 0
        while (
            idle < _IDLE_ROUNDS
            and (useful := await self._round(digest([self._name, number]))) is not None
        ):
            number, idle = number + 1, 0 if useful else idle + 1
        return [self._reply(request, cached=request.digest in before) for request in self._requests]

    def _is_final(self, state: RequestState) -> bool:
        request, record = state.request, state.record
        final = record is not None and record.is_final(request, self._engine.longer)
        return final or request.digest in self._rejected

    def _heard(self) -> int:
        """The number of answers and rejections."""
        states = self._states.values()
        return len(self._rejected) + sum(one.record.asked for one in states if one.record)

    async def _round(self, name: str) -> bool | None:
        """Ask the open requests, as far as the budget goes. None: there are none, or none is
        affordable; False: no answer came."""
        open_ = [state for state in self._states.values() if not self._is_final(state)]
        if not open_:
            return None
        before, reserved = self._heard(), Cost()
        batch = await self._submitted_before(name)
        resumed = batch is not None
        if batch is None:
            lines, reserved = self._affordable_lines(open_)
            if not lines:
                self._affordable = False
                return None
            self._engine.meter.counts["requests"] += len(lines)
            batch = await self._submit(name, lines)
            await self._note(name, batch.id)
        try:
            batch = await self._finished(name, batch)
            await self._collect(batch)
        finally:
            self._engine.budget.settle(reserved, Cost())
        return resumed or self._heard() > before

    def _affordable_lines(self, open_: Sequence[RequestState]) -> tuple[list[dict[str, Any]], Cost]:
        """The batch's lines, in order until the first that exceeds the budget, and the most that
        they can cost."""
        lines, total = [], Cost()
        for state in open_:
            request, budget = state.request, self._engine.budget
            worst = budget.worst(request, self._engine.prices, state.bound)
            if not budget.reserve(worst):
                break
            total += worst
            name = f"{request.digest[:_ID]}-{state.record.asked if state.record else 0}"
            sent = {"method": "POST", "url": _URL, "body": request.body(state.bound)}
            lines.append({"custom_id": name, **sent})
        return lines, total

    async def _submitted_before(self, name: str) -> "Batch | None":
        """The unfinished batch of this round that an earlier process submitted, if any."""
        client = self._engine.transport.client
        raw = await self._engine.store.get(name)
        if raw:
            batch = await self._insist(lambda: client.batches.retrieve(raw.decode()), missing=True)
            if batch is not None:
                return batch
        return await self._insist(partial(self._listed, name))

    async def _listed(self, name: str) -> "Batch | None":
        """The newest batch of this round that may still be answered, if any."""
        seen = 0
        async for batch in self._engine.transport.client.batches.list(limit=100):
            named = (batch.metadata or {}).get("lyceum") == name
            if named and batch.status not in ("failed", "cancelling", "cancelled"):
                return batch
            seen += 1
            if seen == _RECENT:
                break
        return None

    async def _submit(self, name: str, lines: Sequence[dict[str, Any]]) -> "Batch":
        client = self._engine.transport.client
        content = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        upload = ("requests.jsonl", content)
        file = await self._insist(lambda: client.files.create(file=upload, purpose="batch"))
        assert file is not None

        async def submitted() -> "Batch":
            # where the answer to an earlier try was lost, the batch was not
            return await self._listed(name) or await client.batches.create(
                input_file_id=file.id,
                endpoint=_URL,
                completion_window="24h",
                metadata={"lyceum": name},
                extra_headers={"Idempotency-Key": name},
            )

        batch = await self._insist(submitted)
        assert batch is not None
        return batch

    async def _note(self, name: str, batch: str) -> None:
        await self._engine.store.put(name, batch.encode())

    async def _finished(self, name: str, batch: "Batch") -> "Batch":
        """The batch after its end. Raises StageFailed when the provider refused it."""
        client, counts = self._engine.transport.client, self._engine.meter.counts
        while batch.status not in _OVER:
            if batch.request_counts:
                counts["batch_total"] = batch.request_counts.total
                counts["batch_completed"] = batch.request_counts.completed
            await asyncio.sleep(POLL_SECONDS)
            found = await self._insist(partial(client.batches.retrieve, batch.id))
            assert found is not None
            batch = found
        if batch.status in ("failed", "cancelled") and not batch.output_file_id:
            await self._note(name, "")  # a rerun submits the batch again
            errors = (batch.errors and batch.errors.data) or []
            reasons = "; ".join(str(error.message) for error in errors) or "no reason given"
            raise StageFailed(
                f"batch {batch.id} of {self._engine.endpoint.provider}: {batch.status}:"
                f" {self._engine.endpoint.scrub(reasons)}. Fix that, or unset"
                " LYCEUM_TEACHER_BATCH; answers that arrived are kept."
            )
        return batch

    async def _collect(self, batch: "Batch") -> None:
        """Store every answer of the batch's files."""
        client = self._engine.transport.client
        for file in filter(None, (batch.output_file_id, batch.error_file_id)):
            content = await self._insist(partial(client.files.content, file), missing=True)
            if content is None:
                log.warning("%s is gone: what it answered is asked again where it was lost", file)
                continue
            lines = content.content.splitlines()
            await asyncio.gather(*(self._keep(json.loads(line)) for line in lines))

    async def _keep(self, line: dict[str, Any]) -> None:
        name, _, asked = str(line.get("custom_id")).partition("-")
        state = self._named.get(name[:_ID])
        if state is None or (state.record and state.record.asked > int(asked)):
            return  # another chunk's, or kept before a kill
        engine, response = self._engine, line.get("response") or {}
        status, content = response.get("status_code"), read_value(response.get("body"))
        if status != 200 or content.problem == "malformed":
            said = json.dumps(line.get("error") or response.get("body"))[:300]
            engine.meter.count("rejected" if status == 400 else "server_error")
            if status == 400:
                self._rejected[state.request.digest] = engine.endpoint.scrub(said)
            return
        record, cost = state.answered(response["body"], content, engine.prices)
        await engine.store.keep(state.request, record)
        state.record = record
        engine.budget.settle(Cost(), cost)
        engine.meter.count("answers", cost.tokens)

    def _reply(self, request: ChatRequest, *, cached: bool) -> Reply:
        record, final = self._states[request.digest].record, self._engine.final
        if record is not None:
            twin = hash(request.digest) in final
            final.add(hash(request.digest))
            account = None if twin else self._engine.budget.account
            asked = 0 if cached or twin else record.asked
            return record.reply(account, cached=cached or twin, attempts=asked)
        if said := self._rejected.get(request.digest):
            return Reply("", problem="refused" if is_filtered(said) else "failed", detail=said)
        if self._affordable:
            return Reply("", problem="failed", detail="the provider's batches did not answer it")
        return Reply("", problem="unasked", detail="the budget is spent")

    async def _insist(self, call: Callable[[], Awaitable[C]], *, missing: bool = False) -> C | None:
        """The result of a call, repeated while the provider does not answer. `missing`: return None
        if the object does not exist.

        Raises StageFailed when it has not answered for `teacher_dead_seconds`, or asks to wait
        longer.
        """
        began, delay = time.monotonic(), 0.5
        while True:
            outcome = await self._engine.transport.attempt(call, answered=missing)
            if not isinstance(outcome, Failure):
                return outcome
            if outcome.kind == "rejected":
                if missing:
                    return None
                raise InputError(f"the provider refuses: {outcome.detail}.")
            waited = time.monotonic() - began + (outcome.wait or 0.0)
            if waited > self._engine.settings.teacher_dead_seconds:
                raise StageFailed(
                    f"{self._engine.endpoint.url} does not answer: {outcome.detail}. Run again: the"
                    " batch goes on meanwhile."
                )
            await asyncio.sleep(outcome.wait or delay)
            delay = min(2 * delay, POLL_SECONDS)
