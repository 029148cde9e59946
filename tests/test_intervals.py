"""Intervals against reference values, and how often they cover the truth."""

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from tasks.intervals import Interval, mcnemar, paired_bootstrap, wilson


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (0, 10, 0.0, 0.277533),  # z^2 / (n + z^2) = 3.841459 / 13.841459
        (10, 10, 0.722467, 1.0),
        (5, 10, 0.236593, 0.763407),  # 1/2 -+ z / (2 sqrt(n + z^2)) = 1/2 -+ 1.959964 / (2 * 3.720411)
    ],
)
def test_wilson_agrees_with_worked_values(successes: int, n: int, low: float, high: float) -> None:
    interval = wilson(successes, n)
    assert interval.low == pytest.approx(low, abs=1e-6)
    assert interval.high == pytest.approx(high, abs=1e-6)


def test_wilson_agrees_with_scipy_for_every_count() -> None:
    for n in (1, 7, 120):
        for successes in range(n + 1):
            expected = binomtest(successes, n).proportion_ci(method="wilson")
            found = wilson(successes, n)
            assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize(("successes", "n"), [(0, 0), (-1, 5), (6, 5)])
def test_wilson_refuses_what_is_no_proportion(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"{successes} successes of {n}"):
        wilson(successes, n)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("n", [120, 300])
def test_wilson_covers_the_truth_95_times_in_100(p: float, n: int) -> None:
    """Exact coverage: the probability, over Binomial(n, p), that the interval holds p."""
    intervals = [wilson(k, n) for k in range(n + 1)]
    holds = [interval.low <= p <= interval.high for interval in intervals]
    assert 0.93 <= float(binom.pmf(np.arange(n + 1), n, p) @ holds) <= 0.97


def test_paired_bootstrap_covers_the_truth_95_times_in_100() -> None:
    """1,000 evaluations of 300 prompts on which the second model wins 20 %, loses 8 % and ties 72 %: the true difference is 0.12."""
    rng = np.random.Generator(np.random.Philox(7))
    covered = 0
    for trial in range(1000):
        difference = rng.choice([1, -1, 0], p=[0.20, 0.08, 0.72], size=300)
        interval = paired_bootstrap(difference == -1, difference == 1, seed=trial)
        covered += interval.low <= 0.12 <= interval.high
    assert 0.93 <= covered / 1000 <= 0.97


def test_paired_bootstrap_has_the_width_of_the_normal_approximation() -> None:
    """60 wins, 24 losses, 216 ties: mean 0.12, variance 84/300 - 0.0144 = 0.2656, standard error 0.02975, half width 0.0583."""
    before = [False] * 60 + [True] * 24 + [False] * 216
    after = [True] * 60 + [False] * 24 + [False] * 216
    interval = paired_bootstrap(before, after, seed=0)
    assert interval.low == pytest.approx(0.12 - 0.0583, abs=0.004)
    assert interval.high == pytest.approx(0.12 + 0.0583, abs=0.004)


def test_paired_bootstrap_works_on_lengths_as_well_as_outcomes() -> None:
    rng = np.random.Generator(np.random.Philox(3))
    before = rng.normal(10, 3, 200)
    after = before + rng.normal(1, 2, 200)
    interval = paired_bootstrap(before.tolist(), after.tolist(), seed=1)
    error = float(np.std(after - before) / np.sqrt(200))
    mean = float(np.mean(after - before))
    assert (interval.low, interval.high) == pytest.approx((mean - 1.96 * error, mean + 1.96 * error), abs=0.02)


def test_paired_bootstrap_is_a_function_of_its_seed() -> None:
    before, after = [0, 1, 0, 0, 1] * 20, [1, 1, 0, 1, 0] * 20
    assert paired_bootstrap(before, after, seed=4) == paired_bootstrap(before, after, seed=4)


def test_paired_bootstrap_of_equal_differences_has_no_width() -> None:
    assert paired_bootstrap([0, 1, 0], [0, 1, 0], seed=0) == Interval(0.0, 0.0)


@pytest.mark.parametrize(("before", "after"), [([], []), ([1, 0], [1])])
def test_paired_bootstrap_refuses_unpaired_items(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match="needs the same items"):
        paired_bootstrap(before, after, seed=0)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (5, 0), (12, 3), (3, 12), (40, 40), (700, 600)])
def test_mcnemar_agrees_with_the_exact_binomial_test(wins: int, losses: int) -> None:
    """5 wins and no loss: p = 2 / 2^5 = 0.0625."""
    before = [False] * wins + [True] * losses + [True, False]
    after = [True] * wins + [False] * losses + [True, False]
    expected = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert mcnemar(before, after) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_refuses_unpaired_items() -> None:
    with pytest.raises(ValueError):
        mcnemar([True], [True, False])
