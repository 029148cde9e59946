"""Distill: worked traces from one or more teachers.

Writes, in the order of the teachers, and within a teacher in a fixed order,

    examples.jsonl    verified traces                                       (Example)
    pairs.jsonl       verified beside rejected responses of a teacher       (PreferencePair)
    unsolved.jsonl    prompts that no sample of a teacher solved            (Prompt)
    dropped.jsonl     every other row that was read, with file, line and cause   (Dropped)
    teachers.json     the teachers' tables, the seed and the spent budgets, for a top-up by the
                      rebalance stage
    README.md, card/  the data card (`tasks.data.card`)

Rows are written as they come, so memory does not grow with them. Only bad rows are dropped here;
all cleaning is `rebalance`'s.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from schemas.base import InputError, StrictModel
from schemas.examples import Domain, Example, PreferencePair
from tasks.contract.job import Job
from tasks.contract.kind import Kind, Product
from tasks.contract.small import Sizes
from tasks.contract.teacher import TEACHERS
from tasks.data import card
from tasks.data.dropped import Dropped
from tasks.routing.router import confusion
from tasks.teaching.lesson import Lesson, Row
from tasks.teaching.teacher_tables import asks_an_api, lesson_of, row_files, teachers_of

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program

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
        teachers: one table per teacher; `name` is a file in `tasks/teachers/`, the other keys are
            that teacher's Config.
        seed: for teachers that draw at random.
    """

    teachers: tuple[dict[str, Any], ...] = Field(min_length=1)
    seed: int = 0

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Validate; complete the teachers' tables with their defaults, so that these are part of
        the stage key.

        Raises:
            pydantic.ValidationError: this Config does not validate.
            InputError: a teacher's table does not.
        """
        config = super().parse(value)
        parsed = teachers_of(config.teachers)
        here = [repr(one.name) for teacher, one in parsed if teacher.model(one)]
        if len(here) > 1:
            raise InputError(
                f"teachers: {' and '.join(here)} compute on devices; give each a distill stage of"
                " its own."
            )
        complete = [one.model_dump(mode="json") for _, one in parsed]
        return config.model_copy(update={"teachers": tuple(complete)})


def dependencies(config: Config, data: Path | None) -> dict[str, str | int]:
    """The version of each teacher and what it depends on: digests of files, versions of packages.
    Raises InputError for a missing file."""
    found = TEACHERS.versions(table["name"] for table in config.teachers)
    for teacher, one in teachers_of(config.teachers):
        found |= teacher.dependencies(one, data)
    return found


def base_model(config: Mapping[str, Any]) -> str | None:
    """The model of the teacher that computes on this job's devices, if there is one."""
    return next(
        (
            model
            for teacher, one in teachers_of(config["teachers"])
            if (model := teacher.model(one))
        ),
        None,
    )


def at_home(config: Mapping[str, Any], inputs: Mapping[str, Any]) -> bool:
    """Whether a teacher is an API: waiting for its answers needs no cloud machine, and its key
    stays here."""
    return asks_an_api(config["teachers"])


def programs(config: Config, model: "LoadedModel", upstream: Mapping[str, Any]) -> "list[Program]":
    """The programs that `run` compiles, if a teacher computes on devices."""
    return [
        program
        for teacher, one in teachers_of(config.teachers)
        for program in teacher.programs(one, model)
    ]


def small(config: Config, sizes: Sizes) -> Config:
    """Each teacher's own small config."""
    small = tuple(
        teacher.small(one, sizes).model_dump(mode="json")
        for teacher, one in teachers_of(config.teachers)
    )
    return config.model_copy(update={"teachers": small})


def run(job: Job[Config]) -> dict[str, Any]:
    """Ask every teacher and write the rows. Raises InputError where a teacher does."""
    config = job.config
    teachers = teachers_of(config.teachers)
    expected = sum(teacher.expected(one) for teacher, one in teachers)
    counts = Counts()
    lessons = []
    with row_files(job.out) as write:
        for teacher, one in teachers:
            lesson = lesson_of(job, config.seed)
            lessons.append(lesson)
            for row in teacher.teach(one, lesson):
                write(row)
                counts.add(row)
                if counts.rows % _REPORT_EVERY == 0 and teacher.expected(one):
                    job.progress(counts.rows, max(expected, counts.rows), "examples")
    about = {
        "teachers": config.teachers,
        "seed": config.seed,
        "spent": [lesson.spent() for lesson in lessons],
    }
    (job.out / "teachers.json").write_text(
        json.dumps(about, ensure_ascii=False, indent=1), encoding="utf-8"
    )
    job.progress(counts.examples.total(), counts.examples.total(), "examples")
    tallies = [
        _tally(table, lesson) for table, lesson in zip(config.teachers, lessons, strict=True)
    ]
    metrics = {**counts.metrics(), "teachers": tallies, **_router(lessons)}
    return {**metrics, **card.of_distill(job.out, config.teachers, metrics)}


def _tally(table: Mapping[str, Any], lesson: Lesson) -> dict[str, Any]:
    """A teacher's name and its counts, e.g. `usd`, `requests`, `cached`, `samples.verified`."""
    return {
        "name": table["name"],
        **{
            name: value
            for name, value in sorted(lesson.tally.items())
            if not name.startswith("confusion.")
        },
    }


def _router(lessons: Sequence[Lesson]) -> dict[str, Any]:
    """`{"router": ...}`: the router's confusion matrix and rates on rows of known domain, where it
    routed others."""
    counts = Counter[tuple[Domain, Domain]]()
    for lesson in lessons:
        for name, count in lesson.tally.items():
            if name.startswith("confusion."):
                _, stated, routed = name.split(".")
                counts[Domain(stated), Domain(routed)] += int(count)
    return {"router": confusion(counts)} if counts else {}


class Counts:
    """Running counts of rows; memory grows with the number of distinct cells only."""

    def __init__(self) -> None:
        self.rows = 0
        self.examples = Counter[tuple[str, str]]()  # (family, file)
        self.dropped = Counter[tuple[str, str, str]]()  # (family, file, cause)
        self.cells = Counter[tuple[str, str | None, int]]()  # (domain, grounding, difficulty)
        self.pairs = Counter[str]()
        self.unsolved = Counter[str]()

    def add(self, row: Row) -> None:
        self.rows += 1
        if isinstance(row, Dropped):
            self.dropped[row.source, row.file, row.cause] += 1
        elif isinstance(row, Example):
            self.examples[row.family, row.source] += 1
            self.cells[row.domain.value, row.grounding, row.difficulty] += 1
        elif isinstance(row, PreferencePair):
            self.pairs[row.rejected_because] += 1
        else:
            self.unsolved[row.domain.value] += 1

    def metrics(self) -> dict[str, Any]:
        """The stage's metrics.

        `rows` counts examples: reasoning rows by domain in `domains`, grounded ones by grounding in
        `groundings`; `families` and `difficulty` (by domain) count both. `pairs` counts preference
        pairs by the reason of the rejection, `unsolved` prompts by domain, `dropped` rows by cause.
        `sources` has one entry per family and file; `read` is `kept` + dropped.
        """
        domains, groundings, families = Counter[str](), Counter[str](), Counter[str]()
        difficulty: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for (domain, grounding, level), count in self.cells.items():
            (groundings if grounding else domains)[grounding or domain] += count
            difficulty[domain][str(level)] += count
        for (family, _), count in self.examples.items():
            families[family] += count
        causes: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for (*place, cause), count in self.dropped.items():
            causes[place[0], place[1]][cause] += count
        return {
            "rows": self.examples.total(),
            "domains": _sorted(domains),
            "groundings": _sorted(groundings),
            "families": _sorted(families),
            "difficulty": {domain: _sorted(difficulty[domain]) for domain in sorted(difficulty)},
            "pairs": _sorted(self.pairs),
            "unsolved": _sorted(self.unsolved),
            "dropped": _sorted(sum(causes.values(), Counter())),
            "sources": [
                {
                    "family": place[0],
                    "file": place[1],
                    "read": self.examples[place] + causes[place].total(),
                    "kept": self.examples[place],
                    "dropped": _sorted(causes[place]),
                }
                for place in dict.fromkeys([*self.examples, *causes])
            ],
        }


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items()))


KIND = Kind(
    version=3,
    config=Config,
    inputs={},
    produces=Product.EXAMPLES,
    run=run,
    small=small,
    programs=programs,
    devices=lambda config: base_model(config) is not None,
    dependencies=dependencies,
    base_model=base_model,
    at_home=at_home,
)
