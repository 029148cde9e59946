"""How often 95 % intervals hold the truth, and families of tests err: a small part of what
docs/measurements.md has."""

import pytest

from tests.tasks.statistics.simulation import (
    family_errors,
    grades_cell,
    newcombe_cell,
    paired_cell,
    shares_cell,
    wilson_cell,
)


@pytest.mark.parametrize("rate", [0.05, 0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("n", [100, 300])
def test_wilson_covers(n: int, rate: float) -> None:
    assert 0.93 <= wilson_cell(n, rate).coverage <= 0.97


@pytest.mark.parametrize(("before", "after"), [(0.1, 0.15), (0.5, 0.7), (0.8, 0.95)])
def test_newcombe_covers(before: float, after: float) -> None:
    assert 0.93 <= newcombe_cell(100, before, after, trials=4000).coverage <= 0.97


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


def test_bootstrap_of_a_mean_of_a_dozen_grades_covers() -> None:
    """A plain percentile interval covers 91 of 100."""
    assert 0.93 <= grades_cell(12, trials=500).coverage <= 0.97


def test_bootstrap_of_shares_that_are_mostly_nil_covers() -> None:
    """Without a 0 and a 1 that were not seen, a bootstrap covers 90 of 100."""
    assert 0.93 <= shares_cell(100, "few prompts ever solved", trials=400).coverage <= 0.98


@pytest.mark.parametrize("kind", ["z", "z, correlated", "domains", "metrics"])
@pytest.mark.parametrize("real", [0, 3])
def test_holm_keeps_the_error_of_a_family(kind: str, real: int) -> None:
    """5 %, and half a point for the chance of 20,000 trials; 1.5 for that of 2,000."""
    plain, corrected = family_errors(kind, real, trials=20_000 if kind.startswith("z") else 2_000)
    assert corrected <= 0.055
    assert corrected < plain
    if kind == "z" and real == 0:
        assert plain == pytest.approx(1 - 0.95**6, abs=0.01)
        assert corrected == pytest.approx(1 - (1 - 0.05 / 6) ** 6, abs=0.005)
