"""`lyceum init`: look at the data's first rows, ask what no option says, and write a recipe.

What is asked has a proposal, which an empty line takes; where nobody can be asked (standard input
is no terminal) every proposal is taken, and what has none is bad input.
"""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from flows.cli.answer import say
from flows.recipe.draft import (
    CHECKS,
    Draft,
    columns_of,
    propose,
    propose_check,
    propose_domain,
    text,
)
from flows.recipe.resolve import resolve_table
from flows.recipe.table import parse_table
from infra.store.location import given_path
from infra.targets import check_target
from infra.visible import plain
from schemas.base import InputError, Stopped, nearest
from schemas.examples import Domain
from schemas.recipe import STAGE_NAME
from tasks.data.mapping import Pick, lookup
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

    def get(self, name: str, question: str, proposal: Any = None) -> Any:
        """The option's value, else the person's answer, else the proposal, which may be a function
        that finds it. Raises InputError: nobody says; Stopped: the person has left."""
        if (value := self.given.get(name)) is not None:
            return value
        proposal = proposal() if callable(proposal) else proposal
        if self.read is None:
            if proposal is None:
                raise InputError(f"--{name} is missing: {question}.")
            return proposal
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
                return line.strip() or proposal


def draft_recipe(to: Path, asking: Asking) -> tuple[Draft, Path | None]:
    """Look, ask, and write the recipe; returns what it is made of and the directory of its data.

    Raises:
        InputError: bad input, or the file is there already; nothing was written.
        Stopped: the person who was asked has left.
    """
    file, named = _new_file(to), shlex.quote(str(to))
    data, path = _place(str(asking.get("data", "Your data, a file or a URL (hf://, gs://, s3://)")))
    target = str(asking.get("target", "Where it will run: local, or a TPU such as v5e-8", "local"))
    check_target(target)
    usd = _usd(asking.get("usd", "The most it may cost, in US dollars (0: no limit)", 0.0))
    model = str(asking.get("model", "The model to teach", "gemma3-1b-it"))
    check_model(model)
    rows, count = first_rows(data, path)
    columns = _columns(rows, asking)
    answers = _texts(columns["answer"], rows)
    prompts, domains = _texts(columns["prompt"], rows), [one.value for one in Domain]
    questions = {
        "check": ("How answers are verified", CHECKS, partial(propose_check, answers)),
        "domain": ("What prompts are about", domains, partial(propose_domain, prompts)),
    }
    chosen = {name: _choice(asking, name, *question) for name, question in questions.items()}
    check, domain = chosen["check"], chosen["domain"]
    if check == "none" and "reasoning" not in columns:
        raise InputError(
            "without a column of reasoning the model's own traces are what it learns from, and"
            " check none lets every one pass: name --reasoning COLUMN, or a --check that can fail:"
            f" {', '.join(CHECKS[:-1])}."
        )
    traces = _texts(columns.get("reasoning", columns["prompt"]), rows)
    both = [len(one) + len(other) for one, other in zip(traces, answers, strict=True)]
    where = f" --data {shlex.quote(str(data))}" if data else ""
    there = f"{where} --target {target}" if target != "local" else where
    budget = f" --usd {usd:g}" if usd and target != "local" else ""
    draft = Draft(
        name=file.stem,
        model=model,
        path=path,
        columns=columns,
        check=check,
        domain=domain,
        rows=count,
        longest=(max(map(len, prompts)), max(both)),
        commands=(
            f"lyceum rehearse {named}{where}",
            f"lyceum plan {named}{there}{budget}",
            f"lyceum run {named}{there}",
        ),
    )
    _write(file, draft, data, rows)
    return draft, data


def first_rows(data: Path | None, path: str) -> tuple[list[Mapping[str, Any]], int]:
    """The first rows that can be read, and how many there are, counted to a limit. Raises
    InputError."""
    from tasks.data.data_files import data_files
    from tasks.data.readers import read_records
    from tasks.data.records import Unreadable

    rows: list[Mapping[str, Any]] = []
    why: list[str] = []
    count = 0
    try:
        for name, file in data_files(data, path, "--data"):
            for record in islice(read_records(name, file), COUNTED - count):
                count += 1
                if isinstance(record, Unreadable):
                    save = "; save it as UTF-8" if record.cause == "wrong_encoding" else ""
                    why.append(f"; line {record.line}: {record.detail}{save}")
                elif len(rows) < FIRST:
                    rows.append(record.row)
    except OSError as error:
        raise InputError(f"--data {path} cannot be read: {error.strerror or error}.") from error
    if not rows:
        raise InputError(f"--data {path} holds no rows that can be read{''.join(why[:1])}.")
    if count == 1:
        raise InputError(f"--data {path} holds one row: too few to learn from one and ask another.")
    return rows, count


def _columns(rows: Sequence[Mapping[str, Any]], asking: Asking) -> dict[str, Any]:
    """Map the rows column by column, as the options, the person or the rows say."""
    proposed, names = propose(rows), columns_of(rows)
    if asking.read is not None:
        for name in names:
            first = next(filter(None, _texts(name, rows)), "")
            say(f"  {name}: {plain(first)[:100]}")
    questions = {
        "prompt": "The column of the prompt",
        "reasoning": f"The column of the reasoning ({NONE}: there is none)",
        "answer": "The column of the answer",
    }
    found: dict[str, Any] = {}
    for part, question in questions.items():
        proposal = proposed.get(part, NONE if part == "reasoning" else None)
        shown = _told(proposal)
        value = asking.get(part, f"{question}; columns: {', '.join(names)}", shown)
        if value == NONE and part == "reasoning":
            continue
        if twice := [name for name, column in found.items() if column == value]:
            raise InputError(f"--{part} {value}: that is the {twice[0]}; name another column.")
        if value == shown and not isinstance(proposal, str):
            found[part] = proposal
        elif all(lookup(row, value) is None for row in rows):
            raise InputError(
                f"--{part} {value}: the data have no such column.{nearest(value, names)}"
            )
        else:
            found[part] = value
    return found


def _choice(
    asking: Asking, name: str, what: str, known: Sequence[str], proposal: Callable[[], str]
) -> str:
    """One of several words. Raises InputError: it is another."""
    value = str(asking.get(name, f"{what} ({', '.join(known)})", proposal))
    if value not in known:
        raise InputError(f"--{name} {value}: there is no such {name}.{nearest(value, known)}")
    return value


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
    from tasks.data.data_files import check_data_path

    remote, file = "://" in given, given_path(given, "--data")
    try:
        if not remote and not file.is_file():
            kind = "is a pipe or a device: write its rows to a file" if file.exists() else ""
            kind = "is a directory: name the file in it" if file.is_dir() else kind
            raise InputError(f"--data {given} {kind or 'is not there'}.")
        path = check_data_path(given if remote else file.name)
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


def _usd(value: Any) -> float:
    try:
        usd = float(value)
    except ValueError:
        usd = -1.0
    if not 0 <= usd < 1e9:
        raise InputError(f"--usd {value}: give an amount in US dollars; 0 for no limit.")
    return usd


def _write(to: Path, draft: Draft, data: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Validate the recipe, see that its mapping reads the first rows, and make the file."""
    written = text(draft)
    resolve_table(parse_table(written, to.name), data)
    _check_rows(draft, rows)
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


def _check_rows(draft: Draft, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises InputError: most of the first rows make nothing by this mapping."""
    from tasks.data.conversion import NotAnExample, example_of, prompt_of
    from tasks.data.sources import Source

    source, why = Source.parse(draft.source()), list[str]()
    make = example_of if source.teaches else prompt_of
    for line, row in enumerate(rows, 1):
        try:
            make(source, row, draft.path, line, draft.name)
        except NotAnExample as error:
            why.append(f"row {line}: {error.cause}: {error}")
    if len(why) > len(rows) / 2:
        raise InputError(
            f"{len(why)} of the first {len(rows)} rows cannot be used so; {why[0]}. Name other"
            " columns, or another --check."
        )
