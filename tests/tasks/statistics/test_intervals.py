"""Intervals and tests against published values; how often intervals hold the truth is in
test_coverage."""

import pytest
import scipy

from tasks.statistics.intervals import (
    Rate,
    bootstrap_share,
    holm,
    mcnemar,
    newcombe,
    paired_bootstrap,
    rate_record,
    wilson,
)
from tests.tasks.statistics.simulation import outcomes


def test_wilson_agrees_with_scipy_for_every_count() -> None:
    """Of 0 of 10 it ends at z^2 / (n + z^2) = 3.841459 / 13.841459."""
    assert wilson(0, 10).high == pytest.approx(0.277533, abs=1e-6)
    for n in (1, 7, 120):
        for successes in range(n + 1):
            expected = scipy.stats.binomtest(successes, n).proportion_ci(method="wilson")
            found = wilson(successes, n)
            assert (found.low, found.high) == pytest.approx(tuple(expected), abs=1e-12)


def test_a_rate_is_recorded_with_its_interval_and_over_nothing_as_none() -> None:
    ends = {"right_low": wilson(3, 4).low, "right_high": wilson(3, 4).high}
    assert rate_record("right", [True, False, True, True]) == {"right": 0.75, **ends}
    assert rate_record("right", []) == {"right": None, "right_low": None, "right_high": None}
    assert (Rate.of([True, False]), Rate.of([])) == (Rate(1, 2), None)


def test_what_is_no_proportion_is_refused() -> None:
    for successes, n in ((0, 0), (-1, 5), (6, 5)):
        with pytest.raises(ValueError, match=f"{successes} successes of {n}"):
            wilson(successes, n)
        with pytest.raises(ValueError, match=f"{successes} successes of {n}"):
            newcombe(1, 2, successes, n)


def test_newcombe_agrees_with_its_paper():
    """Newcombe 1998, "Interval estimation for the difference between independent proportions",
    table II, method 10."""
    for before, after, low, high in (
        ((48, 80), (56, 70), 0.0524, 0.3339),
        ((3, 10), (9, 10), 0.1705, 0.8090),
        ((2, 7), (6, 7), 0.0582, 0.8062),
        ((0, 29), (5, 56), -0.0381, 0.1926),
        ((0, 20), (0, 10), -0.1611, 0.2775),
        ((0, 20), (10, 10), 0.6791, 1.0),
    ):
        interval = newcombe(*before, *after)
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=5.1e-5)


def test_paired_bootstrap_agrees_with_worked_intervals():
    for wins, losses, n, low, high in (
        # mean 0.12, variance 84/300 - 0.0144 = 0.2656, standard error 0.02975, half width 0.0583
        (60, 24, 300, 0.0617, 0.1783),
        # Bonett and Price: 22/50 -+ z 0.094488 (statpsych, `ci.prop.ps`); steps of 1/50
        (26, 4, 48, 0.2548, 0.6252),
    ):
        before, after = outcomes(n, wins, losses)
        interval = paired_bootstrap(before, after, seed=0)
        assert (interval.low, interval.high) == pytest.approx((low, high), abs=1.2 / (n + 2))
        assert interval == paired_bootstrap(before, after, seed=0)


def test_paired_bootstrap_of_no_change_has_a_width() -> None:
    """Not much narrower than what is left when 0 of n have changed, 3/n: the rule of three (Hanley
    and Lippman-Hand 1983)."""
    for n in (1, 12, 300):
        interval = paired_bootstrap([True] * n, [True] * n, seed=0)
        assert interval.low == -interval.high
        assert 2 / (n + 2) <= interval.high <= 3 / n


def test_paired_bootstrap_holds_the_difference_that_was_seen():
    few, many = ((0, 0, 1), (1, 0, 1), (50, 0, 50)), ((0, 7, 200), (300, 1, 301), (90, 60, 150))
    for wins, losses, n in (*few, *many):
        interval = paired_bootstrap(*outcomes(n, wins, losses), seed=1)
        assert interval.low <= (wins - losses) / n <= interval.high


def test_quantities_and_unpaired_items_are_refused():
    for before, after, problem in (
        ([0.5, 1.0], [1.0, 1.0], r"0\.5 is no outcome.*student"),
        ([], [], "needs the same items"),
        ([1, 0], [1], "needs the same items"),
    ):
        with pytest.raises(ValueError, match=problem):
            paired_bootstrap(before, after, seed=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        mcnemar([True], [True, False])


def test_bootstrap_of_shares_of_rights_and_wrongs_is_much_like_wilsons_interval() -> None:
    interval, expected = bootstrap_share([1.0] * 40 + [0.0] * 60, seed=0), wilson(40, 100)
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=0.015)
    halves, wholes = [1.0] * 40 + [0.5] * 40 + [0.0] * 20, [1.0] * 60 + [0.0] * 40
    assert bootstrap_share(halves, seed=0).high < bootstrap_share(wholes, seed=0).high


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_bootstrap_of_equal_shares_holds_them_and_has_a_width(share: float) -> None:
    interval = bootstrap_share([share] * 50, seed=0)
    assert interval.low <= share <= interval.high
    assert 0.02 < interval.high - interval.low < 0.1


@pytest.mark.parametrize("values", [[], [0.5, 1.2], [-0.1]])
def test_bootstrap_of_shares_refuses_what_is_no_share(values: list[float]) -> None:
    with pytest.raises(ValueError, match="not within 0"):
        bootstrap_share(values, seed=0)


@pytest.mark.parametrize(
    ("wins", "losses"), [(0, 0), (1, 0), (5, 0), (12, 3), (2, 9), (40, 40), (700, 600)]
)
def test_mcnemar_agrees_with_the_exact_binomial_test(wins: int, losses: int) -> None:
    """5 wins and no loss: p = 2 / 2^5 = 0.0625. 2 and 9: 0.06543 (Fay 2010, R's exact2x2)."""
    expected = scipy.stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    found = mcnemar(*outcomes(wins + losses + 2, wins, losses))
    assert found == pytest.approx(expected, rel=1e-9)


def test_holm_multiplies_by_what_is_left_and_carries_the_maximum_along() -> None:
    """0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04 x 1 = 0.04, which may not be less than 0.06 before
    it. As R's `p.adjust` has them."""
    found = holm({"a": 0.01, "b": 0.04, "nil": None, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "nil": 1.0, "c": 0.06, "d": 0.02})
    assert holm({0: 0.6, 1: 0.9}) == {0: 1.0, 1: 1.0}
    assert holm({}) == {}
