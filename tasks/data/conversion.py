"""Convert a record to a prompt or an example, by its source's mapping (`tasks.data.sources`)."""

import json
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from schemas.base import InputError
from schemas.examples import (
    GROUNDED_REFUSAL,
    Constraint,
    Domain,
    Example,
    Prompt,
    parse_trace,
    prompt_id,
)
from tasks.contract.check import check_of
from tasks.data.dropped import BadCause, HarmlessCause
from tasks.data.mapping import Pick, lookup, text_of
from tasks.data.sources import (
    ConstraintsColumn,
    DifficultyColumn,
    DomainColumn,
    PromptMapping,
    Source,
)
from tasks.verification.choices import as_constraint, asked, letters
from tasks.verification.form_constraints import validate


class NotAnExample(Exception):
    """A record makes no example: `cause` is one of `tasks.data.dropped`, the message its detail."""

    def __init__(self, cause: BadCause | HarmlessCause, detail: str):
        super().__init__(detail)
        self.cause = cause


_SURROGATE = re.compile("[\ud800-\udfff]")
_EMPTY: dict[str, BadCause] = {
    "prompt": "empty_prompt",
    "reasoning": "empty_reasoning",
    "proof": "empty_proof",
    "answer": "empty_answer",
    "context": "empty_context",
    "tests": "empty_tests",
}


def example_of(
    source: Source, row: Mapping[str, Any], file: str, line: int, family: str
) -> Example:
    """The example of one record, for a source that `teaches`. As `prompt_of`; reasoning, answer and
    a proof that the source maps must not be empty."""
    _require(source, row)
    reasoning, proof = _text(source, "reasoning", row), _text(source, "proof", row)
    prompt = prompt_of(source, row, file, line, family)
    if not prompt.answer:
        raise NotAnExample("empty_answer", "the mapping of answer gives no text")
    example = Example(**dict(prompt), reasoning=reasoning, proof=proof)
    if parse_trace(example.response(), example.channels) is None:
        raise NotAnExample(
            "tag_in_trace", "the reasoning, the proof or the answer contains a tag such as <answer>"
        )
    return example


def prompt_of(
    source: PromptMapping, row: Mapping[str, Any], file: str, line: int, family: str
) -> Prompt:
    """The prompt of one record. Before routing, a routed prompt has the domain general and
    difficulty 1.

    Args:
        source: the mapping.
        row: the record's columns, with the paired row as `other` where the source pairs rows.
        file, line, family: the record's place, and the prompt's family.

    Raises:
        NotAnExample: the record makes none.
        InputError: the mapping itself is wrong: a grounded prompt without its context.
    """
    _require(source, row)
    prompt, context = _text(source, "prompt", row), _text(source, "context", row)
    name = "exact" if source.refuses else source.check
    check, answer = check_of(name), GROUNDED_REFUSAL
    if not source.refuses:
        answer = _text(source, "answer", row, optional=not (check and check.by_reference))
    if context and context not in prompt:
        raise InputError(
            f"data file {file}: a prompt does not contain its context; put the context's columns"
            " into the prompt's template."
        )
    constraints = _constraints(source.constraints, row)
    if source.choices is not None:
        choices = _choices(source.choices, row)
        prompt, answer = asked(prompt, choices), _letter(source, row, answer, choices)
        constraints = as_constraint(choices)
    if check and check.at_once and check.reads and not check.reads(answer):
        raise NotAnExample("not_numeric", f"answer {answer[:80]!r} is no {check.form}")
    return Prompt(
        id=prompt_id(prompt),
        prompt=prompt,
        domain=Domain.GENERAL if source.domain == "router" else _by_row(source.domain, row),
        answer=answer,
        check=name,
        tolerance=source.tolerance,
        tests=_text(source, "tests", row) or None,
        code_prefix=_text(source, "code_prefix", row, optional=True),
        constraints=constraints,
        difficulty=1 if source.difficulty == "router" else _by_row(source.difficulty, row),
        family=family,
        source=file,
        line=line,
        context=context or None,
        grounding=source.grounding,
        channels=source.channels,
    )


def _require(source: PromptMapping, row: Mapping[str, Any]) -> None:
    for column in source.require:
        if not Pick(column=column).text(row):
            raise NotAnExample("left_out", f"column {column} is empty")
    for column, values in source.only.items():
        if (found := Pick(column=column).text(row)) not in values:
            raise NotAnExample("left_out", f"{column} = {found[:80]!r} is none of only")


def _text(source: PromptMapping, key: str, row: Mapping[str, Any], optional: bool = False) -> str:
    """The text of one mapping; empty where the source does not set it. Raises NotAnExample: the row
    lacks it, or it is no text."""
    mapping: Sequence[Pick] | None = getattr(source, key)
    if mapping is None:
        return ""
    text = text_of(mapping, row)
    if not text and not optional:
        raise NotAnExample(_EMPTY[key], f"the mapping of {key} gives no text")
    if _SURROGATE.search(text):
        half = "half of a character (a lone surrogate such as \\ud800)"
        raise NotAnExample("wrong_encoding", f"the {key} holds {half}")
    return text


def _by_row(value: Any, row: Mapping[str, Any]) -> Any:
    """A constant, or this row's value in the table of a DomainColumn or DifficultyColumn."""
    if not isinstance(value, DomainColumn | DifficultyColumn):
        return value
    found = Pick(column=value.column).text(row)
    if found not in value.table:
        known = f"is not in the table ({', '.join(sorted(value.table))})"
        raise NotAnExample("unmapped_value", f"{value.column} = {found[:80]!r} {known}")
    return value.table[found]


def _constraints(
    value: tuple[Constraint, ...] | ConstraintsColumn, row: Mapping[str, Any]
) -> tuple[Constraint, ...]:
    if not isinstance(value, ConstraintsColumn):
        return value
    found = lookup(row, value.column)
    shown = f"{value.column} = {str(found)[:80]!r}"
    try:
        listed = json.loads(found) if isinstance(found, str) else found
        if not isinstance(listed, list) or not listed:
            raise NotAnExample("bad_constraints", f"{shown} is no list of constraints")
        constraints = tuple(Constraint.parse(one) for one in listed)
        validate(constraints, "")
        return constraints
    except ValueError as error:
        raise NotAnExample("bad_constraints", f"{shown}: {str(error).splitlines()[0]}") from error


def _choices(column: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    found, most = lookup(row, column), len(ascii_uppercase)
    listed = found if isinstance(found, list) else []
    texts = [Pick(column="text").text({"text": one}) for one in listed]
    if not 2 <= len(texts) <= most or not all(texts):
        shown = f"{column} = {str(found)[:80]!r}"
        raise NotAnExample("bad_choices", f"{shown} is no list of 2 to {most} texts")
    return tuple(texts)


def _letter(
    source: PromptMapping, row: Mapping[str, Any], answer: str, choices: tuple[str, ...]
) -> str:
    """The letter of the right choice: the answer column has it, an index in the list, or the text
    of exactly one choice."""
    place = lookup(row, source.answer[0].column or "") if source.answer else None
    valid = letters(choices)
    if isinstance(place, int) and not isinstance(place, bool):
        if 0 <= place < len(choices):
            return valid[place]
    elif len(answer) == 1 and answer in valid:
        return answer
    elif choices.count(answer) == 1:
        return valid[choices.index(answer)]
    place = f"no place from 0 to {len(valid) - 1} and not just one choice"
    raise NotAnExample("bad_choices", f"answer {answer[:80]!r} is no letter of {valid}, {place}")
