"""Answering requests as they arrive, in the slots of `tasks.sampling.slot_programs`: a row that
ends makes room for the next one in the queue while the others go on.

One thread computes (`run`); any other asks and is told. The queue is bounded: what does not fit is
refused at once, and nothing that was taken is dropped. Rows wait in the order in which they came.
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
    """How a row is drawn: token t from `fold_in(fold_in(key(seed), row), t)`. `told`: its
    log-probabilities are wanted."""

    temperature: float
    top_p: float
    seed: int
    row: int
    told: bool


@dataclass(frozen=True)
class Drawn:
    """The next tokens of a row. The lists of log-probabilities are those of `ServedPrograms`, empty
    where nobody asked for them.

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
    """An answer that was asked for.

    Attributes:
        prompt: tokens.
        most: tokens that it may have.
        tell: called with what was drawn, by the engine's thread, until one has a `finish`.
        left: nobody listens any more; its slot is given to another.
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
        prompt_length, response_length: tokens that a prompt and an answer have at most.
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
        """Args: slots: rows that are decoded at a time; places: of rows that wait for a slot."""
        self.loaded, self.places = loaded, places
        self.prompt_length, self.response_length = prompt_length, response_length
        self._programs = ServedPrograms(
            loaded,
            batch_size=slots,
            prompt_length=prompt_length,
            response_length=response_length,
            sampled=True,
            top_k=None,
            top_p=None,
        )
        self._device = Device(self._programs)
        self._slots: list[Row | None] = [None] * slots
        self._waiting: deque[Row] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def ask(self, rows: Sequence[Row]) -> None:
        """Take rows into the queue, all or none. Raises Busy or Closed."""
        with self._changed:
            if self._closed:
                raise Closed
            if len(self._waiting) + len(rows) > self.places:
                raise Busy
            self._waiting.extend(rows)
            self._changed.notify()

    def load(self) -> tuple[int, int]:
        """Rows that are decoded, and rows that wait."""
        with self._changed:
            return sum(row is not None for row in self._slots), len(self._waiting)

    def close(self) -> None:
        """End `run` soon; what is not answered by then is told so."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def warm_up(self) -> None:
        """Compile what short answers take, which else the first client waits for; for who is about
        to `run`. What longer texts take is compiled when one comes."""
        told: list[Drawn] = []
        how = Sampling(temperature=0.0, top_p=EVERY, seed=0, row=0, told=False)
        self.ask([Row([self.loaded.tokenizer.bos_id], 2, how, told.append)])
        while not (told and told[-1].finish) and self._admit():
            self._advance()

    def run(self) -> None:
        """Answer until `close`. Whatever ends it, every row that was taken is told of its end."""
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
        """Wait for something to do, and put rows that wait into free slots; False: closed."""
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
        """What a chunk has of a row, up to its end."""
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
