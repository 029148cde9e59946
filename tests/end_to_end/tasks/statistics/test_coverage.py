"""How often 95 % intervals hold the truth: a small part of what docs/measurements.md has."""

import pytest

from tests.tasks.statistics.simulation import paired_cell, shares_cell


@pytest.mark.parametrize(
    ("n", "discordant", "difference"),
    [(50, 0.5, 0.2), (100, 0.3, -0.1), (300, 0.1, 0.05), (900, 0.05, 0.03)],
)
def test_paired_bootstrap_covers(n: int, discordant: float, difference: float) -> None:
    assert 0.93 <= paired_cell(n, discordant, difference, trials=400).coverage <= 0.97


@pytest.mark.parametrize(
    ("n", "discordant", "difference"),
    [(50, 0.02, 0.02), (100, 0.02, 0.02), (100, 0.05, -0.03), (300, 0.02, 0.02)],
)
def test_paired_bootstrap_of_few_changes_does_not_fall_short(n, discordant, difference):
    """A bootstrap of what was seen alone holds the truth in 63, 86, 95 and 93 of 100."""
    cell = paired_cell(n, discordant, difference, trials=400)
    assert cell.coverage >= 0.93
    assert cell.width <= 8 / n + 4 * (discordant / n) ** 0.5  # and not by being boundless


def test_bootstrap_of_shares_that_are_mostly_nil_covers() -> None:
    """Without a 0 and a 1 that were not seen, a bootstrap covers 90 of 100."""
    assert 0.93 <= shares_cell(100, 0.05, 1.0, trials=400).coverage <= 0.98
