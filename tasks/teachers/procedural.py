"""The procedural teacher: problems drawn from families of templates (`tasks.teaching.drawing`),
without a model or a download."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from schemas.base import StrictModel
from schemas.examples import AskedFormat, Domain, Example, Grounding, Prompt
from tasks.contract.small import Sizes, at_most
from tasks.contract.teacher import Teacher
from tasks.teaching import drawing
from tasks.teaching.families import domain_of, drawn_domains, families
from tasks.teaching.lesson import Lesson

Rows = Annotated[int, Field(ge=0)]
GROUNDINGS: tuple[Grounding, ...] = get_args(Grounding)


class Config(StrictModel):
    """How many rows to generate.

    Attributes:
        rows: rows per domain; a domain that is not named gets none.
        families: which families to draw from, each as `module.name` or a whole `module`; empty:
            those of the domains' own modules. Subjects that are no domain, e.g. `robotics`, have to
            be named; their rows count as `general`.
        grounded: grounded question-answering rows per grounding (domain `general`); a grounding
            that is not named gets none.
        channels: the format of the rows (`schemas.examples`).
    """

    name: Literal["procedural"]
    rows: dict[Domain, Rows] = Field(default_factory=lambda: dict.fromkeys(drawn_domains(), 1200))
    families: tuple[str, ...] = ()
    grounded: dict[Grounding, Rows] = Field(default_factory=lambda: dict.fromkeys(GROUNDINGS, 300))
    channels: AskedFormat = "trace"

    @field_validator("families")
    @classmethod
    def _exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for module, _, name in (one.partition(".") for one in names):
            domain_of(module)
            if name and name not in families(module):
                raise ValueError(
                    f"{module} has no family {name!r}; it has {', '.join(families(module))}"
                )
        return names


def dependencies(config: Config, data: Path | None) -> dict[str, str | int]:
    """The versions that decide the rows, too."""
    return drawing.dependencies()


def expected(config: Config) -> int:
    """How many rows `teach` yields."""
    return sum(config.rows.values()) + sum(config.grounded.values())


def teach(config: Config, lesson: Lesson) -> Iterator[Example]:
    """The rows, domain by domain, then the grounded ones; no two have the same prompt.

    A top-up continues the drawing: known prompts are skipped, and an exhausted cell gives fewer
    rows. Only domains and groundings that the config names are topped up; 0 rows means "only when
    they are missing".

    Raises:
        InputError: a family has fewer distinct prompts of a difficulty than the config asks for.
    """
    drawn = _drawing(config, lesson.seed)
    return drawn.rows() if lesson.wanted is None else drawn.topped_up(lesson.wanted, lesson.known)


def rows(config: Config, seed: int) -> Iterator[Example]:
    """The rows of `teach` outside a top-up."""
    return _drawing(config, seed).rows()


def prompts(config: Config, lesson: Lesson) -> Iterator[Prompt]:
    """The prompts of the same rows, for a teacher that answers them. Raises InputError as
    `teach`."""
    for example in teach(config, lesson):
        yield example.as_prompt()


def small(config: Config, sizes: Sizes) -> Config:
    """Ask for at most as many rows as the default."""
    rows, grounded = (at_most(config.rows, sizes.rows), at_most(config.grounded, sizes.rows // 4))
    return config.model_copy(update={"rows": rows, "grounded": grounded})


def _drawing(config: Config, seed: int) -> drawing.Drawing:
    counts: dict[Domain | Grounding, int] = dict([*config.rows.items(), *config.grounded.items()])
    return drawing.Drawing(counts, seed, config.families, config.channels)


TEACHER = Teacher(
    version=3,
    config=Config,
    teach=teach,
    dependencies=dependencies,
    expected=expected,
    prompts=prompts,
    small=small,
)
