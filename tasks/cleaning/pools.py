"""The pools of a rebalance stage: the files of distill and top-ups, the rows that survived
cleaning, by quota cell, and the preference pairs of the chosen prompts."""

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from tasks.cleaning.clean import Cleaned, counted
from tasks.cleaning.quotas import GroupQuota, Pool, Shortfall, ranks
from tasks.cleaning.rules import CAUSES, GROUPS, HITS, SPLITS, Split


@dataclass(frozen=True)
class Files:
    """The files of distill, and of top-ups."""

    directories: tuple[Path, ...]

    def named(self, name: str) -> list[Path]:
        return [directory / name for directory in self.directories]

    @cached_property
    def rows(self) -> list[Path]:
        """Files of prompts, solved and not."""
        return [*self.named("examples.jsonl"), *self.named("unsolved.jsonl")]

    @property
    def solved(self) -> list[bool]:
        """Say of each of `rows` whether it has examples."""
        return [path.name == "examples.jsonl" for path in self.rows]


_UNSOLVED = 255
"""Instead of the code of a group and split."""


class Pools:
    """Rows by group and split. Row numbers are those of `cleaned`; every list of rows is in the
    order of their ranks."""

    def __init__(self, cleaned: Cleaned, solved: Sequence[bool], seed: int) -> None:
        """Args:
        solved: for each input file, whether its rows are examples; otherwise they are unsolved
            prompts.
        """
        self.cleaned = cleaned
        self._solved = np.array(solved, bool)
        left = cleaned.remaining
        identities = np.asarray(cleaned.id[left])
        rows = left[np.lexsort((identities, ranks(seed, identities)))]
        self._position = np.full(len(cleaned.id), -1, np.int64)
        self._position[rows] = np.arange(len(rows))
        self._rows = rows
        code = cleaned.group[rows] * len(SPLITS) + cleaned.split[rows]
        self._code = np.where(self._solved[cleaned.file[rows]], code, _UNSOLVED)

    def pool(self, group: str, split: Split) -> Pool:
        """The solved rows of a group and split."""
        rows = self._rows[self._code == GROUPS.index(group) * len(SPLITS) + SPLITS.index(split)]
        return Pool(rows, np.asarray(self.cleaned.difficulty[rows]))

    def shortfalls(self, quotas: Sequence[GroupQuota]) -> list[Shortfall]:
        """Every cell of the quotas with too few rows."""
        return [
            Shortfall(table, group, split, level, requested, available)
            for table, group, quota in quotas
            for split in SPLITS
            for level, (requested, available) in (
                self.pool(group, split).lacks(quota.amount(split)).items()
            )
        ]

    def fill(
        self, quotas: Sequence[GroupQuota]
    ) -> tuple[dict[Split, np.ndarray], dict[str, dict[str, dict[str, Any]]]]:
        """The rows of each split; and for `domains` and `groundings`, each group and split, the
        requested, achieved and available rows, by difficulty too. A cell with too few rows gets all
        of them."""
        chosen: dict[Split, list[np.ndarray]] = {split: [] for split in SPLITS}
        mix: dict[str, dict[str, dict[str, Any]]] = {"domains": {}, "groundings": {}}
        for table, group, quota in quotas:
            cells = mix["domains" if table == "quotas" else "groundings"].setdefault(group, {})
            for split in SPLITS:
                pool, amount = self.pool(group, split), quota.amount(split)
                taken = pool.take(amount)
                chosen[split].append(taken.rows)
                cells[split] = {
                    "requested": quota.total(split),
                    "achieved": len(taken.rows),
                    "available": len(pool.rows),
                    "difficulty": _as_json(taken.by_level()),
                    "available_difficulty": _as_json(pool.by_level()),
                }
                if isinstance(amount, dict):
                    cells[split]["requested_difficulty"] = _as_json(amount)
        return {split: self.in_order(parts) for split, parts in chosen.items()}, mix

    def unsolved(self, groups: Sequence[str], split: Split) -> np.ndarray:
        """The unsolved prompts of these groups in this split."""
        rows = self._rows[self._code == _UNSOLVED]
        here = np.isin(self.cleaned.group[rows], [GROUPS.index(group) for group in groups])
        return rows[here & (self.cleaned.split[rows] == SPLITS.index(split))]

    def in_order(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Several lists of rows, merged."""
        together = np.concatenate([np.empty(0, np.int64), *rows])
        return together[np.argsort(self._position[together])]

    def read(self, *, solved: bool = False) -> dict[str, int]:
        """The number of rows of each group that were read, or of solved ones."""
        rows = np.arange(len(self.cleaned.group))
        return self._by_group(rows[self._solved[self.cleaned.file]] if solved else rows)

    def remaining(self) -> dict[str, int]:
        """The number of examples of each group that are left."""
        return self._by_group(self._rows[self._code != _UNSOLVED])

    def _by_group(self, rows: np.ndarray) -> dict[str, int]:
        return counted(self.cleaned.group[rows], GROUPS)

    def dropped_of(self, group: str) -> dict[str, int]:
        """The number of dropped rows of a group, by cause."""
        causes = self.cleaned.cause[self.cleaned.group == GROUPS.index(group)]
        return counted(causes[causes > 0], CAUSES)

    def contaminated_by(self) -> dict[str, int]:
        """The number of rows that each evaluation set contaminates; `heldout`: that the held-out
        split does."""
        rows = np.flatnonzero(self.cleaned.cause == CAUSES.index("contaminated"))
        pairs = zip(self.cleaned.hit[rows].tolist(), self.cleaned.match[rows].tolist(), strict=True)
        sets = (
            "heldout" if HITS[hit].startswith("heldout") else self.cleaned.items[match][0]
            for hit, match in pairs
        )
        return dict(sorted(Counter(sets).items()))


def _as_json(by_level: Mapping[int, int]) -> dict[str, int]:
    return {str(level): count for level, count in sorted(by_level.items())}


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """Write lines without their ends as a file."""
    with path.open("wb") as out:
        out.writelines(line + b"\n" for line in lines)


def write_pairs(out: Path, files: Sequence[Path], ids: np.ndarray, seed: int) -> int:
    """Write the pairs of `files` whose prompt is chosen, by the rank of their prompt and then their
    digest; each pair once.

    Args:
        ids: uint64, the chosen prompts'.

    Returns:
        how many were written. Memory: 32 bytes for each of them.
    """
    chosen = np.unique(ids)
    # Of each pair: prompt, digest, file and where its line starts.
    found = array("Q")
    for number, path in enumerate(files):
        with path.open("rb") as lines:
            offset = 0
            for line in lines:
                identity = int(json.loads(line)["id"], 16)
                place = int(np.searchsorted(chosen, np.uint64(identity)))
                if place < len(chosen) and int(chosen[place]) == identity:
                    content = int.from_bytes(hashlib.sha256(line.strip()).digest()[:8])
                    found.extend((identity, content, number, offset))
                offset += len(line)
    pairs = np.frombuffer(found, np.uint64).reshape(-1, 4)
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0], ranks(seed, pairs[:, 0])))]
    new = np.ones(len(pairs), bool)
    new[1:] = (pairs[1:, :2] != pairs[:-1, :2]).any(axis=1)
    with ExitStack() as stack:
        streams = [stack.enter_context(path.open("rb")) for path in files]
        with out.open("wb") as target:
            for _, _, number, offset in pairs[new].tolist():
                streams[number].seek(offset)
                target.write(streams[number].readline().strip() + b"\n")
    return int(new.sum())
