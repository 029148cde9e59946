"""Means of quantities: worked numbers, and the tests of rates as special cases."""

import math
import warnings

import numpy as np
import pytest

from tasks.statistics.intervals import Interval, mcnemar
from tasks.statistics.means import Mean, sign_flips, welch


def test_a_mean_has_an_interval_around_it() -> None:
    """1, 2, 3 and 6 have variance 14/3 and t(3) = 3.1824: 3 +- 3.1824 sqrt(14/12) = 3 +- 3.4374."""
    mean = Mean.of([1.0, 2.0, 3.0, 6.0])
    assert mean is not None
    assert (mean.value, mean.n) == (3.0, 4)
    assert (mean.interval.low, mean.interval.high) == pytest.approx((-0.4374, 6.4374), abs=1e-4)
    assert Mean.of([2.0, 2.0]) == Mean(2.0, 2, Interval(2.0, 2.0))
    assert Mean.of([2.0]) == Mean(2.0, 1, Interval(2.0, 2.0))
    assert Mean.of([]) is None


def test_sign_flips_by_hand() -> None:
    """Of 0.5, 1 and -0.25 the sum is 1.25. Of the 8 choices of signs, 1.75 and 1.25 and their
    negatives are as far from 0: p = 4/8. A difference of 0 has no sign."""
    assert sign_flips([0.5, 1.0, -0.25], seed=0) == 0.5
    assert sign_flips([0.5, 0.0, 1.0, 0.0, -0.25], seed=0) == 0.5
    assert sign_flips([0.0, 0.0], seed=0) == 1.0
    assert sign_flips([0.1] * 10, seed=0) == 2 / 2**10  # however sums of 0.1 are rounded


def test_of_wins_and_losses_sign_flips_are_mcnemars_test() -> None:
    for wins, losses in ((6, 1), (5, 5), (30, 12), (20, 20), (115, 86), (130, 71), (580, 420)):
        before, after = [False] * wins + [True] * losses, [True] * wins + [False] * losses
        gaps = [float(new) - old for new, old in zip(after, before, strict=True)]
        found, exact = sign_flips(gaps, seed=1), mcnemar(before, after)
        assert found == pytest.approx(exact, abs=0.015)
        assert found >= exact or len(gaps) <= 200, "what is not drawn is never too small"


def test_a_few_large_changes_among_many_small_ones_prove_little() -> None:
    """Five of 1000 gained, and 400 of at most 0.002 lost: 2 of the 32 signs of the five are as far
    from 0. A normal sum would be with a probability of 0.025."""
    gaps = [1000.0] * 5 + [-0.001 - number / 4e5 for number in range(400)]
    assert sign_flips(gaps, seed=0) == pytest.approx(2 / 32, abs=0.01)


def test_noise_is_found_to_be_a_change_as_often_as_promised() -> None:
    """5 % of 400 are 20; 34 are more than three standard deviations away."""
    rng = np.random.default_rng(0)
    gaps = rng.normal(size=(400, 14))
    assert 6 <= sum(sign_flips(one.tolist(), seed=0) <= 0.05 for one in gaps) <= 34


def test_welch_by_hand() -> None:
    """[1, 2, 3] and [4, 6, 8]: variances 1 and 4, so the error is sqrt(1/3 + 4/3) = 1.2910 and df =
    (5/3)^2 / ((1/3)^2 / 2 + (4/3)^2 / 2) = 2.9412; t = 4 / 1.2910 = 3.0984. scipy's ttest_ind says
    p = 0.0548."""
    found = welch([1.0, 2.0, 3.0], [4.0, 6.0, 8.0])
    assert found is not None
    interval, p = found
    assert (interval.low + interval.high) / 2 == pytest.approx(4)
    assert p == pytest.approx(0.0548, abs=2e-4)
    assert interval.low < 0 < interval.high  # as p says
    assert welch([1.0], [4.0, 6.0]) is None
    # two and two equal values: 2 of 6 permutations are as far apart; of five and five 2 of 252
    assert welch([1.0, 1.0], [2.0, 2.0]) == (Interval(1.0, 1.0), 1 / 3)
    assert welch([1.0] * 5, [2.0] * 5) == (Interval(1.0, 1.0), 2 / 252)
    assert math.isclose(welch([1.0, 3.0], [1.0, 3.0])[1], 1.0)  # type: ignore[index]
    with warnings.catch_warnings(action="error"):  # one side without a spread is no reason to warn
        found = welch([1.0, 0.5], [1.0, 1.0])  # by the other side's: 0.25 +- 12.706 * 0.25
    assert found is not None
    assert found[0].high == pytest.approx(0.25 + 12.706 * 0.25, abs=1e-3)
