"""What the router says beside what is known: the confusion matrix and its rates."""

from collections import Counter
from typing import Any

from schemas.examples import Domain


def confusion(counts: Counter[tuple[Domain, Domain]]) -> dict[str, Any]:
    """Compare the domains that sources state of their prompts with the router's, given how many
    prompts have each (stated, routed).

    Returns:
        `matrix[stated][routed]` counts; `accuracy`, a fraction, None without prompts; by domain
        `recall` (of its prompts, how many are found) and `precision` (of those that are taken for
        it, how many are its own), None where there are none; `n`.
    """
    names = [domain.value for domain in Domain]
    matrix = {one.value: {other.value: counts[one, other] for other in Domain} for one in Domain}
    right = {name: matrix[name][name] for name in names}
    taken = {name: sum(row[name] for row in matrix.values()) for name in names}
    return {
        "n": counts.total(),
        "accuracy": _fraction(sum(right.values()), counts.total()),
        "recall": {name: _fraction(right[name], sum(matrix[name].values())) for name in names},
        "precision": {name: _fraction(right[name], taken[name]) for name in names},
        "matrix": matrix,
    }


def _fraction(part: int, whole: int) -> float | None:
    return part / whole if whole else None
