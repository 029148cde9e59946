"""Distill: worked traces from one or several teachers, exact duplicate prompts removed.

Writes `examples.jsonl` (in the order of the teachers, each in its own fixed order) and `dropped.jsonl` (every row that was read and did not
become an example, with file, line and cause). The metrics count both.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from pydantic import Field

from schemas.base import StrictModel
from schemas.examples import Example
from tasks.data.dropped import Dropped
from tasks.job import Input, Job, write_jsonl
from tasks.plugins import parse_plugin, plugin_module, plugin_versions

VERSION = 1
INPUTS: dict[str, Input] = {}

_REPORT_EVERY = 500
"""Rows between two progress reports."""


class Config(StrictModel):
    """Which teachers to ask.

    ```toml
    [[stages.distill.config.teachers]]
    name = "procedural"
    rows = { math = 1200 }
    ```

    Attributes:
        teachers: one table per teacher; `name` is a file in `tasks/teachers/`, the other keys are that teacher's Config.
        seed: for teachers that draw at random.
    """

    teachers: tuple[dict[str, Any], ...] = Field(min_length=1)
    seed: int = 0

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Validate; the teachers' tables come back complete with their defaults, so that these are part of the stage key.

        Raises:
            pydantic.ValidationError: this Config does not validate.
            InputError: a teacher's table does not.
        """
        config = super().parse(value)
        complete = [teacher.model_dump(mode="json") for teacher in teachers(config)]
        return config.model_copy(update={"teachers": tuple(complete)})


def teachers(config: Config) -> list[StrictModel]:
    """The teachers' own configs. Raises InputError: an unknown teacher, or a table that does not validate."""
    return [parse_plugin("teachers", table, f"teachers.{index}") for index, table in enumerate(config.teachers)]


def dependencies(config: Config, data: Path | None) -> dict[str, str | int]:
    """VERSION of each teacher, and what each depends on: digests of files, versions of packages. Raises InputError for a missing file."""
    found = plugin_versions("teachers", [table["name"] for table in config.teachers])
    for module, teacher in _modules(config):
        found |= module.dependencies(teacher, data)
    return found


def run(job: Job[Config]) -> dict[str, Any]:
    """Ask every teacher, drop duplicates, write the rows. Raises InputError where a teacher does."""
    config = job.config
    expected = sum(module.expected(teacher) for module, teacher in _modules(config))
    kept: dict[str, Example] = {}
    dropped: list[Dropped] = []
    rows = (row for module, teacher in _modules(config) for row in module.teach(teacher, config.seed, job.data))
    for number, row in enumerate(rows, start=1):
        if isinstance(row, Dropped):
            dropped.append(row)
        elif row.id in kept:
            dropped.append(_duplicate(row, kept[row.id]))
        else:
            kept[row.id] = row
        if number % _REPORT_EVERY == 0:
            job.progress(number, max(expected, number), "examples")
    examples = list(kept.values())
    write_jsonl(job.out / "examples.jsonl", examples)
    write_jsonl(job.out / "dropped.jsonl", dropped)
    job.progress(len(examples), len(examples), "examples")
    return counts(examples, dropped)


def _modules(config: Config) -> list[tuple[ModuleType, StrictModel]]:
    """Each teacher's module and config."""
    return [(plugin_module("teachers", table["name"]), teacher) for table, teacher in zip(config.teachers, teachers(config), strict=True)]


def _duplicate(row: Example, first: Example) -> Dropped:
    detail = f"prompt {row.id} was taken from {first.source} ({first.family}) already: {row.prompt[:80]!r}"
    return Dropped(source=row.family, file=row.source, line=0, cause="duplicate_prompt", detail=detail)


def counts(examples: list[Example], dropped: list[Dropped]) -> dict[str, Any]:
    """The stage's metrics.

    `rows` are the examples: reasoning rows by domain in `domains`, grounded ones by grounding in `groundings`; `families` and `difficulty`
    (by domain) count both. `dropped` counts causes. `sources` has one entry per family and file; `read` is `kept` + what was dropped.
    """
    kept_of = Counter((row.family, row.source) for row in examples)
    causes: dict[tuple[str, str], Counter[str]] = {}
    for row in dropped:
        causes.setdefault((row.source, row.file), Counter())[row.cause] += 1
    sources = [
        {
            "family": family,
            "file": file,
            "read": kept_of[family, file] + causes.get((family, file), Counter()).total(),
            "kept": kept_of[family, file],
            "dropped": dict(sorted(causes.get((family, file), Counter()).items())),
        }
        for family, file in dict.fromkeys([*kept_of, *causes])
    ]
    return {
        "rows": len(examples),
        "domains": _count(row.domain.value for row in examples if row.grounding is None),
        "groundings": _count(row.grounding for row in examples if row.grounding),
        "families": _count(row.family for row in examples),
        "difficulty": {
            domain.value: _count(str(row.difficulty) for row in examples if row.domain == domain)
            for domain in sorted({row.domain for row in examples})
        },
        "dropped": _count(row.cause for row in dropped),
        "sources": sources,
    }


def _count(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))
