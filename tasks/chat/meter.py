"""The numbers of an engine's progress line: counts, rates of the last seconds, money."""

import time
from collections import Counter, deque
from dataclasses import dataclass

from tasks.chat.budget import Cost
from tasks.chat.reply import Reply

_SECONDS = 15
"""Seconds over which rates are means."""


@dataclass
class _Second:
    number: int
    answers: int = 0
    tokens: int = 0


class Meter:
    """Counts. The engine's thread calls `count`, and one thread `give`, so that each number has one
    writer.

    Attributes:
        counts: requests sent as `requests`, bodies that came back as `answers`, failed attempts by
            kind.
        replies: replies given as `done`, stored ones as `cached`, and those with a problem by its
            name.
        cost: of the replies given.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.replies: Counter[str] = Counter()
        self.cost = Cost()
        self._seconds: deque[_Second] = deque(maxlen=_SECONDS)
        self._began = time.monotonic()

    def count(self, what: str, tokens: int = 0) -> None:
        """Count one of `requests`, `answers`, or a kind of failure; `tokens`: those of an
        answer."""
        self.counts[what] += 1
        if what == "answers":
            second = int(time.monotonic())
            if not self._seconds or self._seconds[-1].number != second:
                self._seconds.append(_Second(second))
            self._seconds[-1].answers += 1
            self._seconds[-1].tokens += tokens

    def give(self, reply: Reply) -> None:
        """Count a reply that goes to the caller."""
        self.replies["done"] += 1
        self.replies["cached"] += reply.cached
        if reply.problem is not None:
            self.replies[reply.problem] += 1
        self.cost += Cost(reply.input_tokens, reply.output_tokens, reply.usd)

    def values(self) -> dict[str, float]:
        """`totals`, and `requests_per_second` and `tokens_per_second` (prompt and response) now."""
        now = time.monotonic()
        recent = [second for second in list(self._seconds) if second.number > now - _SECONDS]
        length = max(1.0, min(_SECONDS, now - self._began))
        answers = sum(second.answers for second in recent) / length
        tokens = sum(second.tokens for second in recent) / length
        return {**self.totals(), "requests_per_second": answers, "tokens_per_second": tokens}

    def totals(self) -> dict[str, float]:
        """All counts, and the cost of the replies: `usd`, `input_tokens`, `output_tokens`."""
        totals = [*self.counts.items(), *self.replies.items(), *self.cost._asdict().items()]
        return {name: float(value) for name, value in totals}
