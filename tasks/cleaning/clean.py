"""Cleaning of any number of rows in bounded memory: exact and near duplicates, decontamination,
filters. Every dropped row has its cause.

    cleaned = clean(files, evaluations, rules, scratch=scratch)
    for line in cleaned.lines(cleaned.remaining):
        ...

1. One streaming pass over the files in blocks, in as many processes as there are cores
   (`tasks.cleaning.survey`): parse the line, hash the words of its prompt, look up their n-grams
   among the evaluation sets', compute the MinHash signature, ask the filters. A row takes
   `STATE_BYTES` + 8 per band (112 by default) bytes in column files below `scratch`, and 8 for each
   word of its prompt. A million rows of 1 kB need at most 0.7 GB of memory in three processes,
   1.2 GB with 15% held out, whose n-grams are then indexed.
2. Decisions over all rows (`tasks.cleaning.state`): exact duplicates (one row per prompt id), near
   duplicates (`tasks.cleaning.near_duplicates`), and rows of the training and validation splits
   that contain a held-out prompt (`tasks.cleaning.contamination`).
3. `Cleaned` streams the rows back from their files.

A row is dropped for the first cause that applies: contaminated by an evaluation set, a filter,
duplicate, near duplicate, contaminated by the held-out split. Decisions are a function of the set
of rows (their content, ids and the seed); the order and sharding of the files, the number of
processes and the engine (`tasks.cleaning.cluster`) do not change them.

The compared text is the prompt, with its `context` (of grounded prompts) replaced by one word, the
context's digest: questions about one abstract are not duplicates because of the abstract, and
questions about different contexts are never duplicates.
"""

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from infra.cores import usable_cores
from schemas.base import clip
from tasks.cleaning.rules import (
    CAUSES,
    COLUMNS,
    DECIDED,
    DETAILS,
    HITS,
    EvaluationItems,
    Progress,
    Rules,
)
from tasks.contract.check import check_of
from tasks.data.dropped import Dropped
from tasks.verification.text import normalise_answer

_HOW = {
    "exact": "the same words as",
    "coverage": "shares n-grams with",
    "run": "shares a long run of words with",
}
_LINES = 4096
"""Rows whose places are read at a time."""


@dataclass(frozen=True)
class Cleaned:
    """All N rows of the input files, in the order of the files, and the decisions about them.
    Arrays of shape (N,), mapped from disk or, for a cluster's decisions, in memory.

    Attributes:
        files: the input files.
        items: (name of the evaluation set, id) of each evaluation item.
        file, offset, length: the place of the row's line: index in `files`, first byte, bytes
            without the newline.
        id: the prompt id's 16 hexadecimal characters as a number.
        content: a hash of the line, its highest bit set for unsolved prompts.
        group, split, cause, hit: indices in GROUPS, SPLITS, CAUSES and HITS.
        match: the row that it duplicates or (held-out hits) gives away, or the item in `items` that
            contaminates it; -1 for none.
        score: estimated Jaccard similarity of near duplicates, coverage of contaminated rows, 1 for
            the same words; else 0.
        scratch: the directory of the arrays and of the filters' details; `remove()` deletes it.
    """

    files: tuple[Path, ...]
    items: tuple[tuple[str, str], ...]
    file: NDArray[np.uint16]
    offset: NDArray[np.int64]
    length: NDArray[np.int32]
    id: NDArray[np.uint64]
    content: NDArray[np.uint64]
    group: NDArray[np.uint8]
    difficulty: NDArray[np.uint8]
    split: NDArray[np.uint8]
    cause: NDArray[np.uint8]
    hit: NDArray[np.uint8]
    match: NDArray[np.int64]
    score: NDArray[np.float32]
    scratch: Path

    @cached_property
    def remaining(self) -> NDArray[np.int64]:
        """Indices of the rows that are kept."""
        return np.flatnonzero(self.cause == 0)

    def counts(self) -> dict[str, int]:
        """Rows by cause, including "kept"."""
        return counted(self.cause, CAUSES)

    def lines(self, selection: Sequence[int] | NDArray[np.int64]) -> Iterator[bytes]:
        """The lines of the selected rows, without newline, in the order of the selection."""
        rows = np.asarray(selection, np.int64)
        with ExitStack() as stack:
            opened = [stack.enter_context(path.open("rb", buffering=0)) for path in self.files]
            streams = [stream.fileno() for stream in opened]
            for start in range(0, len(rows), _LINES):
                some = rows[start : start + _LINES]
                places = (column[some].tolist() for column in (self.file, self.length, self.offset))
                for file, length, offset in zip(*places, strict=True):
                    yield os.pread(streams[file], length, offset)

    def rows(self, selection: Sequence[int] | NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """The selected rows, parsed, in the order of the selection."""
        return map(orjson.loads, self.lines(selection))

    @cached_property
    def conflicts(self) -> dict[int, str]:
        """Rows that have the prompt of a row that is kept and another reference answer, with both
        in words: one of the two is wrong, or the prompt lacks what tells them apart."""
        rows = np.flatnonzero(self.cause == CAUSES.index("duplicate_prompt"))
        both = zip(self.rows(rows), self.rows(self.match[rows]), strict=True)
        told = (
            (row, f", whose answer is {clip(kept['answer'], 80)!r} and not {clip(own, 80)!r}")
            for row, (one, kept) in zip(rows.tolist(), both, strict=True)
            if (own := one["answer"]) and _answers_differ(kept, own)
        )
        return dict(told)

    def describe(self, row: int) -> str:
        """Why cleaning dropped a row: its match and score."""
        cause, hit = CAUSES[self.cause[row]], HITS[self.hit[row]]
        match, score = int(self.match[row]), float(self.score[row])
        if cause == "duplicate_prompt":
            return f"the same as prompt {self.id[match]:016x}{self.conflicts.get(row, '')}"
        if cause == "near_duplicate":
            return f"estimated Jaccard similarity {score:.2f} to prompt {self.id[match]:016x}"
        kind = hit.removeprefix("heldout_")
        inside = kind != hit
        other = (
            f"held-out prompt {self.id[match]:016x}" if inside else " item ".join(self.items[match])
        )
        return f"{_HOW[kind]} {other}, coverage {score:.2f}"

    def dropped(self) -> Iterator[Dropped]:
        """A record of each row that was dropped, in the order of the files."""
        rows = np.flatnonzero(self.cause)
        with (self.scratch / DETAILS).open(encoding="utf-8") as details:
            for index, row in zip(rows.tolist(), self.rows(rows), strict=True):
                cause = CAUSES[self.cause[index]]
                # the filters' details are in a file of their own, a line for each row that they
                # dropped
                detail = self.describe(index) if cause in CAUSES[1:4] else details.readline()[:-1]
                place = {"source": row["family"], "file": row["source"], "line": row["line"]}
                yield Dropped(**place, cause=cause, detail=detail, id=f"{self.id[index]:016x}")

    def digest(self) -> str:
        """sha256 of the decisions by content (`DECIDED`, with a match's prompt id): the same for
        the same rows in other files, in another order, or by another engine."""
        taken = {name: np.asarray(getattr(self, name)) for name in DECIDED}
        inside = (self.match >= 0) & ~((self.hit > 0) & (self.hit < HITS.index("heldout_exact")))
        taken["match"] = self.match.astype(np.uint64)
        taken["match"][inside] = self.id[self.match[inside]]
        order = np.lexsort((taken["cause"], taken["content"], taken["id"]))
        found = hashlib.sha256()
        for name in DECIDED:
            kind = COLUMNS[name].replace("<i8", "<u8")
            found.update(taken[name][order].astype(kind).tobytes())
        return found.hexdigest()

    def remove(self) -> None:
        """Delete the scratch directory. The arrays are unusable afterwards."""
        shutil.rmtree(self.scratch)


def _answers_differ(row: Mapping[str, Any], other: str) -> bool:
    """Whether a row's answer is the reference of its check, and another than `other`."""
    check = check_of(row["check"])
    if check is None or not check.by_reference or not row["answer"]:
        return False
    first, second = (check.vote(one, ()) or normalise_answer(one) for one in (row["answer"], other))
    return first != second


def counted(codes: NDArray[np.uint8], names: Sequence[str]) -> dict[str, int]:
    """How often each name occurs, given its index; only those that do."""
    found = np.bincount(codes, minlength=len(names)).tolist()
    return {name: count for name, count in zip(names, found, strict=True) if count}


def empty_scratch(scratch: Path) -> None:
    """Make the directory, and delete its contents, e.g. those of a killed attempt."""
    if scratch.exists():
        shutil.rmtree(scratch)
    scratch.mkdir(parents=True)


def clean(
    files: Sequence[Path],
    evaluations: Sequence[EvaluationItems],
    rules: Rules,
    *,
    scratch: Path,
    workers: int | None = None,
    progress: Progress = lambda done, total, unit: None,
) -> Cleaned:
    """Decide about every row of the files.

    Args:
        files: JSONL, each line an `Example` or a `Prompt` as pydantic writes them.
        evaluations: sets that no row may give away.
        scratch: a directory for the state, which is emptied first.
        workers: processes; None: one per core.

    Raises:
        ValueError: a line is not JSON.
        KeyError: a field is missing. The files come from verified artifacts, so either is a bug.
    """
    from tasks.cleaning.state import surveyed
    from tasks.cleaning.survey import blocks, plan_of

    empty_scratch(scratch)
    workers = workers or usable_cores()
    plan, items = plan_of(evaluations, rules)
    state = surveyed(blocks(files), plan, scratch, workers, progress)
    state.drop_duplicates()
    if plan.sketch is not None:
        state.drop_near_duplicates(plan.sketch, rules.seed, workers)
    if rules.contamination is not None and rules.contamination.heldout:
        state.drop_heldout(rules.contamination, workers)
    arrays = {name: column for name, column in state.columns.items() if name != "words"}
    return Cleaned(files=tuple(files), items=items, scratch=scratch, **arrays)
