"""Topping up: ask the teachers again, within the budgets that distill left them, for rows that
cleaning dropped from the quotas.

A round asks each teacher in turn for the missing rows (`Lesson.wanted`), never for a prompt that
was given before (`Lesson.known`). Its results are stored in the stage's workspace, so a killed
stage asks nothing twice: a finished round is read again, and in an unfinished one paid answers come
from the store (`infra.store.answers`).
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from schemas.base import InputError
from schemas.examples import Domain, Example, Prompt
from tasks.cleaning.pools import Files, Pools
from tasks.cleaning.quotas import GroupQuota, Shortfall, shortfall_table
from tasks.cleaning.rules import SPLITS, Split
from tasks.contract.job import Job, read_rows
from tasks.data.dropped import Dropped
from tasks.teaching.lesson import FILES, Cell, take_cell
from tasks.teaching.teacher_tables import lesson_of, most_rows, row_files, teachers_of

LEAST_YIELD = 0.05
"""However few rows of a group survived so far, at most so much more is asked for: twenty for each
that is missing."""


def require_rows(
    quotas: Sequence[GroupQuota], tables: Sequence[Mapping[str, Any]], data: Path | None
) -> None:
    """Check, before anybody is asked, that the files from which teachers read have as many rows as
    quotas ask for, as far as these are known (`Teacher.most`). Raises InputError."""
    if not quotas or (there := most_rows(teachers_of(tables), data)) is None:
        return
    for table, group, quota in quotas:
        asked = {split: quota.total(split) for split in SPLITS}
        if (total := sum(asked.values())) > there[group]:
            said = ", ".join(f"{count} {split}" for split, count in asked.items() if count)
            raise InputError(
                f"{table}.{group} asks for {total} rows ({said}), and the files of the teachers"
                f" have at most {there[group]}. Lower it, add rows, or take what there is: exact ="
                " false."
            )


@dataclass(frozen=True)
class Round:
    """A finished round: the files, as distill writes them, and the numbers for the metrics.

    Attributes:
        about: `wanted` ([group, difficulty or None, rows]), `given` (examples), `unsolved`
            (prompts), `spent` (by each teacher so far: usd, tokens) and `teachers` (their tallies).
    """

    directory: Path
    about: dict[str, Any]

    @property
    def given(self) -> int:
        """New examples. A teacher that solved no prompt will not solve the next ones either, but
        may be paid for trying."""
        return int(self.about["given"])


def wanted(
    shortfalls: Iterable[Shortfall],
    fractions: Mapping[Split, float],
    remaining: Mapping[str, int],
    read: Mapping[str, int],
) -> dict[Cell, int]:
    """How many new rows of each cell to ask for, so that enough are likely to be left after
    cleaning.

    A new row falls into a split with the split's fraction, and survives cleaning like those before
    it; two standard deviations are added. A row's split is not known before its prompt, so the
    split that needs the most decides.

    Args:
        remaining, read: for each group, rows of the last round that are left, and all its rows,
            solved or not.
    """
    rows: dict[Cell, int] = {}
    for short in shortfalls:
        survived = (remaining.get(short.group, 0) + 1) / (read.get(short.group, 0) + 2)
        survives = fractions[short.split] * max(LEAST_YIELD, survived)
        count = math.ceil((short.missing + 2 * math.sqrt(short.missing)) / survives)
        group: Any = Domain(short.group) if short.group in list(Domain) else short.group
        cell = Cell(group, short.level)
        rows[cell] = max(rows.get(cell, 0), count)
    return rows


class KnownIds(Set[str]):
    """Prompt ids as a set of strings, at 8 bytes each."""

    def __init__(self, ids: np.ndarray) -> None:
        self._ids = np.unique(ids.astype(np.uint64))

    def __contains__(self, one: object) -> bool:
        place = np.searchsorted(self._ids, np.uint64(int(str(one), 16)))
        return bool(place < len(self._ids) and self._ids[place] == int(str(one), 16))

    def __iter__(self) -> Iterator[str]:
        return (f"{one:016x}" for one in self._ids.tolist())

    def __len__(self) -> int:
        return len(self._ids)


def unsolved_ids(directories: Sequence[Path]) -> np.ndarray:
    """Ids of prompts that were asked in vain and that are in `dropped.jsonl` only: asking again
    would give the same."""
    rows = (row for directory in directories for row in read_rows(directory / FILES[Dropped]))
    found = [int(row["id"], 16) for row in rows if row["cause"] == "unsolved" and row["id"]]
    return np.array(found, np.uint64)


def explain_shortfall(
    short: Sequence[Shortfall], pools: Pools, rounds: Sequence[Round], files: Files
) -> str:
    """The table of missing rows, the rows of these groups that cleaning dropped, and those that the
    teachers dropped."""
    lines = ["the quotas ask for more rows than distill produced:", shortfall_table(short)]
    read, solved, remaining = pools.read(), pools.read(solved=True), pools.remaining()
    for group in dict.fromkeys(one.group for one in short):
        causes = ", ".join(f"{count} {cause}" for cause, count in pools.dropped_of(group).items())
        splits = ", ".join(f"{len(pools.pool(group, split).rows)} {split}" for split in SPLITS)
        examples = solved.get(group, 0)
        lines.append(
            f"{group}: {examples} examples and {read.get(group, 0) - examples} unsolved prompts"
            f" were read; dropped: {causes or 'none'}; {remaining.get(group, 0)} examples are left"
            f" ({splits})."
        )
    dropped = (row for path in files.named("dropped.jsonl") for row in read_rows(path))
    if before := Counter(row["cause"] for row in dropped):
        causes = ", ".join(f"{count} {cause}" for cause, count in sorted(before.items()))
        lines.append(f"Dropped by the teachers, of all groups: {causes}.")
    for number, one in enumerate(rounds, start=1):
        asked = sum(count for *_, count in one.about["wanted"])
        usd = sum(teacher.get("usd", 0.0) for teacher in one.about["teachers"])
        lines.append(
            f"Top-up {number}: the teachers were asked for {asked} rows and gave {one.given}, for"
            f" {usd:.2f} US dollars."
        )
    lines.append(
        "Lower the quota, let the teacher produce more rows, or give the split a larger"
        " validation_fraction or heldout_fraction."
    )
    return "\n".join(lines)


class Teachers:
    """The teachers of a distill artifact, for more rows."""

    def __init__(self, job: Job[Any], distilled: Path) -> None:
        """Args:
        distilled: the directory of the distill artifact.
        """
        about = json.loads((distilled / "teachers.json").read_text(encoding="utf-8"))
        self._job = job
        self._seed: int = about["seed"]
        self._teachers = teachers_of(about["teachers"])
        self._names = [table["name"] for table in about["teachers"]]
        self._spent: list[dict[str, float]] = about["spent"]

    def ask(self, number: int, cells: Mapping[Cell, int], known: Set[str]) -> Round:
        """Round `number`, from 1: the results of an earlier attempt, or new ones.

        Raises:
            InputError: a teacher does.
        """
        name = f"top-up/{number}"
        loaded = self._job.work.load_tree(name)
        if loaded is None:
            directory = self._job.work.scratch(f"top-up-{number}")
            self._job.work.save_tree(name, directory, self._ask(cells, known, directory))
            loaded = self._job.work.load_tree(name)
            assert loaded is not None, "a tree that was saved is there"
        self._spent = loaded[1]["spent"]
        return Round(*loaded)

    def _ask(self, cells: Mapping[Cell, int], known: Set[str], directory: Path) -> dict[str, Any]:
        missing, counts = Counter(dict(cells)), Counter[type]()
        spent, tallies = [], []
        with row_files(directory) as write:
            asked_in_turn = zip(self._names, self._teachers, self._spent, strict=True)
            for name, (teacher, config), before in asked_in_turn:
                paid = {"spent_usd": before["usd"], "spent_tokens": int(before["tokens"])}
                asked = {"wanted": dict(+missing), "known": known}
                lesson = lesson_of(self._job, self._seed, **asked, **paid)
                for row in teacher.teach(config, lesson) if lesson.wanted else ():
                    write(row)
                    counts[type(row)] += 1
                    if isinstance(row, Example):
                        take_cell(missing, row)
                spent.append(lesson.spent())
                tallies.append({"name": name, **dict(sorted(lesson.tally.items()))})
        return {
            "wanted": [[str(cell.group), cell.difficulty, count] for cell, count in cells.items()],
            "given": counts[Example],
            "unsolved": counts[Prompt],
            "spent": spent,
            "teachers": tallies,
        }
