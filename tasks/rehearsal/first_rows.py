"""The first rows that a recipe's teachers read, before anything is run: what its stages will be
given, how long it is, and the references by which a stand-in answers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.store.answers import Answers
from schemas.examples import Example, Prompt
from tasks.teaching.lesson import Lesson
from tasks.teaching.rejection_sampling import Answering, prompts_to_ask
from tasks.teaching.teacher_tables import teachers_of


@dataclass(frozen=True)
class Asked:
    """A prompt that a teacher is asked, and how: what stands before it, and how often."""

    prompt: Prompt
    instructions: str
    samples: int


@dataclass
class FirstRows:
    """What the teachers of a recipe read at first.

    Attributes:
        examples: rows that hold worked traces.
        asked: prompts for a teacher to answer.
    """

    examples: list[Example] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    @property
    def references(self) -> list[Example]:
        """Rows with the answers that the data has; of prompts that are asked, with no reasoning but
        a word about it."""
        said = "The answer follows from what the prompt says."
        return [
            *self.examples,
            *(
                Example(**dict(one.prompt), reasoning=said)
                for one in self.asked
                if one.prompt.answer
            ),
        ]

    @property
    def prompts(self) -> list[Prompt]:
        """All prompts, with what verifies an answer."""
        return [*self.examples, *(one.prompt for one in self.asked)]


def first_rows(
    tables: Iterable[Sequence[Mapping[str, Any]]], data: Path | None, answers: Answers
) -> FirstRows:
    """Read them.

    Args:
        tables: of each distill stage, its teachers' tables, cut to a few rows.

    Raises:
        InputError: a file or a column is missing, or too many rows are bad.
    """
    found = FirstRows()
    for teachers in tables:
        for teacher, config in teachers_of([_unrouted(table) for table in teachers]):
            lesson = Lesson(seed=0, data=data, answers=answers)
            rows: Iterator[Any]
            if isinstance(config, Answering):
                rows = prompts_to_ask(config, lesson)
            else:
                rows = teacher.teach(config, lesson)
            for row in rows:
                if isinstance(row, Example):
                    found.examples.append(row)
                elif isinstance(config, Answering) and isinstance(row, Prompt):
                    found.asked.append(Asked(row, config.instructions, config.samples))
    return found


def _unrouted(table: Mapping[str, Any]) -> dict[str, Any]:
    """A teacher's table without the model that is asked for domains: the classifier knows enough
    to tell what is read."""
    plain = {name: value for name, value in table.items() if name != "routing"}
    if "prompts" in plain:
        plain["prompts"] = [_unrouted(one) for one in plain["prompts"]]
    return plain
