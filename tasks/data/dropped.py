"""Rows that did not become examples, with the cause: one line of `dropped.jsonl` each."""

from typing import Literal, Self, get_args

from schemas.base import StrictModel
from schemas.examples import Prompt

BadCause = Literal[
    "broken_row",  # not JSON, not an object, a CSV row with too few or too many fields
    "wrong_encoding",  # not UTF-8
    "empty_prompt",
    "empty_reasoning",
    "empty_proof",
    "empty_answer",
    "empty_context",
    "empty_tests",
    "bad_constraints",  # the constraints column holds no list of them
    # the choices column holds no list of 2 to 26 texts, or the answer is none of them
    "bad_choices",
    "too_long",
    # a domain or difficulty column holds a value that the source's table does not list
    "unmapped_value",
    "not_numeric",  # check = "numeric", but the answer is no number
    "tag_in_trace",  # the reasoning, the proof or the answer contains one of the format's own tags
]
"""The defects of a row that count against `max_bad_fraction`."""

HarmlessCause = Literal["left_out", "duplicate_prompt"]
"""The source's `require` leaves the row out, or an earlier row has the same prompt. These do not
count against it."""

TeacherCause = Literal[
    "unsolved",  # no sample verified
    "failed",  # the endpoint gave no answer, whatever was tried
    "unasked",  # the budget was spent
]
"""Why an answering teacher made no example of a prompt."""

CleaningCause = Literal[
    "near_duplicate",  # its prompt is nearly that of a row that is kept
    "contaminated",  # its prompt is one of an evaluation set
    "language",  # in none of the languages that were asked for
    "pii",  # it holds personal data
]
"""Why rebalance leaves a row out (also `duplicate_prompt` and `too_long`)."""


AnyCause = BadCause | HarmlessCause | TeacherCause | CleaningCause


class Dropped(StrictModel):
    """A row that was read and is not an example.

    `source` is the family that it would have belonged to. `line` is where its record starts in
    `file`, from 1 (in Parquet the row's number), or 0 when that is no longer known. `id` is the
    prompt's, where there is one.
    """

    source: str
    file: str
    line: int
    cause: AnyCause
    detail: str
    id: str = ""

    @classmethod
    def of(cls, row: Prompt, cause: AnyCause, detail: str) -> Self:
        """The record of a prompt, or an example, that was dropped."""
        return cls(
            source=row.family, file=row.source, line=row.line, id=row.id, cause=cause, detail=detail
        )

    @property
    def bad(self) -> bool:
        return self.cause in get_args(BadCause)
