"""Statistics of our own against simulation: do 95 % intervals hold the truth 95 times of 100, is
promised power reached? Figures, also of published methods: docs/measurements.md.

Called are the functions that evaluations, the report and the gate call. Where a setting is two
counts of prompts, its likely outcomes are gone through and their probabilities summed; or so many
of them as there are trials, spaced evenly over the probability, which is right to half a point.
Goal: coverage of 93 to 97 %. Where few prompts are expected to change, outcomes are so few whole
numbers that no interval can be exact; what counts there is that none falls short.
"""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np
import scipy

from tasks.statistics.intervals import ALPHA, Interval, bootstrap_share, paired_bootstrap
from tasks.statistics.noise_floor import noise_floor
from tasks.statistics.noninferiority import evidence


class Cell(NamedTuple):
    """How often the interval of one setting held the truth, and how wide it was on average."""

    coverage: float
    width: float


def paired_cell(n: int, discordant: float, difference: float, trials: int) -> Cell:
    """n prompts, of which a fraction changes."""
    found = changes(n, discordant, difference, trials)
    held = ((paired_interval(n, wins, losses), share) for wins, losses, share in found)
    return _cell(difference, held)


def shares_cell(n: int, alpha: float, beta: float, trials: int) -> Cell:
    """The share of each prompt's four samples that is right: pass@1, `tasks.evaluation.sampled`.
    The probability to solve a prompt is Beta(alpha, beta)."""
    rng = _rng(n)
    drawn = (rng.binomial(4, rng.beta(alpha, beta, size=(trials, n))) / 4).tolist()
    found = ((bootstrap_share(one, seed=seed), 1 / trials) for seed, one in enumerate(drawn))
    return _cell(alpha / (alpha + beta), found)


def changes(
    n: int, discordant: float, difference: float, trials: int
) -> list[tuple[int, int, float]]:
    """Wins and losses of n prompts, with their probability: all likely ones or, if there are more
    of them than trials, a systematic sample."""
    win, loss = (discordant + difference) / 2, (discordant - difference) / 2
    wins = np.arange(scipy.stats.binom.isf(1e-9, n, win) + 1)[:, None]
    losses = np.arange(scipy.stats.binom.isf(1e-9, n, loss) + 1)[None, :]
    rest = scipy.stats.binom.pmf(losses, n - wins, loss / (1 - win))
    weights = scipy.stats.binom.pmf(wins, n, win) * rest
    weights = np.where(weights > 1e-7, weights, 0.0)
    if np.count_nonzero(weights) > trials:
        reached = np.cumsum(weights)
        drawn = np.searchsorted(reached, (np.arange(trials) + 0.5) / trials * reached[-1])
        weights = np.bincount(drawn, minlength=weights.size).reshape(weights.shape)
    weights = weights / weights.sum()
    return [(int(i), int(j), float(weights[i, j])) for i, j in np.argwhere(weights)]


@cache
def paired_interval(n: int, wins: int, losses: int) -> Interval:
    """The bootstrap draws with a seed of its own for each outcome."""
    before, after = outcomes(n, wins, losses)
    return paired_bootstrap(before, after, seed=wins * n + losses)


def outcomes(n: int, wins: int, losses: int) -> tuple[list[bool], list[bool]]:
    """Before and after."""
    ties = [True] * (n - wins - losses)
    return [False] * wins + [True] * losses + ties, [True] * wins + [False] * losses + ties


def shown_not_inferior(
    n: int, margin: float, discordant: float, difference: float, trials: int
) -> float:
    """How often a loss of the margin is excluded at 2.5 %."""
    found = changes(n, max(discordant, abs(difference)), difference, trials)
    tests = ((evidence(n, wins, losses, margin), share) for wins, losses, share in found)
    return sum(share for p, share in tests if p <= ALPHA / 2)


def noise_cell(n: int, seeds: int, trials: int) -> tuple[float, float, float]:
    """The true flip rate, the mean of its estimates, and how often two new runs differ by at most
    the bound.

    Most prompts are nearly always right or nearly always wrong: p is Beta(0.3, 0.3).
    """
    rng = _rng(n)
    p = rng.beta(0.3, 0.3, n)
    floors = [noise_floor(rng.random((seeds, n)) < p) for _ in range(trials)]  # type: ignore[arg-type]
    apart = np.abs(np.diff((rng.random((trials, 2, n)) < p).mean(axis=2), axis=1))[:, 0]
    held = np.mean([gap <= floor.bound for gap, floor in zip(apart, floors, strict=True)])
    return (
        float(np.mean(2 * p * (1 - p))),
        float(np.mean([floor.flip_rate for floor in floors])),
        float(held),
    )


def _cell(truth: float, intervals: Iterable[tuple[Interval, float]]) -> Cell:
    covered = width = 0.0
    for interval, weight in intervals:
        covered += weight * (interval.low - 1e-9 <= truth <= interval.high + 1e-9)
        width += weight * (interval.high - interval.low)
    return Cell(covered, width)


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))
