"""Quotas: how many rows of a domain each split gets, in total or per difficulty, and which rows of
a pool fill them."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from pydantic import Field, TypeAdapter, WrapValidator

from infra.visible import aligned
from schemas.base import StrictModel, canonical_json
from tasks.cleaning.rules import Split

Count = Annotated[int, Field(ge=0)]
Level = Annotated[int, Field(ge=1, le=5)]

_NUMBER: TypeAdapter[int] = TypeAdapter(Count)
_TABLE: TypeAdapter[dict[int, int]] = TypeAdapter(dict[Level, Count])


def _number_or_table(value: Any, _union: object) -> int | dict[int, int]:
    """Validate by the form that was written, so that a message is about that form only. Raises
    ValidationError."""
    return (_TABLE if isinstance(value, dict) else _NUMBER).validate_json(
        canonical_json(value), strict=True
    )


Amount = Annotated[int | dict[int, int], WrapValidator(_number_or_table)]
"""Rows of one split: so many, each difficulty in proportion to what there is of it; or exactly so
many of each difficulty."""


class Quota(StrictModel):
    """Rows per split: exactly so many, or the stage fails."""

    train: Amount = 0
    validation: Amount = 0
    heldout: Amount = 0

    def amount(self, split: Split) -> Amount:
        amount: Amount = getattr(self, split)
        return amount

    def at_most(self, **most: int) -> "Quota":
        """This quota with at most so many rows of each split.

        A larger table gives each difficulty an even share, or one row.
        """
        changed: dict[str, Amount] = {}
        for split, limit in most.items():
            amount: Amount = getattr(self, split)
            if isinstance(amount, int):
                changed[split] = min(amount, limit)
            elif sum(amount.values()) > limit:
                share = max(1, limit // len(amount))
                changed[split] = {level: min(count, share) for level, count in amount.items()}
        return self.model_copy(update=changed)

    def total(self, split: Split) -> int:
        """The number of rows of a split."""
        amount = self.amount(split)
        return sum(amount.values()) if isinstance(amount, dict) else amount


GroupQuota = tuple[str, str, Quota]
"""(the recipe's table, `quotas` or `grounding_quotas`; the domain or grounding; its quota)."""


@dataclass(frozen=True)
class Pool:
    """The rows for a quota of one split and their difficulties, in the order in which they are
    taken (`ranks`)."""

    rows: np.ndarray  # (N,) int64
    levels: np.ndarray  # (N,) uint8

    def by_level(self) -> dict[int, int]:
        """How many rows there are of each difficulty."""
        levels, counts = np.unique(self.levels, return_counts=True)
        return {int(level): int(count) for level, count in zip(levels, counts, strict=True)}

    def lacks(self, amount: Amount) -> dict[int | None, tuple[int, int]]:
        """The shortfalls: difficulty, or None for all together, -> (requested, available)."""
        if not isinstance(amount, dict):
            return {None: (amount, len(self.rows))} if amount > len(self.rows) else {}
        has = self.by_level()
        found = {level: (count, has.get(level, 0)) for level, count in amount.items()}
        return {level: counts for level, counts in found.items() if counts[0] > counts[1]}

    def take(self, amount: Amount) -> "Pool":
        """The rows that fill the amount, in the pool's order: the first ones of each difficulty;
        all of a difficulty that has too few."""
        if not isinstance(amount, dict):
            amount = allocate(min(amount, len(self.rows)), self.by_level())
        chosen = np.zeros(len(self.rows), bool)
        for level, count in amount.items():
            chosen[np.flatnonzero(self.levels == level)[:count]] = True
        return Pool(self.rows[chosen], self.levels[chosen])


def allocate(quota: int, available: Mapping[int, int]) -> dict[int, int]:
    """Divide `quota` among strata in proportion to their sizes, by largest remainder (Hamilton's
    method).

    Each stratum first gets the whole part of its share quota * size / total; the remainder goes,
    one each, to the largest fractional parts, ties to the lower stratum. No stratum gives more than
    it has, and the parts add up to the quota exactly.

    Raises:
        ValueError: the quota is negative or larger than all strata together.
    """
    total = sum(available.values())
    if not 0 <= quota <= total:
        raise ValueError(f"cannot take {quota} of {total} rows")
    shares = {one: Fraction(quota * size, total or 1) for one, size in available.items()}
    parts = {stratum: int(share) for stratum, share in shares.items()}
    by_remainder = sorted((parts[stratum] - shares[stratum], stratum) for stratum in available)
    for _, stratum in by_remainder[: quota - sum(parts.values())]:
        parts[stratum] += 1
    return parts


def ranks(seed: int, ids: np.ndarray) -> np.ndarray:
    """The prompts' order of selection: a hash of (seed, id), so that every prompt is as likely to
    come first.

    Args:
        ids: (N,) uint64, prompt ids (`schemas.examples.prompt_id`) read as numbers.

    Returns:
        (N,) uint64.
    """
    head = hashlib.sha256(f"{seed}/".encode())

    def rank(identity: int) -> int:
        whole = head.copy()
        whole.update(b"%016x" % identity)
        return int.from_bytes(whole.digest()[:8])

    return np.fromiter(map(rank, ids.tolist()), np.uint64, len(ids))


@dataclass(frozen=True)
class Shortfall:
    """A cell that cannot be filled.

    Attributes:
        table: the recipe's table, `quotas` or `grounding_quotas`.
        group: the domain or grounding.
        level: the difficulty, None for all together.
        available: rows of the cell that are left after all cleaning.
    """

    table: str
    group: str
    split: Split
    level: int | None
    requested: int
    available: int

    @property
    def missing(self) -> int:
        return self.requested - self.available

    @property
    def cell(self) -> str:
        """Its setting: `quotas.math.train`, or `quotas.math.train.3` for a difficulty."""
        level = "" if self.level is None else f".{self.level}"
        return f"{self.table}.{self.group}.{self.split}{level}"


def shortfall_table(shortfalls: Sequence[Shortfall]) -> str:
    """One line for each: cell, requested, available, missing."""
    rows = [("cell", "requested", "available", "missing")]
    rows += [
        (one.cell, str(one.requested), str(one.available), str(one.missing)) for one in shortfalls
    ]
    return "\n".join(f"  {line}" for line in aligned(rows, str.rjust))
