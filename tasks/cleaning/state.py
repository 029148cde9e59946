"""The state of cleaning on one machine: columns of all rows in files below a scratch directory, and
the decisions over all rows.

Columns are mapped from disk, so the operating system decides what is in memory, except the few
columns that a decision works on (about 40 bytes a row at a time) and the signatures of rows that
share a bucket (512 bytes each, mapped too).
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasks.cleaning.contamination import index
from tasks.cleaning.near_duplicates import Sketch, buckets, fallen, ranks
from tasks.cleaning.rules import (
    CAUSES,
    COLUMNS,
    DETAILS,
    HITS,
    SPLITS,
    Contamination,
    Progress,
)
from tasks.cleaning.shingles import Ends, Words
from tasks.cleaning.survey import Block, Plan, survey

HELDOUT = SPLITS.index("heldout")
DUPLICATE, NEAR_DUPLICATE, CONTAMINATED = (
    CAUSES.index(cause) for cause in ("duplicate_prompt", "near_duplicate", "contaminated")
)
FIRST_HELDOUT_HIT = HITS.index("heldout_exact") - HITS.index("exact")

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class State:
    """Attributes:
    scratch: the directory.
    columns: `tasks.cleaning.rules.COLUMNS`, each of shape (N,), mapped; decisions are
        written into `cause`, `hit`, `match` and `score`.
    keys: the buckets of each band, shape (N,).
    starts: the first row of each block, and N; block b's words are in `words-<b>`.
    """

    scratch: Path
    columns: dict[str, NDArray[Any]]
    keys: list[NDArray[np.uint64]]
    starts: list[int]

    def drop_duplicates(self) -> None:
        """Keep one row of each prompt id: a solved one if there is one; of several, that with the
        smallest line hash."""
        left = np.flatnonzero(self.columns["cause"] == 0)
        ids, content = self.columns["id"][left], self.columns["content"][left]
        same, first = duplicates(ids, content)
        self._drop(left[same], DUPLICATE, left[first], 1.0)

    def drop_near_duplicates(self, sketch: Sketch, seed: int, workers: int) -> None:
        """The rule of `tasks.cleaning.near_duplicates`: find rows that share a bucket, then, with
        their signatures, the duplicates among them."""
        left = np.flatnonzero((self.columns["cause"] == 0) & (self.columns["words"] > 0))
        ids, content = self.columns["id"][left], self.columns["content"][left]
        left = left[np.argsort(ranks(ids, content, seed))]
        shared = np.zeros(len(left), bool)
        with ThreadPoolExecutor(workers) as threads:
            for members, _ in threads.map(lambda keys: buckets(keys[left]), self.keys):
                shared[members] = True
            candidates = np.sort(left[shared])
            places = np.searchsorted(candidates, left)
            size = len(candidates) * sketch.permutations
            signatures = mapped(self.scratch / "signatures", "<u4", size)
            signatures = signatures.reshape(-1, sketch.permutations)

            def sign(part: tuple[int, int, int]) -> None:
                signatures[part[1] : part[2]] = sketch.signatures(*self._words(candidates, part))

            list(threads.map(sign, self._parts(candidates)))
            best = np.full(len(left), -1, np.int64)
            falls = lambda keys: fallen(keys[left], signatures, places, sketch.enough)  # noqa: E731
            for rows, leaders, agreed in threads.map(falls, self.keys):
                # the most similar leader, of several the first in rank
                best[rows] = np.maximum(best[rows], agreed * 2**40 + (2**40 - 1 - leaders))
        fell = np.flatnonzero(best >= 0)
        match, score = left[2**40 - 1 - best[fell] % 2**40], best[fell] >> 40
        self._drop(left[fell], NEAR_DUPLICATE, match, score / sketch.permutations)

    def drop_heldout(self, contamination: Contamination, workers: int) -> None:
        """Drop remaining training and validation rows that give a held-out row away."""
        live, heldout = self.columns["cause"] == 0, self.columns["split"] == HELDOUT
        tested = np.flatnonzero(live & heldout)
        parts = [self._words(tested, part)[0] for part in self._parts(tested)]
        words = np.concatenate([np.empty(0, np.uint64), *parts])
        ends = np.cumsum(self.columns["words"][tested], dtype=np.int64)
        # items are numbered by id, so that which of several is named does not depend on the order
        # of the rows
        order = np.argsort(self.columns["id"][tested])
        found = index(*reorder(words, ends, order), contamination)
        rest = np.flatnonzero(live & ~heldout)
        with ThreadPoolExecutor(workers) as threads:
            blocks = self._parts(rest)
            scans = threads.map(lambda part: found.scan(*self._words(rest, part)), blocks)
            for (_, low, high), (hits, items, scores) in zip(blocks, scans, strict=True):
                rows, hit = rest[low:high], hits > 0
                self._drop(rows[hit], CONTAMINATED, tested[order[items[hit]]], scores[hit])
                self.columns["hit"][rows[hit]] = hits[hit] + FIRST_HELDOUT_HIT

    def _drop(self, rows: Rows, cause: int, match: Rows, score: Any) -> None:
        for column, value in (("cause", cause), ("match", match), ("score", score)):
            self.columns[column][rows] = value

    def _parts(self, rows: Rows) -> list[tuple[int, int, int]]:
        """Rows (sorted) by block: the block, and which of `rows` are in it."""
        bounds = np.searchsorted(rows, self.starts).tolist()
        return [
            (block, low, high) for block, (low, high) in enumerate(pairwise(bounds)) if low < high
        ]

    def _words(self, rows: Rows, part: tuple[int, int, int]) -> tuple[Words, Ends]:
        """The words of the rows of one part, and where each row's end."""
        block, low, high = part
        start, stop = self.starts[block], self.starts[block + 1]
        counts = self.columns["words"][start:stop].astype(np.int64)
        selected = np.zeros(stop - start, bool)
        selected[rows[low:high] - start] = True
        words = np.fromfile(self.scratch / f"words-{block}", "<u8")
        return words[np.repeat(selected, counts)], np.cumsum(counts[selected])


def duplicates(ids: NDArray[np.uint64], content: NDArray[np.uint64]) -> tuple[Rows, Rows]:
    """Rows that duplicate another by id, and that one: for each id the row with the least content,
    of equal content the first."""
    order = np.lexsort((content, ids))
    ids = ids[order]
    first = np.concatenate(([True], ids[1:] != ids[:-1]))[: len(ids)]
    return order[~first], order[first][np.cumsum(first) - 1][~first]


def reorder(words: Words, ends: Ends, order: Rows) -> tuple[Words, Ends]:
    """The words of the texts in another order."""
    starts = np.concatenate(([0], ends[:-1]))[: len(ends)]
    counts = (ends - starts)[order]
    new_ends = np.cumsum(counts)
    # word j of the text that is now i-th was at starts[order[i]] + j
    moved = np.repeat(starts[order] - (new_ends - counts), counts)
    return words[np.arange(len(words)) + moved], new_ends


def mapped(path: Path, kind: str, size: int) -> NDArray[Any]:
    """A file as a writable array; empty files cannot be mapped."""
    if not size:
        return np.empty(0, kind)
    return np.memmap(path, kind, "r+" if path.exists() else "w+", shape=(size,))


def surveyed(
    blocks: Sequence[Block], plan: Plan, scratch: Path, workers: int, progress: Progress
) -> State:
    """Survey all blocks, in processes of their own if there are several, and store the results in
    order."""
    total, done, starts = sum(block.end - block.start for block in blocks), 0, [0]
    names = [*COLUMNS, *(f"band-{band}" for band in range(plan.sketch.bands if plan.sketch else 0))]
    with ExitStack() as stack:
        files = [stack.enter_context((scratch / name).open("wb")) for name in names]
        details = stack.enter_context((scratch / DETAILS).open("w", encoding="utf-8", newline="\n"))
        if len(blocks) > 1 and workers > 1:
            # a spawned process shares no threads or devices with this one; it takes two seconds
            # to start
            pool = ProcessPoolExecutor(
                min(workers, len(blocks)), get_context("spawn"), _start, (plan, scratch)
            )
            stack.callback(pool.shutdown, cancel_futures=True)
            surveys = pool.map(_survey, blocks)
        else:
            _start(plan, scratch)
            surveys = map(_survey, blocks)
        for block, (left, why) in zip(blocks, surveys, strict=True):
            for file, column in zip(files, left, strict=True):
                column.tofile(file)
            details.writelines(" ".join(detail.split()) + "\n" for detail in why)
            starts.append(starts[-1] + len(left[0]))
            done += block.end - block.start
            progress(done, total, "bytes")
    columns = {name: mapped(scratch / name, kind, starts[-1]) for name, kind in COLUMNS.items()}
    keys = [mapped(scratch / name, "<u8", starts[-1]) for name in names[len(COLUMNS) :]]
    return State(scratch, columns, keys, starts)


_PLAN: list[tuple[Plan, Path]] = []
"""The plan of a surveying process, and the place of its words. Sent once, not with every block."""


def _start(plan: Plan, scratch: Path) -> None:
    _PLAN[:] = [(plan, scratch)]


def _survey(block: Block) -> tuple[list[NDArray[Any]], list[str]]:
    """Survey a block, write its words into a file, and return its columns (the bands' last) and
    details."""
    ((plan, scratch),) = _PLAN
    left = survey(block, plan)
    left.words.tofile(scratch / f"words-{block.number}")
    return [*left.columns.values(), *left.keys], left.details
