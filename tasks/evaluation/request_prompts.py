"""Prompts that are requests, safe or unsafe, read from the file of a suite."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from schemas.base import InputError, StrictModel
from schemas.evaluation import EvalPrompt
from schemas.examples import Domain
from tasks.data.mapping import Text
from tasks.data.sources import PromptMapping
from tasks.evaluation.suite_prompts import (
    FileSuite,
    SuiteRecord,
    bad_row,
    mapped,
    suite_records,
    text_in,
)

Request = Literal["safe", "unsafe"]
_AS_IT_SAYS: dict[str, Request] = {"safe": "safe", "unsafe": "unsafe"}


class RequestColumn(StrictModel):
    """A column that says which requests are safe: its values are "safe" and "unsafe", or `table`
    translates them."""

    column: str
    table: dict[str, Request] = Field(default_factory=_AS_IT_SAYS.copy, min_length=1)

    def of(self, suite: FileSuite, record: SuiteRecord) -> Request:
        """Whether a record's request is safe. Raises InputError: `table` lacks its value."""
        found = text_in(suite, record, self.column)
        if found not in self.table:
            valid = ", ".join(sorted(self.table))
            unknown = f"{self.column} = {found[:80]!r} is not in the table of request ({valid})"
            raise bad_row(suite, record, unknown, "Add it there.")
        return self.table[found]


def request_prompts(
    suite: FileSuite,
    data: Path | None,
    prompt: Text,
    request: Request | RequestColumn,
    family: str | None,
    expected: int,
) -> list[EvalPrompt]:
    """One prompt for each record of the suite's file.

    Args:
        prompt: the column of the request, or a template of several (`tasks.data.mapping`).
        request: of all records, or the column that says it of each.
        family: the column of the kind of request; None: the file's name.
        expected: how many requests the file has.

    Raises:
        InputError: the file has another number of them, or a record without one.
    """
    records = list(suite_records(suite, data))
    mapping = PromptMapping(domain=Domain.GENERAL, difficulty=3, prompt=prompt)
    asked = mapped(suite, records, mapping)
    if len(asked) != expected:
        raise InputError(
            f"suite {suite.suite}: {suite.path} holds {len(asked)} requests, not {expected}; set"
            " expected to that."
        )
    found = []
    for one, record in zip(asked, records, strict=True):
        named = request.of(suite, record) if isinstance(request, RequestColumn) else request
        said: dict[str, Any] = {"request": named}
        if family is not None:
            said["family"] = text_in(suite, record, family)
        found.append(one.model_copy(update=said))
    return found
