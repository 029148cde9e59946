"""The dataset teacher: worked traces, or prompts for other teachers, from files, by a column
mapping in the recipe.

```toml
[[stages.distill.config.teachers]]
name = "dataset"
[[stages.distill.config.teachers.sources]]
path = "gsm8k/train_first1000.jsonl"
domain = "math"
prompt = "question"
reasoning = { column = "answer", before = "####" }
answer = { column = "answer", after = "####" }
check = "numeric"
```
Files are streamed: memory does not grow with them.

All that a source may say is in `tasks.data.sources`, how a column becomes text in
`tasks.data.mapping`, which files can be read in `tasks.data.readers`, and why a row may be dropped
in `tasks.data.dropped`.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, field_validator, model_validator

from schemas.base import InputError, StrictModel
from schemas.examples import Example, Prompt
from tasks.contract.check import check_of
from tasks.contract.small import Sizes
from tasks.contract.teacher import Teacher
from tasks.data.conversion import NotAnExample, example_of, prompt_of
from tasks.data.data_files import data_digests, data_files
from tasks.data.dropped import Dropped
from tasks.data.mapping import Columns
from tasks.data.readers import Record, Records, most_records, read_records
from tasks.data.sources import Source
from tasks.routing import router
from tasks.routing.asking import RoutingTeacher, asking
from tasks.routing.router import Ask
from tasks.teaching.lesson import Lesson
from tasks.verification.verify import check_versions

_READER = "teacher dataset"
_ROUTED_AT_A_TIME = 512
_COMPARED = 2000
"""Rows of each source whose domain is known that the router is tried on, where other sources rely
on it."""

_IN_MEMORY = 10_000
"""Rows of a file that others are paired with which are kept in memory; a larger file is read again
from its start when it ends."""

P = TypeVar("P", bound=Prompt)
Made = Callable[[Source, Mapping[str, Any], str, int, str], P]


class Config(StrictModel):
    """Data sets.

    Attributes:
        sources: read in this order.
        routing: a model to ask about prompts of which the router is unsure, if a source uses the
            router.
        max_prompt_characters, max_response_characters: longer rows are dropped as `too_long`.
            Characters keep this stage independent of any tokenizer; the stages that train and
            sample count tokens.
    """

    name: Literal["dataset"]
    sources: tuple[Source, ...]
    routing: RoutingTeacher | None = None
    max_prompt_characters: int = Field(default=8000, ge=1)
    max_response_characters: int = Field(default=8000, ge=1)

    @field_validator("sources")
    @classmethod
    def _there_is_a_source(cls, sources: tuple[Source, ...]) -> tuple[Source, ...]:
        if not sources:
            raise ValueError(
                "give at least one source, a table with path, domain, prompt, reasoning and answer"
            )
        return sources

    @model_validator(mode="after")
    def _who_is_asked_has_something_to_say(self) -> Self:
        if self.routing is not None and not any(source.routed for source in self.sources):
            raise ValueError(
                "routing is set, but no source says domain = 'router' or difficulty = 'router'"
            )
        return self


def dependencies(config: Config, data: Path | None) -> dict[str, str | int]:
    """`{"data/<path>": digest}` of every file that is read, and the router's if it is used.

    Raises:
        InputError: a file is missing, unreadable or, if it is on this machine, lacks a column.
    """
    paths = dict.fromkeys(source.path for source in config.sources)
    paths |= {one.other.path: None for one in config.sources if one.other and one.other.path}
    found: dict[str, str | int] = {}
    for path in paths:
        found |= data_digests(data, path, _READER)
    for source in config.sources:
        _require_columns(source, data)
    if any(source.routed for source in config.sources):
        found |= router.dependencies()
    checks = {source.check: check_of(source.check) for source in config.sources}
    return dict(sorted(found.items())) | check_versions(
        name for name, check in checks.items() if check and check.at_once
    )


def _require_columns(source: Source, data: Path | None) -> None:
    """Look at the first rows, before a machine is paid for."""
    paths = [source.path, source.other and source.other.path]
    if any(path and "://" in path for path in paths):
        return  # they are first read where the stage runs
    for name, file in data_files(data, source.path, _READER):
        records = _paired(source, name, read_records(name, file), data)
        rows = (record.row for record in records if isinstance(record, Record))
        Columns(name, source.columns(worked=source.teaches)).require_in(rows)


def most(config: Config, data: Path | None) -> Counter[str] | None:
    """Of sources whose rows are all of one group, the lines of their files."""
    found = Counter[str]()
    for source in config.sources:
        group = source.grounding or source.domain
        if not isinstance(group, str) or group == "router":
            return None
        rows = [most_records(file) for _, file in data_files(data, source.path, _READER)]
        if None in rows:
            return None
        count = sum(filter(None, rows))
        found[str(group)] += count if source.first is None else min(source.first, count)
    return found


def small(config: Config, sizes: Sizes) -> Config:
    """The first rows of every source, if not all are read; the allowed share of bad rows grows with
    what chance may find among so few."""
    if sizes.read is None:
        return config
    sources = (
        source.model_copy(
            update={
                "first": min(source.first or sizes.read, sizes.read),
                "max_bad_fraction": sizes.share_of(source.max_bad_fraction),
                "max_too_long_fraction": sizes.share_of(source.max_too_long_fraction),
            }
        )
        for source in config.sources
    )
    return config.model_copy(update={"sources": tuple(sources)})


def teach(config: Config, lesson: Lesson) -> Iterator[Example | Dropped]:
    """An Example or a Dropped for every record of every source, in file order. A top-up yields
    nothing: the first call gave all rows.

    Raises:
        InputError: a source has no reasoning or no answers, or what `prompts` raises.
    """
    for source in config.sources:
        if not source.teaches:
            lacks = "reasoning" if source.reasoning is None else "answer"
            raise InputError(
                f"teacher dataset: the source {source.path} has no {lacks}, so it holds prompts and"
                f" no worked traces. Set the column of its {lacks}, or let another teacher answer:"
                " put this table into that teacher's prompts."
            )
    return _rows(config, lesson, example_of) if lesson.wanted is None else iter(())


def prompts(config: Config, lesson: Lesson) -> Iterator[Prompt | Dropped]:
    """A Prompt or a Dropped for every record of every source, in file order. Reasoning is not read.

    Raises:
        InputError: a file is missing, empty or unreadable, a column does not exist, or too many
            rows of a source are bad or too long, which is known after its last row.
    """
    return _rows(config, lesson, prompt_of)


def _rows(config: Config, lesson: Lesson, make: Made[P]) -> Iterator[P | Dropped]:
    with asking(config.routing, lesson) if config.routing is not None else nullcontext() as ask:
        compares = any(source.routed for source in config.sources)
        for source in config.sources:
            rows = _unrouted(config, source, lesson.data, make)
            if source.routed:
                rows = _routed(source, rows, lesson, ask)
            elif compares:
                rows = _compared(rows, lesson)
            yield from _limited(source, rows)


def _limited(source: Source, rows: Iterator[P | Dropped]) -> Iterator[P | Dropped]:
    """The rows. Raises InputError at their end if more are bad, or too long, than the source
    allows."""
    total, first, causes = 0, dict[str, Dropped](), defaultdict[str, Counter[str]](Counter)
    for row in rows:
        total += 1
        if isinstance(row, Dropped) and row.bad:
            kind = "too_long" if row.cause == "too_long" else "bad"
            first.setdefault(kind, row)
            causes[kind][row.cause] += 1
        yield row
    for kind, one in sorted(first.items()):
        setting, count = f"max_{kind}_fraction", causes[kind].total()
        limit = getattr(source, setting)
        if count > limit * total:
            counted = ", ".join(f"{count} {cause}" for cause, count in causes[kind].most_common())
            raise InputError(
                f"data file {one.file}, line {one.line}: {one.cause}: {one.detail}. It is the first"
                f" of {count} rows (of {total}) that are {kind.replace('_', ' ')}: {counted};"
                f" {setting} = {limit} allows {int(limit * total)}. Correct the file or the"
                f" mapping, or raise {setting} in the table of the source."
            )


def _routed(
    source: Source, rows: Iterator[P | Dropped], lesson: Lesson, ask: Ask | None
) -> Iterator[P | Dropped]:
    """The rows with the router's domain and difficulty, if the source uses it; tallies who decided
    as `routed.<by>`."""
    while some := list(islice(rows, _ROUTED_AT_A_TIME)):
        asked = [row.prompt for row in some if not isinstance(row, Dropped)]
        routes = iter(router.route(asked, ask))
        for row in some:
            if isinstance(row, Dropped):
                yield row
                continue
            found = next(routes)
            unsure = found.by == "classifier" and found.probability < router.UNSURE
            unanswered = ask is not None and unsure
            lesson.tally["routed.teacher_failed" if unanswered else f"routed.{found.by}"] += 1
            asks = [key for key in ("domain", "difficulty") if getattr(source, key) == "router"]
            yield row.model_copy(update={key: getattr(found, key) for key in asks})


def _compared(rows: Iterator[P | Dropped], lesson: Lesson) -> Iterator[P | Dropped]:
    """Rows of a known domain, read beside routed rows: tallies the router's choice for the first of
    them as `confusion.<stated>.<routed>`. Grounded rows, whose domain does not count, are
    skipped."""
    first = list(islice(rows, _COMPARED))
    known = [row for row in first if not isinstance(row, Dropped) and row.grounding is None]
    for row, found in zip(known, router.route([row.prompt for row in known]), strict=True):
        lesson.tally[f"confusion.{row.domain}.{found.domain}"] += 1
    yield from first
    yield from rows


def _unrouted(
    config: Config, source: Source, data: Path | None, make: Made[P]
) -> Iterator[P | Dropped]:
    left = source.first
    for name, file in data_files(data, source.path, _READER):
        columns = Columns(name, source.columns(worked=make is example_of))
        family = source.family or file.name.split(".")[0]
        line, left_out = 0, False
        records = _paired(source, name, read_records(name, file), data)
        for record in islice(records, left):
            line = record.line
            if left is not None:
                left -= 1
            try:
                if not isinstance(record, Record):
                    raise NotAnExample(record.cause, record.detail)
                columns.see(record.row)
                row = make(source, record.row, name, line, family)
                _check_length("prompt", row.prompt, config.max_prompt_characters)
                if isinstance(row, Example):
                    _check_length("response", row.response(), config.max_response_characters)
                yield row
            except NotAnExample as error:
                left_out |= error.cause == "left_out"
                yield Dropped(
                    source=family, file=name, line=line, cause=error.cause, detail=str(error)
                )
        if not line:
            raise InputError(
                f"data file {name} holds no rows; fetch it again or leave its source out."
            )
        if left is None or not left_out:  # unread rows may have the column
            columns.require_all()
        if left == 0:
            return


def _check_length(part: str, text: str, most: int) -> None:
    if len(text) > most:
        raise NotAnExample(
            "too_long", f"the {part} has {len(text)} characters, max_{part}_characters is {most}"
        )


def _paired(source: Source, name: str, records: Records, data: Path | None) -> Records:
    """The records; if the source pairs rows, each with the other one under `other`. Unreadable ones
    are yielded at once."""
    if source.other is None:
        yield from records
    elif source.other.path is None:
        yield from _with_later(name, records, source.other.offset)
    else:
        others = islice(_round(source.other.path, name, data), source.other.offset, None)
        for record in records:
            yield _with(record, next(others)) if isinstance(record, Record) else record


def _with(record: Record, other: Mapping[str, Any]) -> Record:
    return Record(record.line, {**record.row, "other": other})


def _with_later(name: str, records: Records, offset: int) -> Records:
    """Each record with the one `offset` places after it, the last ones with the first. Holds 2 *
    offset records."""
    first: list[Record] = []
    waiting: deque[Record] = deque()
    total = 0
    for record in records:
        if not isinstance(record, Record):
            yield record
            continue
        total += 1
        if len(first) < offset:
            first.append(record)
        waiting.append(record)
        if len(waiting) > offset:
            yield _with(waiting.popleft(), record.row)
    if total and offset % total == 0:
        raise InputError(
            f"data file {name}: other.offset = {offset} pairs each of its {total} rows with itself;"
            " choose another offset."
        )
    for place, record in enumerate(waiting, start=total - len(waiting)):
        yield _with(record, first[(place + offset) % total].row)


def _round(path: str, name: str, data: Path | None) -> Iterator[Mapping[str, Any]]:
    """The rows of the files that `path` names, repeated without end."""
    while True:
        buffer: list[Mapping[str, Any]] = []
        total = 0
        for other, file in data_files(data, path, _READER):
            for record in read_records(other, file):
                if isinstance(record, Record):
                    total += 1
                    if total <= _IN_MEMORY:
                        buffer.append(record.row)
                    yield record.row
        if not total:
            raise InputError(f"data file {path} holds no rows to pair those of {name} with.")
        if total <= _IN_MEMORY:
            yield from cycle(buffer)


TEACHER = Teacher(
    version=5,
    config=Config,
    teach=teach,
    dependencies=dependencies,
    most=most,
    prompts=prompts,
    small=small,
    asks_an_api=lambda config: config.routing is not None,
)
