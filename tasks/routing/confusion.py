"""What the router says beside what is known: the confusion matrix and its rates."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from schemas.examples import Domain


def confusion(stated: Iterable[Domain], routed: Iterable[Domain]) -> dict[str, Any]:
    """Compare the domains that sources state of their prompts with the router's, both in the order
    of the prompts.

    Returns:
        `matrix[stated][routed]` counts; `accuracy`, a fraction, None without prompts; by domain
        `recall` (of its prompts, how many are found) and `precision` (of those that are taken for
        it, how many are its own), None where there are none; `n`.
    """
    return rates(Counter(zip(stated, routed, strict=True)))


def rates(counts: Counter[tuple[Domain, Domain]]) -> dict[str, Any]:
    """As `confusion`, from counts of (stated, routed): for rows that are counted as they pass."""
    matrix = {one: {other: counts[one, other] for other in Domain} for one in Domain}
    right = {domain: matrix[domain][domain] for domain in Domain}
    return {
        "n": counts.total(),
        "accuracy": _fraction(sum(right.values()), counts.total()),
        "recall": {
            domain.value: _fraction(right[domain], sum(matrix[domain].values()))
            for domain in Domain
        },
        "precision": {
            domain.value: _fraction(right[domain], sum(row[domain] for row in matrix.values()))
            for domain in Domain
        },
        "matrix": {
            one.value: {other.value: count for other, count in row.items()}
            for one, row in matrix.items()
        },
    }


def _fraction(part: int, whole: int) -> float | None:
    return part / whole if whole else None
