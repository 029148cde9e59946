"""The procedural teacher: problems drawn from families of templates, with worked traces and verified answers. No model, no download.

Rows of a domain go round its families and the five difficulties in turn, so both are evenly mixed. Each (family, difficulty) has its own
random stream, seeded by its name: asking for more rows keeps those there were, adding a family changes no other family's problems, and a
top-up goes on where the rows that are known end.
"""

import importlib.metadata
import random
from collections.abc import Iterator, Set
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator

from schemas.base import InputError, StrictModel
from schemas.examples import Domain, Example, Grounding, Prompt, prompt_id
from tasks.contract.teacher import Teacher
from tasks.teaching.families import Family, Problem, domain_of, families
from tasks.teaching.lesson import Cell, Lesson

_REDRAWS = 500
"""Draws without a new prompt after which a family counts as exhausted."""

Rows = Annotated[int, Field(ge=0)]

GROUNDINGS: tuple[Grounding, ...] = get_args(Grounding)


class Config(StrictModel):
    """How many rows to generate.

    Attributes:
        rows: rows per domain; a domain that is not named gets none.
        families: which families to draw from, each as `module.name` or a whole `module`; empty: those of the domains' own modules. So come
            subjects that are no domain, e.g. `robotics`, whose rows count as `general`.
        grounded: grounded question-answering rows per grounding (domain `general`); a grounding that is not named gets none.
        unworked: per domain, the fraction of traces that only state the answer. Teachers hurry too, and what SFT picks up from such
            traces, reinforcement has to unlearn: an answer that was worked out is right more often.
    """

    name: Literal["procedural"]
    rows: dict[Domain, Rows] = Field(default_factory=lambda: dict.fromkeys(Domain, 1200))
    families: tuple[str, ...] = ()
    grounded: dict[Grounding, Rows] = Field(default_factory=lambda: dict.fromkeys(GROUNDINGS, 300))
    unworked: dict[Domain, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)

    @field_validator("families")
    @classmethod
    def _exist(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for module, _, name in (one.partition(".") for one in names):
            domain_of(module)
            if name and name not in families(module):
                raise ValueError(f"{module} has no family {name!r}; it has {', '.join(families(module))}")
        return names


def dependencies(config: Config, data: Path | None) -> dict[str, str | int]:
    """reasoning-gym draws some of the problems, so its version decides the bytes."""
    return {"package.reasoning-gym": importlib.metadata.version("reasoning-gym")}


def expected(config: Config) -> int:
    """Rows that `teach` will yield."""
    return sum(config.rows.values()) + sum(config.grounded.values())


def teach(config: Config, lesson: Lesson) -> Iterator[Example]:
    """The rows, domain by domain, then the grounded ones; no two have the same prompt.

    A top-up draws on: prompts that are known are passed over, and a cell for which there are no more gets fewer rows. Only domains and
    groundings that the config names are topped up; 0 rows of one stand for "when they are missing".

    Raises:
        InputError: a family has fewer distinct prompts of a difficulty than the config asks for.
    """
    return rows(config, lesson.seed) if lesson.wanted is None else _hurried(config, lesson.seed, _topped_up(config, lesson))


def rows(config: Config, seed: int) -> Iterator[Example]:
    """What `teach` yields that is no top-up."""
    return _hurried(config, seed, _all(config, seed))


def prompts(config: Config, lesson: Lesson) -> Iterator[Prompt]:
    """The prompts of the same rows, for a teacher that answers them itself. Raises InputError as `teach`."""
    for example in teach(config, lesson):
        yield Prompt(**{name: getattr(example, name) for name in Prompt.model_fields})


def _hurried(config: Config, seed: int, examples: Iterator[Example]) -> Iterator[Example]:
    """The examples, some of which only state their answer."""
    for example in examples:
        share = 0.0 if example.grounding else config.unworked.get(example.domain, 0.0)
        hurried = random.Random(f"{seed}/unworked/{example.id}").random() < share
        yield example.model_copy(update={"reasoning": f"it is {example.answer}"}) if hurried else example


def _all(config: Config, seed: int) -> Iterator[Example]:
    """What the config asks for."""
    drawn: set[str] = set()
    for group, count in _groups(config).items():
        draw = _Draw(config, group, seed, drawn)
        if count and not draw.names:
            raise InputError(f"teacher procedural: rows has {count} rows of {group}, and families none of it; name only domains that have.")
        for row in range(count):
            name, level = draw.names[row % len(draw.names)], 1 + row // len(draw.names) % 5
            example = draw.next(name, level)
            if example is None:
                raise InputError(
                    f"teacher procedural: {count} rows of {group} exceed what family {name} has: after {row} rows, "
                    f"{_REDRAWS} draws of difficulty {level} gave no new prompt. Ask for fewer rows."
                )
            yield example


def _topped_up(config: Config, lesson: Lesson) -> Iterator[Example]:
    """What is wanted, from the beginning of the same streams on, less what is known."""
    assert lesson.wanted is not None
    drawn: set[str] = set()
    for group in _groups(config):
        draw = _Draw(config, group, lesson.seed, drawn)
        for level in (*range(1, 6), None):
            yield from islice(draw.fresh(level, lesson.known), max(0, lesson.wanted.get(Cell(group, level), 0)))


def _groups(config: Config) -> dict[Domain | Grounding, int]:
    return dict([*config.rows.items(), *config.grounded.items()])


def _families(config: Config, group: Domain | Grounding) -> dict[str, Family]:
    """The families of a domain that the config chooses, or the grounded ones: `module.name` -> family."""
    own = [group.value] if isinstance(group, Domain) else ["grounded"]
    named = [one for one in config.families if domain_of(one.partition(".")[0]) == group]
    chosen = named if config.families and isinstance(group, Domain) else own
    found = {}
    for module, _, only in (one.partition(".") for one in chosen):
        found.update({f"{module}.{name}": family for name, family in families(module).items() if not only or name == only})
    return found


class _Draw:
    """Draws problems of one domain's families, or of the grounded ones; each (family, level) is a stream of its own.

    Attributes:
        names: of the families, as `module.name`.
    """

    def __init__(self, config: Config, group: Domain | Grounding, seed: int, drawn: set[str]) -> None:
        """`drawn`: ids of all prompts that this request has drawn so far, of any group."""
        self._domain = group if isinstance(group, Domain) else Domain.GENERAL
        self._grounding = None if isinstance(group, Domain) else group
        self._families = _families(config, group)
        self.names = list(self._families)
        self._seed, self._drawn = seed, drawn
        self._streams: dict[tuple[str, int], random.Random] = {}

    def next(self, name: str, level: int) -> Example | None:
        """The next problem of a stream that was not drawn yet, or None: the stream seems to have no more."""
        begun = "/".join(map(str, (self._seed, name.partition(".")[0], self._grounding, name.partition(".")[2], level)))
        rng = self._streams.setdefault((name, level), random.Random(begun))
        for _ in range(_REDRAWS):
            problem: Problem = self._families[name](rng, level, *([self._grounding] if self._grounding else []))
            identity = prompt_id(problem.prompt)
            if identity not in self._drawn:
                self._drawn.add(identity)
                return self._example(identity, problem, name, level)
        return None

    def fresh(self, level: int | None, known: Set[str]) -> Iterator[Example]:
        """Problems that are not known, the families and (None) the levels in turn, until no stream has more."""
        streams = [(name, one) for one in ([level] if level else range(1, 6)) for name in self.names]
        while streams:
            for stream in list(streams):
                example = self.next(*stream)
                while example is not None and example.id in known:
                    example = self.next(*stream)
                if example is None:
                    streams.remove(stream)
                else:
                    yield example

    def _example(self, identity: str, problem: Problem, name: str, level: int) -> Example:
        return Example(
            id=identity,
            prompt=problem.prompt,
            domain=self._domain,
            answer=problem.answer,
            check=problem.check,
            constraints=problem.constraints,
            difficulty=level,
            family=name,
            source="procedural",
            context=problem.context,
            grounding=problem.grounding,
            reasoning=problem.reasoning,
        )


TEACHER = Teacher(
    version=1,
    config=Config,
    teach=teach,
    dependencies=dependencies,
    expected=expected,
    prompts=prompts,
)
