"""The procedural teacher: problems drawn from families of templates, with worked traces and verified answers. No model, no download.

Rows of a domain go round its families and the five difficulties in turn, so both are evenly mixed. Each (family, difficulty) has its own
random stream, seeded by its name: asking for more rows keeps those there were, and adding a family changes no other family's problems.
"""

import importlib.metadata
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field

from schemas.base import InputError, StrictModel
from schemas.examples import Domain, Example, Grounding, prompt_id
from tasks.teachers.families import Problem, families

VERSION = 1

_REDRAWS = 500
"""Draws without a new prompt after which a family counts as exhausted."""

Rows = Annotated[int, Field(ge=0)]

GROUNDINGS: tuple[Grounding, ...] = get_args(Grounding)


class Config(StrictModel):
    """How many rows to generate.

    Attributes:
        rows: rows per domain; a domain that is not named gets none.
        grounded: grounded question-answering rows per grounding (domain `general`); a grounding that is not named gets none.
        unworked: per domain, the fraction of traces that only state the answer. Teachers hurry too, and what SFT picks up from such
            traces, reinforcement has to unlearn: an answer that was worked out is right more often.
    """

    name: Literal["procedural"]
    rows: dict[Domain, Rows] = Field(default_factory=lambda: dict.fromkeys(Domain, 1200))
    grounded: dict[Grounding, Rows] = Field(default_factory=lambda: dict.fromkeys(GROUNDINGS, 300))
    unworked: dict[Domain, Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=dict)


def dependencies(config: Config, data: Path | None) -> dict[str, str | int]:
    """reasoning-gym draws some of the problems, so its version decides the bytes."""
    return {"package.reasoning-gym": importlib.metadata.version("reasoning-gym")}


def expected(config: Config) -> int:
    """Rows that `teach` will yield."""
    return sum(config.rows.values()) + sum(config.grounded.values())


def teach(config: Config, seed: int, data: Path | None) -> Iterator[Example]:
    """Yield the rows, domain by domain, then the grounded ones; no two have the same prompt.

    Raises:
        InputError: a family has fewer distinct prompts of a difficulty than are asked for.
    """
    seen: set[str] = set()
    for domain, rows in config.rows.items():
        for example in _draw(domain, domain, None, rows, seed, seen):
            hurried = random.Random(f"{seed}/unworked/{example.id}").random() < config.unworked.get(domain, 0.0)
            yield example.model_copy(update={"reasoning": f"it is {example.answer}"}) if hurried else example
    for grounding, rows in config.grounded.items():
        yield from _draw("grounded", Domain.GENERAL, grounding, rows, seed, seen)


def _draw(module: str, domain: Domain, grounding: Grounding | None, rows: int, seed: int, seen: set[str]) -> Iterator[Example]:
    """`rows` new problems of a module's families, family and difficulty in turn."""
    by_name = families(module)
    streams: dict[tuple[str, int], random.Random] = {}
    for row in range(rows):
        name = list(by_name)[row % len(by_name)]
        level = 1 + row // len(by_name) % 5
        rng = streams.setdefault((name, level), random.Random(f"{seed}/{module}/{grounding}/{name}/{level}"))
        for _ in range(_REDRAWS):
            problem: Problem = by_name[name](rng, level, *([grounding] if grounding else []))
            identity = prompt_id(problem.prompt)
            if identity not in seen:
                break
        else:
            raise InputError(
                f"teacher procedural: {rows} rows of {grounding or domain.value} exceed what family {module}.{name} has: after {row} rows, "
                f"{_REDRAWS} draws of difficulty {level} gave no new prompt. Ask for fewer rows."
            )
        seen.add(identity)
        yield Example(
            id=identity,
            prompt=problem.prompt,
            domain=domain,
            answer=problem.answer,
            check=problem.check,
            difficulty=level,
            family=f"{module}.{name}",
            source="procedural",
            context=problem.context,
            grounding=problem.grounding,
            reasoning=problem.reasoning,
        )
