"""Rows that did not become examples, and why: one line of `dropped.jsonl` each."""

from typing import Literal

from schemas.base import StrictModel

BadCause = Literal[
    "broken_row",  # not JSON, not an object, a CSV row with too few or too many fields
    "wrong_encoding",  # not UTF-8
    "empty_prompt",
    "empty_reasoning",
    "empty_answer",
    "empty_context",
    "too_long",
    "unmapped_value",  # a domain or difficulty column holds a value that the source's table does not list
    "not_numeric",  # check = "numeric", but the answer is no number
    "tag_in_trace",  # the reasoning or the answer contains one of the trace's own tags
]
"""What is wrong with a row. These count against `max_bad_fraction`."""

HarmlessCause = Literal["left_out", "duplicate_prompt"]
"""The source's `require` leaves the row out, or an earlier row has the same prompt. These do not count against it."""


class Dropped(StrictModel):
    """A row that was read and is not an example.

    `source` is the family that it would have belonged to. `line` is where its record starts in `file`, from 1 (in Parquet the row's
    number), or 0 when that is no longer known.
    """

    source: str
    file: str
    line: int
    cause: BadCause | HarmlessCause
    detail: str

    @property
    def bad(self) -> bool:
        return self.cause not in ("left_out", "duplicate_prompt")
