"""Exact evidence of a paired comparison: worked numbers, and that it errs as seldom as it says."""

import numpy as np
import pytest
import scipy

from tasks.statistics.noninferiority import evidence, root


def test_without_a_margin_it_is_mcnemar_s_test_one_sided() -> None:
    """7 wins, 1 loss: (1 + 8) / 2^8."""
    assert evidence(100, 7, 1) == pytest.approx(9 / 256)
    assert evidence(100, 0, 0) == 1.0
    assert evidence(100, 0, 3) == 1.0
    assert evidence(100, 40, 0) == pytest.approx(2.0**-40)


def test_of_no_change_it_is_the_chance_that_none_of_the_lost_is_seen() -> None:
    """Where a tenth is lost and nothing is won, none of n is lost with 0.9^n; all prompts could
    change as well, but then some of 30 would."""
    for n, margin in ((30, 0.1), (100, 0.05), (300, 0.05), (2000, 0.02)):
        assert evidence(n, 0, 0, margin) == pytest.approx((1 - margin) ** n, rel=1e-6)


def test_the_root_by_hand() -> None:
    """n = 100, 5 won, 3 lost, margin 0.1: linear = -8 - 198 x 0.1 = -27.8 and under = 772.84 - 264
    = 508.84, so (27.8 + 22.557) / 400 = 0.12589 would be lost, 0.02589 won, 0.84821 the same. The
    ratio is 5 ln(5 / 2.589) + 3 ln(3 / 12.589) + 92 ln(92 / 84.821) = 3.2905 - 4.3029 + 7.4745 =
    6.4621, its root sqrt(2 x 6.4621) = 3.595."""
    found = root(100, np.array([5]), np.array([3]), 0.1)
    assert found[0] == pytest.approx(3.595, abs=1e-3)
    assert root(100, np.array([0]), np.array([20]), 0.1)[0] < 0


@pytest.mark.parametrize(("n", "margin"), [(24, 0.1), (40, 0.05)])
def test_p_is_small_as_seldom_as_it_says(n: int, margin: float) -> None:
    """All outcomes of n prompts: whatever fraction changes, p is at most 5, 1 and 0.1 % with a
    probability of at most that; and for some fraction nearly so."""
    outcomes = [(w, lost) for w in range(n + 1) for lost in range(n + 1 - w)]
    p = np.array([evidence(n, w, lost, margin) for w, lost in outcomes])
    counts = np.array([(w, lost, n - w - lost) for w, lost in outcomes])
    for level in (0.05, 0.01, 0.001):
        sizes = []
        for rate in np.linspace(margin + 1e-9, 1, 25):
            cells = [(rate - margin) / 2, (rate + margin) / 2, 1 - rate]
            sizes.append(scipy.stats.multinomial.pmf(counts, n, cells)[p <= level].sum())
        assert max(sizes) <= level * 1.01
        assert max(sizes) > level / 4


def test_more_wins_and_fewer_losses_are_more_evidence() -> None:
    for margin in (0.0, 0.05):
        by_wins = [evidence(60, wins, 4, margin) for wins in range(0, 20, 3)]
        by_losses = [evidence(60, 8, losses, margin) for losses in range(0, 20, 3)]
        assert by_wins == sorted(by_wins, reverse=True)
        assert by_losses == sorted(by_losses)
    assert evidence(60, 8, 4, 0.1) < evidence(60, 8, 4, 0.05) < evidence(60, 8, 4)


def test_it_reaches_levels_that_no_bootstrap_reaches() -> None:
    assert 0 < evidence(900, 40, 30, 0.05) < 1e-7


def test_what_cannot_be_is_refused() -> None:
    for given in ((10, 6, 5, 0.1), (10, -1, 0, 0.1), (10, 1, 1, 1.0), (10, 1, 1, -0.1)):
        with pytest.raises(ValueError, match="prompts, margin"):
            evidence(*given)
