"""The common part of suites: reading their files, and the prompts of an evaluation's suites and
held-out split."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import create_model

from schemas.base import InputError
from schemas.evaluation import HELDOUT, EvalPrompt
from schemas.examples import Example, Prompt
from tasks.contract.job import read_jsonl
from tasks.contract.suite import SUITES, Suite, SuiteConfig
from tasks.data.conversion import NotAnExample, prompt_of
from tasks.data.data_files import data_digests, data_files
from tasks.data.mapping import Columns, lookup
from tasks.data.readers import read_records
from tasks.data.records import Record, Unreadable
from tasks.data.sources import DataPath, PromptMapping
from tasks.verification.choices import asked, choices_of

TAKEN = (HELDOUT, "all", "mean", "stderr")
"""No suite's label: a report has rows for `all` prompts, a log of inspect_ai (`lyceum scores`) has
metrics of the other two names beside those of suites."""


class FileSuite(SuiteConfig):
    """A suite that is read from a file.

    Attributes:
        path: its file in the directory of `--data`, or a URL, as a source's.
    """

    path: DataPath


FileSuiteT = TypeVar("FileSuiteT", bound=FileSuite)


def published(name: str, path: str) -> type[FileSuite]:
    """The Config of a suite whose only setting is the path of its published file."""
    named: Any = (Literal[name], ...)
    return create_model("Config", __base__=FileSuite, name=named, path=(DataPath, path))


def parse_suites(tables: Sequence[dict[str, Any]], kind: str | None) -> list[SuiteConfig]:
    """Validate the suite tables of a stage of a kind; None: of any kind.

    Raises:
        InputError: an unknown suite, one of another kind, two with one label, or a table that its
            Config refuses.
    """
    configs: list[SuiteConfig] = [
        SUITES.parse(table, f"suites.{index}") for index, table in enumerate(tables)
    ]
    for index, config in enumerate(configs):
        asked_by = SUITES[config.name].asked_by
        if kind not in (asked_by, None):
            valid = ", ".join(name for name in SUITES.names() if kind == SUITES[name].asked_by)
            raise InputError(
                f"suites.{index}: suite {config.name!r} is asked by a stage of kind {asked_by}."
                f" Those of {kind}: {valid}."
            )
    labels = [*TAKEN, *(config.suite for config in configs)]
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise InputError(
            f"suites: {twice[0]!r} is the name of another suite, or of what reports and logs show"
            " beside suites; give each a label of its own."
        )
    return configs


def complete_suites(
    tables: Sequence[dict[str, Any]], kind: str | None
) -> tuple[dict[str, Any], ...]:
    """The tables with their defaults, so that these are part of the stage key. Raises as
    `parse_suites`."""
    return tuple(config.model_dump(mode="json") for config in parse_suites(tables, kind))


def suite_dependencies(
    tables: Sequence[dict[str, Any]], kind: str | None, data: Path | None
) -> dict[str, str | int]:
    """The versions of the suites and the digests of their files. Raises InputError: a file is
    missing."""
    configs = parse_suites(tables, kind)
    found = SUITES.versions(config.name for config in configs)
    for config in configs:
        found |= SUITES[config.name].dependencies(config, data)
    return found


def suite_size(config: SuiteConfig) -> int:
    """The number of prompts in a suite, as published."""
    size = SUITES[config.name].expected(config)
    return size if config.first is None else min(size, config.first)


def suite_prompts(config: SuiteConfig, data: Path | None) -> list[EvalPrompt]:
    """The prompts of a suite that are asked, with the format of their responses. Raises
    InputError: its file is missing, has none, or has a row that cannot be read."""
    prompts = SUITES[config.name].prompts(config, data)
    if not prompts:
        raise InputError(
            f"suite {config.suite}: its file holds no prompt. Fetch it again, or leave the suite"
            " out."
        )
    return [
        prompt.model_copy(update={"channels": config.channels})
        for prompt in prompts[: config.first]
    ]


def prompt_in(config: SuiteConfig, number: int, row: Prompt) -> EvalPrompt:
    """A row as the suite's prompt of that number, from 0."""
    return EvalPrompt.of(row).model_copy(
        update={"id": f"{config.suite}/{number}", "suite": config.suite}
    )


def question_of(prompt: EvalPrompt) -> str:
    """The text that identifies a prompt in a contamination search: a multiple choice question
    without its choices."""
    return prompt.prompt.removesuffix(asked("", choices_of(prompt)))


@dataclass(frozen=True)
class SuiteRecord(Record):
    """A record and the name of its file."""

    file: str


def bad_row(
    config: FileSuite, record: SuiteRecord, problem: str, fix: str = "Correct it."
) -> InputError:
    """The InputError for a row that makes no prompt."""
    return InputError(f"suite {config.suite}: {record.file}, line {record.line}: {problem}. {fix}")


def text_in(config: FileSuite, record: SuiteRecord, column: str) -> str:
    """A column's text. Raises InputError: it is no text."""
    value = lookup(record.row, column)
    if not isinstance(value, str) or not value.strip():
        raise bad_row(config, record, f"{column} is no text, but {value!r}")
    return value.strip()


def suite_digests(config: FileSuite, data: Path | None) -> dict[str, str | int]:
    """`{"data/<path>": digest}` of a suite's file (or files). Raises InputError: no such file."""
    return data_digests(data, config.path, f"suite {config.suite}")


def suite_records(
    config: FileSuite, data: Path | None, *, header: Sequence[str] = ()
) -> Iterator[SuiteRecord]:
    """The records of a suite's file (or files, by name), in file order.

    Args:
        header: the columns of CSV files whose first line does not name them.

    Raises:
        InputError: no such file, or a row that cannot be read.
    """
    for name, file in data_files(data, config.path, f"suite {config.suite}"):
        for record in read_records(name, file, header=header):
            if isinstance(record, Unreadable):
                raise InputError(
                    f"suite {config.suite}: {name}, line {record.line} cannot be read:"
                    f" {record.detail}. Fetch the file again."
                )
            yield SuiteRecord(record.line, record.row, name)


def mapped(
    config: FileSuite,
    records: Iterable[SuiteRecord],
    mapping: PromptMapping | Callable[[SuiteRecord], PromptMapping],
    most: int | None = None,
) -> list[EvalPrompt]:
    """The prompts that records make by a mapping, or by the one that a function gives for each
    record; with `most`, only the first so many, and no more records are read.

    A prompt's family is the file's name without suffix. Numbers in ids count all records, even
    those that a mapping's `require` skips.

    Raises:
        InputError: a column is missing, or a record makes no prompt.
    """
    prompts: list[EvalPrompt] = []
    columns: dict[str, Columns] = {}
    for number, record in enumerate(records):
        how = mapping if isinstance(mapping, PromptMapping) else mapping(record)
        if record.file not in columns:
            columns[record.file] = Columns(record.file, how.columns())
        seen = columns[record.file]
        seen.see(record.row)
        family = record.file.rpartition("/")[2].split(".")[0]
        try:
            prompt = prompt_of(how, record.row, record.file, record.line, family)
        except NotAnExample as error:
            if error.cause == "left_out":
                continue
            seen.require_all()
            raise bad_row(config, record, f"{error.cause}: {error}") from error
        prompts.append(prompt_in(config, number, prompt))
        if len(prompts) == most:  # a column may come later
            return prompts
    for seen in columns.values():
        seen.require_all()
    return prompts


def file_suite(
    *,
    version: int,
    config: type[FileSuiteT],
    mapping: dict[str, Any] | Callable[[FileSuiteT, SuiteRecord], PromptMapping],
    expected: int | Callable[[FileSuiteT], int],
    records: Callable[[FileSuiteT, Path | None], Iterable[SuiteRecord]] = suite_records,
    asked_by: str = "reasoning_eval",
) -> Suite[FileSuiteT]:
    """A suite from a file, by a mapping of its records (`tasks.data.sources.PromptMapping`).

    Args:
        mapping: of all records, or of each.
        expected: how many prompts the published file has.
        records: the records to ask, if not all of the file.
    """
    of_all = None if callable(mapping) else PromptMapping.parse(mapping)

    def prompts(config: FileSuiteT, data: Path | None) -> list[EvalPrompt]:
        how = partial(mapping, config) if callable(mapping) else of_all
        return mapped(config, records(config, data), how, config.first)  # type: ignore[arg-type]

    return Suite(
        version=version,
        config=config,
        prompts=prompts,
        dependencies=suite_digests,
        expected=expected if callable(expected) else lambda config: expected,
        asked_by=asked_by,
    )


def heldout_prompts(rebalance: Path, *, grounded: bool) -> list[EvalPrompt]:
    """The held-out prompts of a rebalance artifact, grounded ones or all others, in file order."""
    examples = read_jsonl(rebalance / "heldout.jsonl", Example)
    return [
        EvalPrompt.of(example)
        for example in examples
        if (example.grounding is not None) == grounded
    ]
