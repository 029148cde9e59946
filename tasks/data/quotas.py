"""Exact quotas, stratified by difficulty: which rows of a pool to take so that every difficulty keeps its share."""

import hashlib
from collections.abc import Sequence
from fractions import Fraction

from schemas.examples import Example


def allocate(quota: int, available: dict[int, int]) -> dict[int, int]:
    """Divide `quota` among strata in proportion to their sizes, by largest remainder (Hamilton's method).

    Each stratum first gets the whole part of its share quota * size / total; what is left goes, one each, to the largest fractional parts,
    ties to the lower stratum. No stratum is asked for more than it has, and the parts add up to the quota exactly.

    Raises:
        ValueError: the quota is negative or larger than all strata together.
    """
    total = sum(available.values())
    if not 0 <= quota <= total:
        raise ValueError(f"cannot take {quota} of {total} rows")
    shares = {stratum: Fraction(quota * size, total) if total else Fraction(0) for stratum, size in available.items()}
    parts = {stratum: int(share) for stratum, share in shares.items()}
    by_remainder = sorted(available, key=lambda stratum: (parts[stratum] - shares[stratum], stratum))
    for stratum in by_remainder[: quota - sum(parts.values())]:
        parts[stratum] += 1
    return parts


def take(pool: Sequence[Example], quota: int, seed: int) -> list[Example]:
    """`quota` rows of the pool, stratified by difficulty, in a hash order that depends on (seed, prompt id) and not on the pool's order.

    Raises:
        ValueError: the quota is larger than the pool.
    """
    strata: dict[int, list[Example]] = {}
    for example in sorted(pool, key=lambda example: rank(seed, example.id)):
        strata.setdefault(example.difficulty, []).append(example)
    parts = allocate(quota, {difficulty: len(rows) for difficulty, rows in strata.items()})
    chosen = [example for difficulty, rows in strata.items() for example in rows[: parts[difficulty]]]
    return sorted(chosen, key=lambda example: rank(seed, example.id))


def rank(seed: int, prompt_id: str) -> str:
    """Where a prompt comes in the order of selection: a hash, so that every prompt is as likely to come first."""
    return hashlib.sha256(f"{seed}/{prompt_id}".encode()).hexdigest()
