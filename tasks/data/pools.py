"""The rows that survived cleaning, by what quotas count, and which of them are chosen."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.data.cleaning import Cleaned
from tasks.data.quotas import Pool, ranks
from tasks.data.rules import CAUSES, GROUPS, HITS
from tasks.data.splits import SPLITS, Split


class Pools:
    """Rows by group and split. Row numbers are those of `cleaned`; every list of rows is in the
    order of their ranks."""

    def __init__(self, cleaned: Cleaned, solved: Sequence[bool], seed: int) -> None:
        """Args: solved: of each input file, whether its rows are examples; they are prompts that
        nobody solved if not."""
        self.cleaned = cleaned
        self._solved = np.array(solved, bool)
        kept = cleaned.kept
        identities = np.asarray(cleaned.id[kept])
        rows = kept[np.lexsort((identities, ranks(seed, identities)))]
        self._position = np.full(len(cleaned.id), -1, np.int64)
        self._position[rows] = np.arange(len(rows))
        self._rows = rows
        self._code = np.where(
            self._solved[cleaned.file[rows]],
            cleaned.group[rows] * len(SPLITS) + cleaned.split[rows],
            255,
        )

    def pool(self, group: str, split: Split) -> Pool:
        """The solved rows of a group and split."""
        rows = self._rows[self._code == GROUPS.index(group) * len(SPLITS) + SPLITS.index(split)]
        return Pool(rows, np.asarray(self.cleaned.difficulty[rows]))

    def unsolved(self, groups: Sequence[str], split: Split) -> np.ndarray:
        """The prompts of these groups and this split that nobody solved."""
        rows = self._rows[self._code == 255]
        here = np.isin(self.cleaned.group[rows], [GROUPS.index(group) for group in groups])
        return rows[here & (self.cleaned.split[rows] == SPLITS.index(split))]

    def in_order(self, rows: Sequence[np.ndarray]) -> np.ndarray:
        """Several lists of rows as one."""
        together = np.concatenate([np.empty(0, np.int64), *rows])
        return together[np.argsort(self._position[together])]

    def read(self, *, solved: bool = False) -> dict[str, int]:
        """How many rows of each group there were; or only those that were solved."""
        return self._by_group(
            np.flatnonzero(self._solved[self.cleaned.file])
            if solved
            else np.arange(len(self.cleaned.group))
        )

    def kept(self) -> dict[str, int]:
        """How many examples of each group are left."""
        return self._by_group(self._rows[self._code != 255])

    def _by_group(self, rows: np.ndarray) -> dict[str, int]:
        counts = np.bincount(self.cleaned.group[rows], minlength=len(GROUPS))
        return {group: int(count) for group, count in zip(GROUPS, counts, strict=True) if count}

    def dropped_of(self, group: str) -> dict[str, int]:
        """How many rows of a group were dropped, by cause."""
        counts = np.bincount(
            self.cleaned.cause[np.flatnonzero(self.cleaned.group == GROUPS.index(group))],
            minlength=len(CAUSES),
        )
        return {
            cause: int(count)
            for cause, count in zip(CAUSES, counts, strict=True)
            if count and cause != "kept"
        }

    def contaminated_by(self) -> dict[str, int]:
        """How many rows each evaluation set contaminates, and `heldout` for the held-out split."""
        rows = np.flatnonzero(self.cleaned.cause == CAUSES.index("contaminated"))
        hits, matches = self.cleaned.hit[rows].tolist(), self.cleaned.match[rows].tolist()
        sets = (
            "heldout" if HITS[hit].startswith("heldout") else self.cleaned.items[match][0]
            for hit, match in zip(hits, matches, strict=True)
        )
        return dict(sorted(Counter(sets).items()))


def by_level(pool: Pool) -> dict[str, Any]:
    """Counts by difficulty, as JSON."""
    return {str(level): count for level, count in pool.by_level().items()}
