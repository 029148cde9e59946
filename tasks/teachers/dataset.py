"""The dataset teacher: worked traces from local files, by a column mapping in the recipe.

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
All that a source may say is in `tasks.data.sources`, how a column becomes text in `tasks.data.mapping`, which files can be read in
`tasks.data.readers`, and why a row may be dropped in `tasks.data.dropped`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from schemas.base import InputError, StrictModel
from schemas.examples import Example
from tasks.data.directory import data_files, file_digest
from tasks.data.dropped import Dropped
from tasks.data.readers import Record, read_records
from tasks.data.sources import NotAnExample, Source, example_of

VERSION = 1

_READER = "teacher dataset"


class Config(StrictModel):
    """Local data sets.

    Attributes:
        sources: read in this order.
        max_prompt_characters, max_response_characters: longer rows are dropped as `too_long`. What fits the model is counted in tokens
            later, by the stages that train and sample; characters keep this stage independent of any tokenizer.
    """

    name: Literal["dataset"]
    sources: tuple[Source, ...]
    max_prompt_characters: int = Field(default=8000, ge=1)
    max_response_characters: int = Field(default=8000, ge=1)

    @field_validator("sources")
    @classmethod
    def _there_is_a_source(cls, sources: tuple[Source, ...]) -> tuple[Source, ...]:
        if not sources:
            raise ValueError("give at least one source, a table with path, domain, prompt, reasoning and answer")
        return sources


def dependencies(config: Config, data: Path | None) -> dict[str, str | int]:
    """`{"data/<path>": sha256}` of every file that is read. Raises InputError for a missing or unreadable one."""
    paths = [path for source in config.sources for path in (source.path, source.other and source.other.path) if path]
    files = {name: file for path in paths for name, file in data_files(data, path, _READER)}
    return {f"data/{name}": file_digest(name, file) for name, file in sorted(files.items())}


def expected(config: Config) -> int:
    """Not known before the files are read."""
    return 0


def teach(config: Config, seed: int, data: Path | None) -> Iterator[Example | Dropped]:
    """Yield an Example or a Dropped for every record of every source, in file order.

    Raises:
        InputError: a file is missing, empty or unreadable, a column does not exist, or too many rows of a source are bad or too long.
    """
    for source in config.sources:
        dropped: list[Dropped] = []
        total = 0
        for name, file in data_files(data, source.path, _READER):
            for row in _rows(config, source, name, file, data):
                total += 1
                if isinstance(row, Dropped):
                    dropped.append(row)
                yield row
        too_long = [row for row in dropped if row.cause == "too_long"]
        bad = [row for row in dropped if row.bad and row.cause != "too_long"]
        _check_limit("bad", bad, total, "max_bad_fraction", source.max_bad_fraction)
        _check_limit("too long", too_long, total, "max_too_long_fraction", source.max_too_long_fraction)


def _check_limit(what: str, rows: Sequence[Dropped], total: int, setting: str, limit: float) -> None:
    if len(rows) <= limit * total:
        return
    first = rows[0]
    causes = ", ".join(f"{count} {cause}" for cause, count in Counter(row.cause for row in rows).most_common())
    raise InputError(
        f"data file {first.file}, line {first.line}: {first.cause}: {first.detail}. It is the first of {len(rows)} rows (of {total}) that "
        f"are {what}: {causes}; {setting} = {limit} allows {int(limit * total)}. Correct the file or the mapping, or raise {setting}."
    )


def _rows(config: Config, source: Source, name: str, file: Path, data: Path | None) -> Iterator[Example | Dropped]:
    """One file's rows."""
    read = list(read_records(name, file))
    if not read:
        raise InputError(f"data file {name} holds no rows; fetch it again or leave its source out.")
    records = [record for record in read if isinstance(record, Record)]
    rows = _paired(source, name, records, data)
    if rows:
        source.require_mapped_columns(name, rows)
    family = source.family or file.name.split(".")[0]
    next_row = iter(rows)
    for record in read:
        try:
            if not isinstance(record, Record):
                raise NotAnExample(record.cause, record.detail)
            example = example_of(source, next(next_row), name, family)
            _check_length("prompt", example.prompt, config.max_prompt_characters)
            _check_length("response", example.response(), config.max_response_characters)
            yield example
        except NotAnExample as error:
            yield Dropped(source=family, file=name, line=record.line, cause=error.cause, detail=str(error))


def _check_length(part: str, text: str, most: int) -> None:
    if len(text) > most:
        raise NotAnExample("too_long", f"the {part} has {len(text)} characters, max_{part}_characters is {most}")


def _paired(source: Source, name: str, records: Sequence[Record], data: Path | None) -> list[Mapping[str, Any]]:
    """The records' rows; where the source pairs rows, each with the other one under `other`."""
    rows: list[Mapping[str, Any]] = [record.row for record in records]
    if source.other is None or not rows:
        return rows
    others, offset = rows, source.other.offset
    if source.other.path is not None:
        files = data_files(data, source.other.path, _READER)
        others = [record.row for other, file in files for record in read_records(other, file) if isinstance(record, Record)]
        if not others:
            raise InputError(f"data file {source.other.path} holds no rows to pair those of {name} with.")
    elif offset % len(rows) == 0:
        raise InputError(
            f"data file {name}: other.offset = {offset} pairs each of its {len(rows)} rows with itself; choose another offset."
        )
    return [{**row, "other": others[(place + offset) % len(others)]} for place, row in enumerate(rows)]
