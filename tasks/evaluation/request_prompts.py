"""Prompts that are requests to refuse, or to comply with, read from the file of a suite."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from schemas.base import InputError, StrictModel
from schemas.evaluation import EvalPrompt
from schemas.examples import Domain
from tasks.data.mapping import Text, lookup
from tasks.data.sources import PromptMapping
from tasks.evaluation.suite_prompts import FileSuite, SuiteRecord, mapped, suite_records

Request = Literal["safe", "unsafe"]
_AS_IT_SAYS: dict[str, Request] = {"safe": "safe", "unsafe": "unsafe"}


class RequestColumn(StrictModel):
    """What is asked differs by row: a column that says "safe" or "unsafe", or words that `table`
    translates."""

    column: str
    table: dict[str, Request] = Field(default_factory=_AS_IT_SAYS.copy, min_length=1)


def request_prompts(
    suite: FileSuite,
    data: Path | None,
    *,
    prompt: Text,
    request: Request | RequestColumn,
    family: str | None,
    expected: int,
) -> list[EvalPrompt]:
    """One prompt for each record of the suite's file.

    Args:
        prompt: the column of the request, or a template of several (`tasks.data.mapping`).
        request: what all requests are, or the column that says it of each.
        family: the column of the kind of request; None: the file's name.
        expected: how many requests the file has.

    Raises:
        InputError: another number of them than expected, or a record that makes none.
    """
    records = list(suite_records(suite, data))
    asked = mapped(
        suite, records, PromptMapping(domain=Domain.GENERAL, difficulty=3, prompt=prompt)
    )
    if len(asked) != expected:
        raise InputError(
            f"suite {suite.suite}: {suite.path} holds {len(asked)} requests, not {expected}; set"
            " expected to that."
        )
    found = []
    for one, record in zip(asked, records, strict=True):
        said: dict[str, Any] = {
            "request": (
                _said(suite, record, request) if isinstance(request, RequestColumn) else request
            )
        }
        if family is not None:
            said["family"] = _column(suite, record, family)
        found.append(one.model_copy(update=said))
    return found


def _said(suite: FileSuite, record: SuiteRecord, request: RequestColumn) -> Request:
    """What a record's column says of its request. Raises InputError: nothing that the table
    knows."""
    found = _column(suite, record, request.column)
    if found not in request.table:
        valid = ", ".join(sorted(request.table))
        where = f"suite {suite.suite}: {record.file}, line {record.line}"
        raise InputError(
            f"{where}: {request.column} = {found[:80]!r} is not in the table of request ({valid})."
            " Add it there."
        )
    return request.table[found]


def _column(suite: FileSuite, record: SuiteRecord, column: str) -> str:
    """What a column says. Raises InputError: nothing."""
    value = lookup(record.row, column)
    if not isinstance(value, str) or not value.strip():
        raise InputError(
            f"suite {suite.suite}: {record.file}, line {record.line}: {column} is no text, but"
            f" {value!r}. Correct it."
        )
    return value.strip()
