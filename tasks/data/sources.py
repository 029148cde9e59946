"""A source: local files of one kind and how their records become examples. Part of the dataset teacher's config.

Nothing is invented: an answer that cannot be verified keeps `check = "none"`, and a record without an answer or without reasoning makes no
example.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from schemas.base import InputError, StrictModel
from schemas.examples import GROUNDED_REFUSAL, Check, Domain, Example, Grounding, parse_trace, prompt_id
from tasks.data.directory import check_relative
from tasks.data.dropped import BadCause, HarmlessCause
from tasks.data.mapping import Pick, Text, require_columns, text_of
from tasks.verify import parse_number

DataPath = Annotated[str, AfterValidator(check_relative)]
Difficulty = Annotated[int, Field(ge=1, le=5)]


class DomainColumn(StrictModel):
    """A domain that differs by row: `{ column = "category", table = { writing = "creative", stem = "science" } }`."""

    column: str
    table: dict[str, Domain]


class DifficultyColumn(StrictModel):
    """A difficulty that differs by row: `{ column = "level", table = { easy = 1, hard = 4 } }`."""

    column: str
    table: dict[str, Difficulty]


def _form(value: Any) -> str:
    return "by_column" if isinstance(value, dict | StrictModel) else "constant"


AnyDomain = Annotated[Annotated[Domain, Tag("constant")] | Annotated[DomainColumn, Tag("by_column")], Discriminator(_form)]
AnyDifficulty = Annotated[Annotated[Difficulty, Tag("constant")] | Annotated[DifficultyColumn, Tag("by_column")], Discriminator(_form)]


class Other(StrictModel):
    """Pairs each row with another: row i of a file with row i + offset (counted round) of `path`, or of the same file.

    The other row's columns are `other.<column>`. This makes unanswerable questions (a question beside somebody else's context) and
    out-of-domain ones (a question from another file) out of answerable ones.
    """

    path: DataPath | None = None
    offset: int = Field(default=1, ge=1)


class Source(StrictModel):
    """One file, or several by a `*` in the path, and how its columns become examples.

    Attributes:
        path: relative to the data directory.
        family: what reports call these rows; the file's name without suffix when it is not set.
        check: "exact" and "numeric" promise that the answer column can be verified that way; "none" is for free text.
        context: for grounded rows; the prompt must contain it.
        answer: not to be set for unanswerable and out-of-domain rows, whose answer is the grounded refusal.
        require: columns that must not be empty; rows in which one is are left out (counted, not bad). For files only partly usable.
        max_bad_fraction: the largest fraction of the source's rows that may be bad for any reason but length; more is an error.
        max_too_long_fraction: the largest fraction that may be too long; more is an error.
    """

    path: DataPath
    family: str = ""
    domain: AnyDomain
    prompt: Text
    reasoning: Text
    answer: Text | None = None
    check: Check = "none"
    difficulty: AnyDifficulty = 1
    context: Text | None = None
    grounding: Grounding | None = None
    require: tuple[str, ...] = ()
    other: Other | None = None
    max_bad_fraction: float = Field(default=0.01, ge=0, lt=1)
    max_too_long_fraction: float = Field(default=0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _grounded_rows_are_complete(self) -> Self:
        if (self.grounding is None) != (self.context is None):
            raise ValueError("a grounded source sets both grounding and context, any other source neither")
        refuses = self.grounding in ("unanswerable", "out_of_domain")
        if refuses and self.answer is not None:
            raise ValueError(f"the answer to {self.grounding} questions is always {GROUNDED_REFUSAL!r}: leave answer out")
        if not refuses and self.answer is None:
            raise ValueError("answer is missing: name the column that holds it")
        return self

    @property
    def texts(self) -> dict[str, Text]:
        """What is mapped to text: prompt, reasoning, answer and context, those that are set."""
        return {key: text for key in ("prompt", "reasoning", "answer", "context") if (text := getattr(self, key)) is not None}

    def require_mapped_columns(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check that the file called `name` has every column that the mapping reads. Raises InputError naming the columns there are."""
        for key, text in self.texts.items():
            require_columns([pick.columns() for pick in text], rows, f"data file {name}, {key}")
        for key, column in self._single_columns():
            require_columns([[column]], rows, f"data file {name}, {key}")

    def _single_columns(self) -> Iterator[tuple[str, str]]:
        for key in ("domain", "difficulty"):
            value = getattr(self, key)
            if isinstance(value, DomainColumn | DifficultyColumn):
                yield key, value.column
        yield from (("require", column) for column in self.require)


class NotAnExample(Exception):
    """A record makes no example: `cause` is one of `tasks.data.dropped`, the message its detail."""

    def __init__(self, cause: BadCause | HarmlessCause, detail: str):
        super().__init__(detail)
        self.cause = cause


_SURROGATE = re.compile("[\ud800-\udfff]")
_EMPTY: dict[str, BadCause] = {
    "prompt": "empty_prompt",
    "reasoning": "empty_reasoning",
    "answer": "empty_answer",
    "context": "empty_context",
}


def example_of(source: Source, row: Mapping[str, Any], file: str, family: str) -> Example:
    """The example that one record makes.

    Args:
        source: how.
        row: the record's columns, with the paired row as `other` where the source pairs rows.
        file, family: what the example will name as its source and family.

    Raises:
        NotAnExample: the record makes none.
        InputError: the mapping itself is wrong: a grounded prompt without its context.
    """
    for column in source.require:
        if not Pick(column=column).text(row):
            raise NotAnExample("left_out", f"column {column} is empty")
    texts = {key: text_of(text, row) for key, text in source.texts.items()}
    for key, text in texts.items():
        if not text:
            raise NotAnExample(_EMPTY[key], f"the mapping of {key} gives no text")
        if _SURROGATE.search(text):
            raise NotAnExample("wrong_encoding", f"the {key} holds half of a character (a lone surrogate such as \\ud800)")
    prompt, answer, context = texts["prompt"], texts.get("answer", GROUNDED_REFUSAL), texts.get("context")
    if context is not None and context not in prompt:
        raise InputError(f"data file {file}: a prompt does not contain its context; put the context's columns into the prompt's template.")
    check: Check = "exact" if source.answer is None else source.check
    if check == "numeric" and parse_number(answer) is None:
        raise NotAnExample("not_numeric", f"answer {answer[:80]!r} is no number")
    example = Example(
        id=prompt_id(prompt),
        prompt=prompt,
        domain=_by_row(source.domain, row),
        answer=answer,
        check=check,
        difficulty=_by_row(source.difficulty, row),
        family=family,
        source=file,
        context=context,
        grounding=source.grounding,
        reasoning=texts["reasoning"],
    )
    if parse_trace(example.response()) is None:
        raise NotAnExample("tag_in_trace", "the reasoning or the answer contains a tag such as <answer>")
    return example


def _by_row(value: Any, row: Mapping[str, Any]) -> Any:
    """A constant, or what the table of a DomainColumn or DifficultyColumn says of this row."""
    if not isinstance(value, DomainColumn | DifficultyColumn):
        return value
    found = Pick(column=value.column).text(row)
    if found not in value.table:
        raise NotAnExample("unmapped_value", f"{value.column} = {found[:80]!r} is not in the table ({', '.join(sorted(value.table))})")
    return value.table[found]
