"""`lyceum init`: look at the data's first rows, ask what no option says, and write a recipe.

What is asked has a proposal, which an empty line takes; where nobody can be asked (standard input
is no terminal) every proposal is taken, and what has none is bad input. A person whose answer is
refused hears why, and is asked again.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

from flows.cli.answer import say
from flows.recipe.draft import (
    CHECKS,
    Draft,
    columns_of,
    parted,
    propose,
    propose_check,
    propose_choices,
    propose_domain,
    text,
)
from flows.recipe.resolve import resolve_table
from flows.recipe.table import parse_table
from flows.runs.next_commands import copied
from infra.context import context
from infra.store.location import given_path
from infra.targets import check_target
from infra.visible import plain
from schemas.base import InputError, Stopped, nearest
from schemas.examples import Domain
from schemas.recipe import STAGE_NAME
from schemas.toml import require_utf_8
from tasks.data.conversion import NotAnExample, example_of, prompt_of
from tasks.data.data_files import check_data_path, data_files
from tasks.data.mapping import Pick, lookup
from tasks.data.readers import read_records
from tasks.data.records import Record, Unreadable
from tasks.data.sources import Source
from tasks.models.model_source import check_model

FIRST, COUNTED = 50, 10_000
"""Rows that are looked at, and rows that are counted at most."""

NONE = "-"
"""The answer that there is no such column."""


@dataclass(frozen=True)
class Asking:
    """The options, and whom to ask for the rest: None where nobody is there."""

    given: Mapping[str, Any]
    read: Callable[[], str] | None

    def get(
        self, name: str, question: str, proposal: Any = None, accept: Callable[[str], Any] = str
    ) -> Any:
        """What `accept` makes of the option's value, else of the person's answer, else of the
        proposal, which may be a function that finds it. Raises InputError: nobody says, or an
        option's value is refused; Stopped: the person has left."""
        if (value := self.given.get(name)) is not None:
            return accept(value)
        proposal = proposal() if callable(proposal) else proposal
        if self.read is None:
            if proposal is None:
                raise InputError(f"--{name} is missing: {question}.")
            return accept(proposal)
        known = "" if proposal is None else f" [{plain(str(proposal))}]"
        while True:
            sys.stderr.write(f"{question}{known}: ")
            sys.stderr.flush()
            try:
                line = self.read()
            except UnicodeDecodeError:  # a backspace leaves half of a character
                continue
            if not line:
                raise Stopped
            if line.strip() or proposal is not None:
                try:
                    return accept(line.strip() or proposal)
                except InputError as error:
                    say(f"  {plain(str(error).removeprefix(f'--{name} '))}")

    def said(self, *names: str) -> bool:
        """Whether nobody is going to be asked about any of these."""
        return self.read is None or all(self.given.get(name) is not None for name in names)


def draft_recipe(to: Path, asking: Asking, store: str = "") -> tuple[Draft, Path | None]:
    """Look, ask, and write the recipe; returns what it is made of and the directory of its data.
    Its commands use `store`, or without one the default.

    Raises:
        InputError: bad input, or the file is there already; nothing was written.
        Stopped: the person who was asked has left.
    """
    file = _new_file(to)
    data, path, records = asking.get(
        "data", "Your data, a file or a URL (hf://, gs://, s3://)", accept=_data
    )
    first = [record for record in records if isinstance(record, Record)][:FIRST]
    rows = [record.row for record in first]
    target = asking.get(
        "target", "Where it will run: local, or a TPU such as v5e-8", "local", _target
    )
    usd = asking.get("usd", "The most it may cost, in US dollars (0: no limit)", "0", _usd)
    model = asking.get("model", "The model to teach", "gemma3-1b-it", _model)
    while True:
        columns = _columns(rows, asking)
        answers, choices = _texts(columns["answer"], rows), propose_choices(rows, columns)
        proposal = (lambda: "choice") if choices else partial(propose_check, answers)
        check = _choice(asking, "check", "How answers are verified", CHECKS, proposal)
        if check == "choice":
            columns |= {"choices": choices} if choices else {}
        try:
            mapped = {"path": path, "domain": "general", "check": check, **columns}
            _check_rows(mapped, first)
            break
        except InputError as error:
            if asking.said("prompt", "reasoning", "answer", "check"):
                raise
            say(f"  {plain(str(error))}")
    columns |= _allowed(mapped, records)
    prompts, domains = _texts(columns["prompt"], rows), [one.value for one in Domain]
    proposal = partial(propose_domain, prompts)
    domain = _choice(asking, "domain", "What prompts are about", domains, proposal)
    traces = _texts(columns.get("reasoning", columns["prompt"]), rows)
    both = [len(one) + len(other) for one, other in zip(traces, answers, strict=True)]
    listed = max(map(len, _texts(columns["choices"], rows))) if "choices" in columns else 0
    command = partial(copied, store=store or context().settings.store, data=data)
    budget = ("--usd", f"{usd:g}") if usd and target != "local" else ()
    draft = Draft(
        name=file.stem,
        model=model,
        path=path,
        columns=columns,
        check=check,
        domain=domain,
        rows=len(records),
        longest=(max(map(len, prompts)) + listed, max(both)),
        commands=(
            command("rehearse", str(to)),
            command("plan", str(to), *budget, target=target),
            command("run", str(to), target=target),
        ),
    )
    _write(file, draft, data)
    return draft, data


def read_rows(data: Path | None, path: str) -> list[Record | Unreadable]:
    """The records of the data, to a limit. Raises InputError: none can be read, or there is one."""
    records: list[Record | Unreadable] = []
    try:
        for name, file in data_files(data, path, "--data"):
            records += islice(read_records(name, file), COUNTED - len(records))
    except OSError as error:
        raise InputError(f"--data {path} cannot be read: {error.strerror or error}.") from error
    bad = [record for record in records if isinstance(record, Unreadable)]
    if len(bad) == len(records):
        save = "; save it as UTF-8" if bad and bad[0].cause == "wrong_encoding" else ""
        why = f"; line {bad[0].line}: {bad[0].detail}{save}" if bad else ""
        raise InputError(f"--data {path} holds no rows that can be read{why}.")
    if len(records) == 1:
        raise InputError(f"--data {path} holds one row: too few to learn from one and ask another.")
    return records


def _columns(rows: Sequence[Mapping[str, Any]], asking: Asking) -> dict[str, Any]:
    """Map the rows column by column, as the options, the person or the rows say."""
    proposed, names = propose(rows), columns_of(rows)
    if asking.read is not None:
        for name in names:
            first = next(filter(None, _texts(name, rows)), "")
            say(f"  {name}: {plain(first)[:100]}")
    questions = {
        "prompt": "The column of the prompt",
        "answer": "The column of the answer",
        "reasoning": f"The column of the reasoning ({NONE}: there is none)",
    }
    found: dict[str, Any] = {}
    for part, question in questions.items():
        proposal = proposed.get(part, NONE if part == "reasoning" else None)

        def column(value: str, part: str = part, proposal: Any = proposal) -> Any:
            if value == NONE and part == "reasoning":
                return None
            if twice := [name for name, one in found.items() if one == value]:
                raise InputError(f"--{part} {value}: that is the {twice[0]}; name another column.")
            if value == _told(proposal) and not isinstance(proposal, str):
                return proposal
            if all(lookup(row, value) is None for row in rows):
                problem = f"--{part} {value}: the data have no such column."
                raise InputError(problem + nearest(value, names))
            return value

        asked = f"{question}; columns: {', '.join(names)}"
        if (mapped := asking.get(part, asked, _told(proposal), column)) is not None:
            found[part] = mapped
        if part == "answer" and isinstance(mapped, str) and (both := parted(mapped, rows)):
            found["answer"] = both["answer"]
            proposed = {**proposed, "reasoning": both["reasoning"]}
    if "only" in proposed and found["prompt"] == proposed["prompt"]:
        found["only"] = proposed["only"]
        say("Of each dialogue, the first question and its answer are used.")
    return found


def _choice(
    asking: Asking, name: str, what: str, known: Sequence[str], proposal: Callable[[], str]
) -> str:
    """One of several words. Raises InputError: it is another."""

    def one_of(value: str) -> str:
        if value not in known:
            raise InputError(f"--{name} {value}: there is no such {name}.{nearest(value, known)}")
        return value

    return str(asking.get(name, f"{what} ({', '.join(known)})", proposal, one_of))


def _told(proposal: Any) -> str | None:
    """A proposal as a person reads it: a column, or a part of one."""
    if isinstance(proposal, Mapping) and "template" in proposal:
        return str(proposal["template"]).replace("\n", " ")
    if isinstance(proposal, Mapping):
        side = "before" if "before" in proposal else "after"
        return f"{proposal['column']} {side} {proposal[side]}"
    return proposal if proposal is None else str(proposal)


def _texts(column: Any, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The text of a column, or of its part, in each row, as the recipe will read it."""
    pick = Pick.parse({"column": column} if isinstance(column, str) else column)
    return [pick.text(row) for row in rows]


def _place(given: str) -> tuple[Path | None, str]:
    """The directory for --data, and the path that a source has; of a URL only that."""
    remote, file = "://" in given, given_path(given, "--data")
    try:
        if not remote and not file.is_file():
            kind = "is a pipe or a device: write its rows to a file" if file.exists() else ""
            kind = "is a directory: name the file in it" if file.is_dir() else kind
            raise InputError(f"--data {given} {kind or 'is not there'}.")
        path = check_data_path(given if remote else file.name)
        require_utf_8(path, "--data")
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"--data {given} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InputError(f"--data {given}: {error}.") from error
    return (None if remote else Path(given).expanduser().parent), path


def _new_file(to: Path) -> Path:
    to = given_path(to, "the recipe")
    if to.suffix != ".toml" or not STAGE_NAME.fullmatch(to.stem):
        raise InputError(
            f"{to}: give a file such as mine.toml: lower-case letters, digits and _, a letter"
            " first."
        )
    try:
        there, directory = to.exists(), to.parent.is_dir()
    except OSError as error:
        raise InputError(f"{to} cannot be written: {error.strerror}.") from error
    if there:
        raise InputError(f"{to} is there already, and is not overwritten; give another name.")
    if not directory:
        raise InputError(f"{to}: there is no directory {to.parent}; make it first.")
    return to


def _data(given: str) -> tuple[Path | None, str, list[Record | Unreadable]]:
    """The directory for --data, the path that a source has, and its records."""
    data, path = _place(given)
    return data, path, read_rows(data, path)


def _target(given: str) -> str:
    check_target(given)
    return given


def _model(given: str) -> str:
    check_model(given)
    return given


def _usd(value: Any) -> float:
    try:
        usd = float(value)
    except ValueError:
        usd = -1.0
    if not 0 <= usd < 1e9:
        raise InputError(f"--usd {value}: give an amount in US dollars; 0 for no limit.")
    return usd


def _write(to: Path, draft: Draft, data: Path | None) -> None:
    """Validate the recipe, and make the file."""
    written = text(draft)
    resolve_table(parse_table(written, to.name), data)
    try:
        file = to.open("x", encoding="utf-8")
        try:
            with file:
                file.write(written)
        except BaseException:  # a full disk, or Ctrl-C: no half a recipe stays in the way
            to.unlink()
            raise
    except OSError as error:
        raise InputError(f"{to} cannot be written: {error.strerror}.") from error


def _refused(
    mapped: Mapping[str, Any], records: Iterable[Record | Unreadable]
) -> list[tuple[int, str, str]]:
    """Of each record that makes nothing by this source: its place from 1, the cause, the reason."""
    source = Source.parse(mapped)
    make, found = example_of if source.teaches else prompt_of, list[tuple[int, str, str]]()
    for place, record in enumerate(records, 1):
        if isinstance(record, Unreadable):
            found.append((place, record.cause, record.detail))
            continue
        try:
            make(source, record.row, source.path, record.line, "")
        except NotAnExample as error:
            found.append((place, error.cause, str(error)))
    return found


def _allowed(mapped: Mapping[str, Any], records: Sequence[Record | Unreadable]) -> dict[str, float]:
    """What a source says of its bad rows, where they are more than it allows without a word; of the
    rows that are counted. A run would end at them."""
    causes = Counter(cause for _, cause, _ in _refused(mapped, records) if cause != "left_out")
    bad, count = causes.total(), len(records)
    if bad <= Source.parse(mapped).max_bad_fraction * count:
        return {}
    why = ", ".join(f"{rows} {cause}" for cause, rows in causes.most_common())
    say(f"{bad} of {count} rows make no example ({why}): they are left out, and counted.")
    return {"max_bad_fraction": min(0.99, ceil(110 * bad / count) / 100)}


def _check_rows(mapped: Mapping[str, Any], first: Sequence[Record]) -> None:
    """Raises InputError: most of the first rows make nothing by this source, or nothing of them is
    verified or taught."""
    if mapped["check"] == "none" and "reasoning" not in mapped:
        raise InputError(
            "without a column of reasoning the model's own traces are what it learns from, and"
            " check none lets every one pass: name --reasoning COLUMN, or a --check that can fail:"
            f" {', '.join(CHECKS[:-1])}."
        )
    if mapped["check"] == "choice" and "choices" not in mapped:
        raise InputError(
            "--check choice: no column is a list of 2 to 26 texts of which the answer is one (its"
            " letter, its place from 0, or its text); name another --check."
        )
    refused = _refused(mapped, first)
    if len(refused) > len(first) / 2:
        place, cause, why = refused[0]
        raise InputError(
            f"{len(refused)} of the first {len(first)} rows cannot be used so; row {place}:"
            f" {cause}: {why}. Name other columns, or another --check."
        )
