"""Fresh problems of the procedural teacher's families, in all six domains, without a file and with
a seed that no recipe uses.

Use it to see what a model can do before there are any data. A model that was trained on the same
families has seen their templates.
"""

from pathlib import Path
from typing import Literal

from pydantic import Field

from schemas.evaluation import EvalPrompt
from tasks.contract.suite import Suite, SuiteConfig
from tasks.contract.teacher import TEACHERS
from tasks.evaluation.suite_prompts import prompt_in
from tasks.teaching import drawing
from tasks.teaching.families import drawn_domains

_SEED = 26_030_519


class Config(SuiteConfig):
    """`per_domain`: problems of each domain, of its families and the five difficulties in turn."""

    name: Literal["procedural"]
    per_domain: int = Field(default=100, ge=1)


def prompts(config: Config, data: Path | None) -> list[EvalPrompt]:
    """The problems, domain by domain. Raises InputError: a family has fewer."""
    rows = drawing.Drawing(dict.fromkeys(drawn_domains(), config.per_domain), _SEED).rows()
    return [prompt_in(config, number, row) for number, row in enumerate(rows)]


def dependencies(config: Config, data: Path | None) -> dict[str, str | int]:
    """The versions that the problems depend on."""
    return {**TEACHERS.versions(["procedural"]), **drawing.dependencies()}


SUITE = Suite(
    version=1,
    config=Config,
    prompts=prompts,
    dependencies=dependencies,
    expected=lambda config: config.per_domain * len(drawn_domains()),
)
