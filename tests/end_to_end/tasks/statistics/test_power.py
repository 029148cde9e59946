"""How many prompts it takes: against published values, brute force, and the tests whose power is
promised."""

import math
from collections.abc import Callable

import pytest
import scipy

from tasks.statistics import power
from tasks.statistics.intervals import mcnemar
from tasks.statistics.power import detectable_effect, needed_n, needed_n_noninferiority
from tests.tasks.statistics.simulation import power_of_mcnemar, shown_not_inferior


def test_power_agrees_with_g_power() -> None:
    """G*Power 3.1's example of McNemar's exact test (O'Brien 2002): 50 pairs, 40 % discordant (8 %
    against 32 %), at 5 % one-sided: power 0.8393, actual error 0.032578."""
    assert power.mcnemar_power(50, 0.24, 0.4, 0.05) == pytest.approx(0.8393, abs=1e-4)
    assert power.mcnemar_power(50, 0.0, 0.4, 0.05) == pytest.approx(0.032578, abs=1e-6)


@pytest.mark.parametrize(
    ("n", "effect", "discordant"), [(8, 0.5, 0.9), (20, 0.3, 0.5), (20, 0.3, 0.3), (30, 0.05, 0.1)]
)
def test_power_is_the_probability_of_the_outcomes_that_the_test_rejects(n, effect, discordant):
    win, loss, found = (discordant + effect) / 2, (discordant - effect) / 2, 0.0
    chance = scipy.stats.binom.pmf
    for wins in range(n + 1):
        for losses in range(min(wins, n - wins + 1)):
            if mcnemar([False] * wins + [True] * losses, [True] * wins + [False] * losses) <= 0.05:
                found += chance(wins, n, win) * chance(losses, n - wins, loss / (1 - win))
    assert power.mcnemar_power(n, effect, discordant) == pytest.approx(found, abs=1e-9)


@pytest.mark.parametrize(
    ("effect", "discordant", "expected"), [(0.05, 0.1, 312), (0.1, 0.3, 233), (0.02, 0.2, 3922)]
)
def test_needed_n_is_a_little_more_than_the_normal_approximation(effect, discordant, expected):
    """Connett, Smith and McHugh 1987: (z sqrt(D) + z_power sqrt(D - d^2))^2 / d^2. An exact test
    needs more, by less than 2/d."""
    assert expected < needed_n(effect, discordant) < expected + 2 / effect
    assert needed_n(-effect, discordant) == needed_n(effect, discordant)


def test_needed_n_of_an_effect_larger_than_what_changes_takes_all_changes_as_wins() -> None:
    """Six changes that are all wins are the least that McNemar's test rejects: 2 / 2^6."""
    assert needed_n(1.0, 0.0) == 6
    assert needed_n(0.1, 0.02) == needed_n(0.1, 0.1)


@pytest.mark.parametrize(("n", "discordant"), [(12, 0.5), (100, 0.1), (1000, 0.3)])
def test_detectable_effect_is_the_inverse_of_needed_n(n: int, discordant: float) -> None:
    effect = detectable_effect(n, discordant)
    less = power.mcnemar_power(n, effect - 1e-4, discordant)
    assert power.mcnemar_power(n, effect, discordant) >= 0.8 > less
    assert needed_n(effect, discordant) <= n


def test_a_few_prompts_find_nothing() -> None:
    """Five of five won: p = 0.0625."""
    assert detectable_effect(5, 1.0) == math.inf
    assert detectable_effect(6, 0.1) < 1


def test_noninferiority_of_many_prompts_needs_what_the_normal_approximation_says() -> None:
    """(1.95996 + 0.84162)^2 (0.3 - 0.01^2) / (0.02 + 0.01)^2 = 2615.4, and a little more; a level
    of 1e-6 needs (4.75342 + 0.84162)^2 / 2.80158^2 = 3.99 times as many."""
    n = needed_n_noninferiority(0.02, 0.3, 0.01)
    assert 2615 < n < 2800
    assert needed_n_noninferiority(0.02, 0.3, 0.01, level=1e-6) == pytest.approx(
        3.99 * 2615.4, 1e-2
    )


@pytest.mark.parametrize("margin", [0.02, 0.05, 0.1])
def test_noninferiority_is_not_shown_by_few_prompts_even_if_nothing_changes(margin: float) -> None:
    """If so many are lost, none of n is lost with (1 - margin)^n."""
    for level in (0.025, 1e-4):
        n = needed_n_noninferiority(margin, 0.0, level=level)
        assert (1 - margin) ** n <= level < (1 - margin) ** (n - 1)


@pytest.mark.parametrize(("effect", "discordant"), [(0.05, 0.1), (0.3, 0.5)])
def test_promised_power_is_reached(effect: float, discordant: float) -> None:
    n = needed_n(effect, discordant)
    tested, interval = power_of_mcnemar(n, effect, discordant, trials=250)
    assert tested == pytest.approx(0.8, abs=0.02)
    assert interval == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(
    ("margin", "discordant", "difference"), [(0.05, 0.1, 0.0), (0.05, 0.05, -0.02), (0.1, 0.3, 0.1)]
)
def test_promised_power_of_noninferiority_is_reached(margin, discordant, difference):
    n = needed_n_noninferiority(margin, discordant, difference)
    shown = shown_not_inferior(n, margin, discordant, difference, trials=250)
    assert 0.78 < shown < 0.9


REFUSED = [
    (lambda: needed_n(0.0, 0.1), "no number of prompts finds a difference of 0"),
    (lambda: needed_n(1e-7, 0.1), "not even a thousand million"),
    (lambda: needed_n_noninferiority(0.05, 0.1, -0.05), r"difference of -0\.05 is above -0\.05"),
    (lambda: needed_n_noninferiority(0.0, 0.1), "margin = 0"),
    (lambda: detectable_effect(0, 0.1), "n = 0"),
    (lambda: detectable_effect(10, 1.5), r"discordant = 1\.5"),
]


@pytest.mark.parametrize(("ask", "problem"), REFUSED)
def test_what_no_number_of_prompts_shows_is_refused(ask: Callable[[], float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        ask()
