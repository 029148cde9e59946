"""The request to a teacher and its results: a `Lesson` in, `Row`s out."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

from infra.store.answers import Answers
from schemas.examples import Domain, Example, Grounding, PreferencePair, Prompt
from tasks.data.dropped import Dropped

Row = Example | PreferencePair | Prompt | Dropped
"""A verified trace; a verified beside a rejected response; a prompt that no sample solved; or a row
that became none of these, and why."""

FILES: dict[type, str] = {
    Example: "examples.jsonl",
    PreferencePair: "pairs.jsonl",
    Prompt: "unsolved.jsonl",
    Dropped: "dropped.jsonl",
}
"""The file of a row, by its type."""


@dataclass(frozen=True)
class Cell:
    """A cell of the quotas: rows of a domain, or grounded rows of a grounding, of one difficulty or
    (None) of any."""

    group: Domain | Grounding
    difficulty: int | None = None


def take_cell(missing: Counter[Cell], row: Prompt) -> bool:
    """Count a row against the missing rows of its difficulty, else of any; False: none is
    missing."""
    group = row.grounding or row.domain
    for cell in (Cell(group, row.difficulty), Cell(group)):
        if missing[cell] > 0:
            missing[cell] -= 1
            return True
    return False


@dataclass(frozen=True)
class Lesson:
    """One request to a teacher.

    Attributes:
        seed: the stage's.
        data: the directory of `--data`, or None.
        answers: paid answers, stored for all runs.
        wanted: how many new rows of each cell a top-up needs; None: the config decides. An
            exhausted teacher gives none.
        known: ids of prompts that were given before; a top-up gives none of them again.
        spent_usd, spent_tokens: what was spent of the teacher's budget before this lesson.
        tally: the teacher adds its counts to it: `usd`, `input_tokens`, `output_tokens`,
            `requests`, `cached`, `samples.<outcome>`, ...
        progress: called with (done, total, unit, values) from time to time.
    """

    seed: int
    data: Path | None
    answers: Answers
    wanted: Mapping[Cell, int] | None = None
    known: Set[str] = field(default_factory=frozenset)
    spent_usd: float = 0.0
    spent_tokens: int = 0
    tally: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    progress: Callable[[int, int, str, Mapping[str, float]], None] = field(default=lambda *_: None)

    def spent(self) -> dict[str, float]:
        """The amounts that were spent of the teacher's budget, before this lesson and in it: `usd`,
        `tokens`."""
        # `get` adds no name to the tally
        usd, *tokens = (
            self.tally.get(name, 0) for name in ("usd", "input_tokens", "output_tokens")
        )
        return {"usd": self.spent_usd + usd, "tokens": self.spent_tokens + int(sum(tokens))}
