"""Answers many prompts of many lengths: finished rows of a batch make room for the next prompts
while the others go on.

`tasks.sampling.sampler` pads every prompt to one length and goes on until a batch's slowest row has
ended its turn. Here a batch has `batch_size` slots. The sampler reads prompts, the longest first,
into free slots, some at a time; all slots then decode a few tokens in one program, rows that ended
leave, and so on: the continuous batching of Orca (OSDI 2022), with fixed shapes
(`tasks.sampling.slot_programs`).

The rows that share a chunk depend on when rows end, so they are a function of the prompts and the
model, and so is every byte of the result. Rows in a journal take their former slots and chunks
without being computed; only chunks with other rows are.

Training samples with the other sampler: it compiles one program, and a row's bytes, including
log-probabilities, do not depend on its batch. Slots would not make a rollout faster either
(docs/measurements.md, 2026-11-23). An answer that `lyceum ask` streams is one slot
(`tasks.sampling.streaming`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasks.contract.journal import Journal
from tasks.data.tokens import Turns, pad_left, prompt_tokens
from tasks.sampling.sampler import Completion, completion
from tasks.sampling.slot_programs import Device, SlotPrograms


@dataclass(frozen=True)
class Request:
    """A prompt to be answered. Token t is drawn from `fold_in(fold_in(key(seed), row), t)`, as in
    `tasks.sampling.sampler`. `turns`: the conversation before it."""

    prompt: str
    row: int
    seed: int = 0
    turns: Turns = ()


@dataclass
class _Row:
    """A request in a slot. `answer`: the answer of a row in a journal, which is not computed."""

    index: int
    length: int
    answer: list[int] | None
    drawn: list[int] = field(default_factory=list)


class SlotSampler(SlotPrograms):
    """Answers requests with a model's current weights; each device has a part of the slots.

    Args:
        batch_size: slots.
        prompt_length, response_length: the most tokens of a prompt and of a response.
        sampled: whether there will be a temperature. Random numbers are a third of what compiles.
        top_k, top_p: see `schemas.trainer_config.Nucleus`.
    """

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float = 0.0,
        journal: Journal | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Answer all requests; item i answers request i.

        Args:
            temperature: 0 is greedy; more only where `sampled`.
            journal: answers in it are not computed again, others are added, `batch_size` at a time;
                it belongs to this one call, with these arguments.
            progress: called with the number of finished requests.

        Raises:
            TooLong: a prompt has more tokens than `prompt_length`.
            ValueError: a temperature without `sampled`.
        """
        if temperature and not self.sampled:
            raise ValueError(
                f"temperature = {temperature:g} of a SlotSampler that was made for greedy answers"
            )
        tokenizer = self.loaded.tokenizer
        prompts = [prompt_tokens(tokenizer, one.prompt, one.turns) for one in requests]
        pad_left(prompts, self.prompt_length, tokenizer.pad_id)
        entries = [f"{entry:06d}" for entry in range(-(-len(requests) // self.batch_size))]
        stored = [journal.get(entry) if journal else None for entry in entries]
        known = {row["index"]: row["tokens"] for rows in stored if rows for row in rows}

        waiting = deque(sorted(range(len(requests)), key=lambda index: -len(prompts[index])))
        slots: list[_Row | None] = [None] * self.batch_size
        done: dict[int, list[int]] = {}
        pending: list[int] = []
        written, together = 0, self.together
        device = Device(self, [len(prompt) for prompt in prompts])
        while waiting or any(slots):
            free = [slot for slot, row in enumerate(slots) if row is None]
            while waiting and len(free) >= min(together, len(waiting)):
                chosen = [waiting.popleft() for _ in range(min(together, len(waiting)))]
                into, free = free[: len(chosen)], free[len(chosen) :]
                for slot, index in zip(into, chosen, strict=True):
                    slots[slot] = _Row(index, len(prompts[index]), known.get(index))
                if any(index not in known for index in chosen):
                    given: dict[str, Sequence[Any]] = {
                        "seed": [requests[index].seed for index in chosen],
                        "row": [requests[index].row for index in chosen],
                        "temperature": [temperature] * len(chosen),
                    }
                    device.admit([prompts[index] for index in chosen], given, into)
            self._advance(device, slots)
            for slot, row in enumerate(slots):
                if row is not None and self._ended(row):
                    done[row.index] = row.drawn
                    pending.append(row.index)
                    slots[slot] = None
            while len(pending) >= self.batch_size or (pending and len(done) == len(requests)):
                batch, pending = pending[: self.batch_size], pending[self.batch_size :]
                if journal and stored[written] is None:
                    answers = [{"index": index, "tokens": done[index]} for index in batch]
                    journal.put(entries[written], answers)
                written += 1
            if progress:
                progress(len(done))
        return [completion(tokenizer, done[index]) for index in range(len(requests))]

    def _advance(self, device: Device, slots: Sequence[_Row | None]) -> None:
        """One chunk for every row."""
        rows = [row for row in slots if row is not None]
        context = max(row.length + max(len(row.drawn), 1) - 1 for row in rows)
        drawn = None
        if any(row.answer is None for row in rows):
            drawn = device.decode(context)
        else:
            device.skip(context)
        stops = self.loaded.tokenizer.stop_ids
        for slot, row in enumerate(slots):
            if row is None:
                continue
            if row.answer is not None:
                row.drawn = row.answer[: (len(row.drawn) or 1) + self.chunk]
            else:
                assert drawn is not None
                row.drawn += drawn["token"][slot, 1 if row.drawn else 0 :].tolist()
                ends = (place for place, token in enumerate(row.drawn) if token in stops)
                del row.drawn[next(ends, len(row.drawn)) + 1 :]
                del row.drawn[self.response_length :]

    def _ended(self, row: _Row) -> bool:
        return (
            row.drawn[-1] in self.loaded.tokenizer.stop_ids
            or len(row.drawn) == self.response_length
        )
