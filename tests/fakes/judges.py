"""Judges for tests: they answer at once, and as honestly or as gullibly as they are told."""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from schemas.base import digest
from tasks.judging.judge import Judge, Question, Ruling

Reply = Callable[[Question], "str | tuple[float, ...] | Ruling"]

QUESTION = re.compile(
    r"(?P<before>.*)\n=== data (?P<mark>\w{16}) ===\n(?P<data>.*)\n=== end of data (?P=mark)"
    r" ===\n(?P<after>.*)",
    re.DOTALL,
)


class FakeJudge(Judge):
    """Says what `reply` makes of a question: a text, probabilities, or a whole ruling. `asked` are
    all questions so far."""

    def __init__(self, reply: Reply, max_abstained: float = 1.0) -> None:
        super().__init__(max_abstained)
        self.reply, self.asked, self.closed = reply, [], False

    def _ask(self, questions: Iterable[Question]) -> list[Ruling]:
        asked = list(questions)
        self.asked += asked
        return [self._ruling(question) for question in asked]

    def _ruling(self, question: Question) -> Ruling:
        said = self.reply(question)
        if isinstance(said, Ruling):
            return said
        key = digest([question.text, question.sample])
        given = {"text" if isinstance(said, str) else "probabilities": said}
        return Ruling(digest=key, **given)

    def close(self) -> None:
        self.closed = True


def data_of(question: Question) -> dict[str, Any]:
    """The material that a judge is shown, decoded."""
    return json.loads(QUESTION.fullmatch(question.text)["data"])


def mark_in(question: Question) -> str:
    return QUESTION.fullmatch(question.text)["mark"]


def items_in(question: Question) -> list[str]:
    """The lines `1. ...` of the sheet."""
    return re.findall(r"^\d+\. (.*)$", QUESTION.fullmatch(question.text)["after"], re.MULTILINE)


def ruling(question: Question, *grades: bool | int, **changes: Any) -> str:
    """A ruling in the right form."""
    numbered = {str(number): grade for number, grade in enumerate(grades, 1)}
    value = {"mark": mark_in(question), "reason": "because", "grades": numbered}
    return json.dumps(value | changes)
