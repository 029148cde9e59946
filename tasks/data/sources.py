"""A source: files of one kind, and how their records become examples or prompts. Part of the
dataset teacher's config.

Nothing is invented: an answer that cannot be verified has `check = "none"`, and a record without an
answer or without reasoning makes no example.
"""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Discriminator, Field, Tag, field_validator, model_validator

from schemas.base import InputError, StrictModel
from schemas.examples import ELEMENTS, GROUNDED_REFUSAL, AskedFormat, Constraint, Domain, Grounding
from tasks.contract.check import CHECKS, check_of
from tasks.data.data_files import check_data_path
from tasks.data.mapping import Pick, Text
from tasks.verification.form_constraints import validate

DataPath = Annotated[str, AfterValidator(check_data_path)]
Difficulty = Annotated[int, Field(ge=1, le=5)]


class DomainColumn(StrictModel):
    """A domain per row: `{ column = "category", table = { writing = "creative", stem = "science" }
    }`."""

    column: str
    table: dict[str, Domain]


class DifficultyColumn(StrictModel):
    """A difficulty per row: `{ column = "level", table = { easy = 1, hard = 4 } }`."""

    column: str
    table: dict[str, Difficulty]


class ConstraintsColumn(StrictModel):
    """Constraints per row: a column with a list of `{"name": ..., "value": ...}`, or such a list as
    JSON text."""

    column: str


def _form(value: Any) -> str:
    if isinstance(value, dict | StrictModel):
        return "<column>"
    return "<router>" if value == "router" else "<value>"


Router = Annotated[Literal["router"], Tag("<router>")]
"""The domain that `tasks.routing.router` gives each prompt."""

AnyDomain = Annotated[
    Annotated[Domain, Tag("<value>")] | Router | Annotated[DomainColumn, Tag("<column>")],
    Discriminator(_form),
]
AnyDifficulty = Annotated[
    Annotated[Difficulty, Tag("<value>")] | Router | Annotated[DifficultyColumn, Tag("<column>")],
    Discriminator(_form),
]
AnyConstraints = Annotated[
    Annotated[tuple[Constraint, ...], Tag("<value>")]
    | Annotated[ConstraintsColumn, Tag("<column>")],
    Discriminator(_form),
]


class Other(StrictModel):
    """Pairs each row with another: row i of a file with row i + offset (modulo its length) of
    `path`, or of the same file.

    The other row's columns are `other.<column>`. This makes unanswerable questions (with another
    question's context) and out-of-domain ones (a question from another file) from answerable ones.
    Within the same file, `offset` rows are held in memory.
    """

    path: DataPath | None = None
    offset: int = Field(default=1, ge=1, le=100_000)


class PromptMapping(StrictModel):
    r"""How the columns of a record become a prompt, with what verifies an answer to it.

    Attributes:
        domain, difficulty: a constant, a column with a table, or "router": decided by
            `tasks.routing.router`.
        answer: leave it out for unanswerable and out-of-domain rows, whose answer is the grounded
            refusal.
        check: "exact", "numeric", "quantity", "math" and "choice" verify against the answer column;
            "none" is free text.
        tolerance: relative, for the checks "numeric" and "quantity".
        tests, code_prefix: for the check "tests": Python that raises when the code before it is
            wrong, and the text before an answer that is no whole program. HumanEval: `tests = {
            template = "{test}\n\ncheck({entry_point})" }`, `code_prefix = "prompt"`.
        constraints: for the check "constraints": a list, or the column that has one.
        choices: for the check "choice": the column with the list of texts to choose from. They are
            appended to the prompt with letters. The answer column has the right one's letter, its
            text, or its index in the list from 0.
        context: for grounded rows; the prompt must contain it.
        channels: the format of a response (`schemas.examples`): "trace", or the DIPG Safety Gym's
            "xml" or "tags".
        require: columns that must not be empty; other rows are skipped (counted, not bad). For
            files that are only partly usable.
        only: column -> its values in the rows that are used; others are skipped likewise: `only = {
            category = ["closed_qa"] }`.
    """

    domain: AnyDomain
    difficulty: AnyDifficulty = 1
    prompt: Text
    answer: Text | None = None
    check: str = "none"
    tolerance: float | None = Field(default=None, gt=0, lt=1)
    tests: Text | None = None
    code_prefix: Text | None = None
    constraints: AnyConstraints = ()
    choices: str | None = None
    context: Text | None = None
    grounding: Grounding | None = None
    channels: AskedFormat = "trace"
    require: tuple[str, ...] = ()
    only: dict[str, Annotated[tuple[str, ...], Field(min_length=1)]] = Field(default_factory=dict)

    @field_validator("check")
    @classmethod
    def _is_a_check(cls, name: str) -> str:
        try:
            check_of(name)
        except InputError as error:
            raise ValueError(str(error).removesuffix(".")) from error
        return name

    @model_validator(mode="after")
    def _grounded_rows_are_complete(self) -> Self:
        if (self.grounding is None) != (self.context is None):
            raise ValueError(
                "a grounded source sets both grounding and context, any other source neither"
            )
        if self.refuses and self.answer is not None:
            raise ValueError(
                f"the answer to {self.grounding} questions is always {GROUNDED_REFUSAL!r}: leave"
                " answer out"
            )
        return self

    @model_validator(mode="after")
    def _the_check_has_what_it_needs(self) -> Self:
        check = check_of(self.check)
        if check and check.by_reference and self.answer is None and not self.refuses:
            raise ValueError(
                f"answer is missing: check = {self.check!r} compares with it; set the column that"
                " holds it"
            )
        for key in ("tests", "constraints", "choices"):
            if bool(getattr(self, key)) != (check is not None and key in check.needs):
                names = [repr(name) for name in CHECKS.names() if key in CHECKS[name].needs]
                both = f"{key} and check = {' or '.join(names)}"
                raise ValueError(f"{both} belong together: set both or neither")
        if not isinstance(self.constraints, ConstraintsColumn):
            validate(self.constraints, "constraints")
        for key in ("code_prefix", "tolerance"):
            if getattr(self, key) is not None and not (check and key in check.takes):
                names = [repr(name) for name in CHECKS.names() if key in CHECKS[name].takes]
                raise ValueError(f"{key} is for check = {' and '.join(names)} only")
        return self

    @property
    def refuses(self) -> bool:
        """Whether the answer to every row is the grounded refusal."""
        return self.grounding in ("unanswerable", "out_of_domain")

    @property
    def routed(self) -> bool:
        """Whether the router decides the domain or the difficulty."""
        return "router" in (self.domain, self.difficulty)

    def columns(self, worked: bool = False) -> Iterator[tuple[str, list[list[str]]]]:
        """(mapping key, the column paths of each of its alternatives). `worked`: include
        `reasoning` and `proof`."""
        texts = ["prompt", "answer", "context", "tests", "code_prefix"]
        for key in [*texts, "reasoning", "proof"] if worked else texts:
            text: Sequence[Pick] | None = getattr(self, key)
            if text is not None:
                yield key, [pick.columns() for pick in text]
        for key in ("domain", "difficulty", "constraints"):
            value = getattr(self, key)
            if isinstance(value, DomainColumn | DifficultyColumn | ConstraintsColumn):
                yield key, [[value.column]]
        if self.choices is not None:
            yield "choices", [[self.choices]]
        for key in ("require", "only"):
            yield from ((key, [[column]]) for column in getattr(self, key))


class Source(PromptMapping):
    """One file, or several by a `*` in the path, and how its columns become examples.

    Attributes:
        path: relative to the data directory, or a URL: gs://BUCKET/DIR/*.parquet,
            hf://datasets/ORG/NAME/FILE.jsonl, s3://BUCKET/FILE.
        first: only so many rows, from the start of the first file.
        family: the name of these rows in reports; default: the file's name without suffix.
        licence: of the data, as the data card shows it.
        reasoning: a source without it, or without an answer, can only be the `prompts` of an
            answering teacher.
        proof: what is quoted in support of the answer, for the formats that have a place for it.
            Leave it out for rows that have nothing to quote, such as abstentions: theirs is empty.
        max_bad_fraction: fail if a larger fraction of the source's rows is bad for any reason
            except length.
        max_too_long_fraction: fail if a larger fraction is too long.
    """

    path: DataPath
    first: int | None = Field(default=None, ge=1)
    family: str = ""
    licence: str = ""
    reasoning: Text | None = None
    proof: Text | None = Field(default=None, exclude_if=lambda value: value is None)
    other: Other | None = None
    max_bad_fraction: float = Field(default=0.01, ge=0, lt=1)
    max_too_long_fraction: float = Field(default=0.1, ge=0, lt=1)

    @model_validator(mode="after")
    def _the_format_has_a_place_for_it(self) -> Self:
        if self.proof is not None and "proof" not in ELEMENTS[self.channels]:
            raise ValueError(
                f"a response of channels = {self.channels!r} has no place for a proof: set channels"
                " = 'xml', or put the proof into the reasoning's template"
            )
        return self

    @property
    def teaches(self) -> bool:
        """Whether rows have worked traces, and so can be examples."""
        return self.reasoning is not None and (self.answer is not None or self.refuses)
