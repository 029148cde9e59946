"""Answers requests as they arrive, in the slots of `tasks.sampling.slot_programs`: a row that ends
makes room for the next in the queue while the others go on.

One thread computes (`run`); others queue rows and receive tokens by callback. The bounded queue
refuses rows at once when it is full, and never drops one that it took. It is first in, first out.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tasks.models.loading import LoadedModel
from tasks.sampling.slot_programs import Device
from tasks.serving.request_programs import EVERY, ServedPrograms


class Busy(Exception):
    """The queue is full."""


class Closed(Exception):
    """The engine has ended, or is about to."""


@dataclass(frozen=True)
class Sampling:
    """How to sample a row: token t from `fold_in(fold_in(key(seed), row), t)`. `told`: with
    log-probabilities."""

    temperature: float
    top_p: float
    seed: int
    row: int
    told: bool


@dataclass(frozen=True)
class Drawn:
    """The next tokens of a row. The lists of log-probabilities are those of `ServedPrograms`, empty
    unless requested.

    Attributes:
        finish: why the row has ended, None while it goes on: `stop` (at a terminator, the last
            token), `length`, or `closed` (the engine ended before).
    """

    tokens: Sequence[int] = ()
    logps: Sequence[float] = ()
    likeliest: Sequence[Sequence[tuple[int, float]]] = ()
    finish: Literal["stop", "length", "closed"] | None = None


@dataclass(eq=False)
class Row:
    """A requested answer.

    Attributes:
        prompt: tokens.
        most: the most tokens that it may have.
        tell: called in the engine's thread with the tokens drawn, until one call has a `finish`.
        left: nobody waits for it, so that its slot goes to another.
        count: tokens drawn.
    """

    prompt: Sequence[int]
    most: int
    sampling: Sampling
    tell: Callable[[Drawn], None]
    left: bool = False
    count: int = field(default=0, init=False)


class Engine:
    """Answers rows with a model.

    Attributes:
        prompt_length, response_length: the most tokens of a prompt and of an answer.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        slots: int,
        prompt_length: int,
        response_length: int,
        places: int,
    ) -> None:
        """Args: slots: rows to decode at a time; places: the length of the queue."""
        self.loaded, self.places = loaded, places
        self.prompt_length, self.response_length = prompt_length, response_length
        self._programs = ServedPrograms(
            loaded,
            batch_size=slots,
            prompt_length=prompt_length,
            response_length=response_length,
            sampled=True,
        )
        self._device = Device(self._programs)
        self._slots: list[Row | None] = [None] * slots
        self._waiting: deque[Row] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def ask(self, rows: Sequence[Row]) -> None:
        """Queue rows, all or none. Raises Busy or Closed."""
        with self._changed:
            if self._closed:
                raise Closed
            if len(self._waiting) + len(rows) > self.places:
                raise Busy
            self._waiting.extend(rows)
            self._changed.notify()

    def load(self) -> tuple[int, int]:
        """The numbers of rows in slots and in the queue."""
        with self._changed:
            return sum(row is not None for row in self._slots), len(self._waiting)

    def close(self) -> None:
        """End `run` soon; unfinished rows finish as `closed`."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def warm_up(self) -> None:
        """Compile the programs of short answers before `run`, so that the first client does not
        wait for them. Those of longer texts compile when one comes."""
        told: list[Drawn] = []
        how = Sampling(temperature=0.0, top_p=EVERY, seed=0, row=0, told=False)
        self.ask([Row([self.loaded.tokenizer.bos_id], 2, how, told.append)])
        while not (told and told[-1].finish) and self._admit():
            self._advance()

    def run(self) -> None:
        """Answer until `close`. Whatever ends it, every row that was queued gets its end."""
        try:
            while self._admit():
                self._advance()
        finally:
            with self._changed:
                self._closed = True
                left = [*filter(None, self._slots), *self._waiting]
                self._slots = [None] * len(self._slots)
                self._waiting.clear()
            for row in left:
                row.tell(Drawn(finish="closed"))

    def _admit(self) -> bool:
        """Wait for work, and put queued rows into free slots; False: closed."""
        with self._changed:
            while True:
                self._waiting = deque(row for row in self._waiting if not row.left)
                self._slots = [None if row is None or row.left else row for row in self._slots]
                if self._closed:
                    return False
                if self._waiting or any(self._slots):
                    break
                self._changed.wait()
            free = [slot for slot, row in enumerate(self._slots) if row is None]
            chosen = [self._waiting.popleft() for _ in range(min(len(free), len(self._waiting)))]
            for slot, row in zip(free, chosen, strict=False):
                self._slots[slot] = row
        placed = sorted(
            zip(chosen, free, strict=False), key=lambda one: -len(one[0].prompt)
        )  # the longest first, so that those that are read together are of like lengths
        if len(free) == len(self._slots):
            self._device.rewind()
        for start in range(0, len(placed), self._programs.together):
            rows, into = zip(*placed[start : start + self._programs.together], strict=True)
            how = [asdict(row.sampling) for row in rows]
            given = {name: [one[name] for one in how] for name in self._programs.GIVEN}
            self._device.admit([row.prompt for row in rows], given, into)
        return True

    def _advance(self) -> None:
        """One chunk for every row."""
        rows = [(slot, row) for slot, row in enumerate(self._slots) if row is not None]
        context = max(len(row.prompt) + max(row.count, 1) - 1 for _, row in rows)
        chunk = self._device.decode(context)
        for slot, row in rows:
            of_row = {name: values[slot, 1 if row.count else 0 :] for name, values in chunk.items()}
            drawn = self._drawn(row, of_row)
            row.count += len(drawn.tokens)
            if drawn.finish:
                self._slots[slot] = None
            if not row.left:
                row.tell(drawn)

    def _drawn(self, row: Row, chunk: dict[str, Any]) -> Drawn:
        """A row's tokens in a chunk, up to its end."""
        tokens = chunk["token"].tolist()[: row.most - row.count]
        stops = self.loaded.tokenizer.stop_ids
        ends = [place for place, token in enumerate(tokens) if token in stops]
        if ends:
            del tokens[ends[0] + 1 :]
        full = row.count + len(tokens) == row.most
        finish: Literal["stop", "length"] | None = "stop" if ends else "length" if full else None
        if not row.sampling.told:
            return Drawn(tokens, finish=finish)
        best = zip(chunk["likeliest"].tolist(), chunk["likeliest_logps"].tolist(), strict=True)
        pairs = [list(zip(*one, strict=True)) for one in best]
        return Drawn(tokens, chunk["logp"].tolist()[: len(tokens)], pairs[: len(tokens)], finish)
