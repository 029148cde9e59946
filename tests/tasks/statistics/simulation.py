"""Statistics against simulation: do 95 % intervals hold the truth 95 times of 100, is promised
power reached, how often do many looks err? Figures: docs/measurements.md.

Called are the functions that evaluations, the report and the gate call. Where a
setting is two counts of prompts, its likely outcomes are gone through and their probabilities
summed; or so many of them as there are trials, spaced evenly over the probability, which is right
to half a point. Goal: coverage of 93 to 97 %. Where few prompts are expected to change, outcomes
are so few whole numbers that no interval can be exact; what counts there is that none falls short.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
import scipy

from tasks.statistics.intervals import (
    ALPHA,
    Interval,
    bootstrap_share,
    holm,
    mcnemar,
    newcombe,
    paired_bootstrap,
    wilson,
)
from tasks.statistics.means import student
from tasks.statistics.noise_floor import noise_floor
from tasks.statistics.noninferiority import evidence

SOLVED = {
    "few prompts ever solved": (0.05, 1.0),
    "nearly all always solved": (1.0, 0.03),
    "some always, some never": (0.3, 0.3),
}
"""Probability to solve a prompt: the parameters of its Beta distribution."""
Weighted = list[tuple[int, int, float]]
"""Outcomes, two counts of prompts each, with their probabilities."""


@dataclass(frozen=True)
class Cell:
    """How often the interval of one setting held the truth, and how wide it was on average."""

    setting: str
    n: int
    coverage: float
    width: float


def wilson_cell(n: int, rate: float) -> Cell:
    """Exact, over Binomial(n, rate)."""
    weights = scipy.stats.binom.pmf(np.arange(n + 1), n, rate)
    found = ((wilson(k, n), weight) for k, weight in enumerate(weights))
    return _cell(f"rate {rate:.2f}", n, rate, found)


def newcombe_cell(n: int, before: float, after: float, trials: int) -> Cell:
    """Two independent samples of n."""
    counts = np.arange(n + 1)
    likely = np.outer(*(scipy.stats.binom.pmf(counts, n, rate) for rate in (before, after)))
    outcomes = _outcomes(likely, trials)
    found = ((newcombe(old, n, new, n), share) for old, new, share in outcomes)
    return _cell(f"{before:.2f} to {after:.2f}", n, after - before, found)


def paired_cell(n: int, discordant: float, difference: float, trials: int) -> Cell:
    """n prompts, of which a fraction changes."""
    outcomes = changes(n, discordant, difference, trials)
    found = ((paired_interval(n, wins, losses), share) for wins, losses, share in outcomes)
    setting = f"{discordant:.0%} change, {100 * difference:+.0f} points"
    return _cell(setting, n, difference, found)


def grades_cell(n: int, trials: int) -> Cell:
    """Differences of grades to a tenth, as of a judge's anchors: most are nil, a few are large;
    `tasks.judging.calibration`."""
    values = np.array([-0.2, -0.1, 0.0, 0.1, 0.2, 0.5])
    chances = np.array([0.1, 0.15, 0.35, 0.2, 0.15, 0.05])
    drawn = _rng(n).choice(values, p=chances, size=(trials, n)).tolist()
    found = ((student(one), 1 / trials) for one in drawn)
    return _cell("differences of grades", n, float(values @ chances), found)


def shares_cell(n: int, setting: str, trials: int) -> Cell:
    """The share of each prompt's four samples that is right: pass@1, `tasks.evaluation.sampled`."""
    alpha, beta = SOLVED[setting]
    rng = _rng(n)
    drawn = (rng.binomial(4, rng.beta(alpha, beta, size=(trials, n))) / 4).tolist()
    found = ((bootstrap_share(one, seed=seed), 1 / trials) for seed, one in enumerate(drawn))
    return _cell(setting, n, alpha / (alpha + beta), found)


def changes(n: int, discordant: float, difference: float, trials: int) -> Weighted:
    """Wins and losses of n prompts."""
    win, loss = (discordant + difference) / 2, (discordant - difference) / 2
    wins = np.arange(scipy.stats.binom.isf(1e-9, n, win) + 1)[:, None]
    losses = np.arange(scipy.stats.binom.isf(1e-9, n, loss) + 1)[None, :]
    rest = scipy.stats.binom.pmf(losses, n - wins, loss / (1 - win))
    return _outcomes(scipy.stats.binom.pmf(wins, n, win) * rest, trials)


@cache
def paired_interval(n: int, wins: int, losses: int) -> Interval:
    """The bootstrap draws with a seed of its own for each outcome."""
    before, after = outcomes(n, wins, losses)
    return paired_bootstrap(before, after, seed=wins * n + losses)


@cache
def paired_p(n: int, wins: int, losses: int) -> float:
    """McNemar's p-value."""
    return mcnemar(*outcomes(n, wins, losses))


def outcomes(n: int, wins: int, losses: int) -> tuple[list[bool], list[bool]]:
    """Before and after."""
    ties = [True] * (n - wins - losses)
    return [False] * wins + [True] * losses + ties, [True] * wins + [False] * losses + ties


def power_of_mcnemar(n: int, effect: float, discordant: float, trials: int) -> tuple[float, float]:
    """How often a gain is found: by McNemar's test, and by the interval."""
    found = changes(n, max(discordant, effect), effect, trials)
    tested = shown = 0.0
    for wins, losses, share in found:
        tested += share * (wins > losses and paired_p(n, wins, losses) <= ALPHA)
        shown += share * (paired_interval(n, wins, losses).low > 0)
    return tested, shown


def shown_not_inferior(
    n: int, margin: float, discordant: float, difference: float, trials: int
) -> float:
    """How often a loss of the margin is excluded at 2.5 %."""
    found = changes(n, max(discordant, abs(difference)), difference, trials)
    tests = ((evidence(n, wins, losses, margin), share) for wins, losses, share in found)
    return sum(share for p, share in tests if p <= ALPHA / 2)


def family_errors(
    kind: str, real: int, trials: int, looks: int = 6, n: int = 100
) -> tuple[float, float]:
    """How often at least one of the looks without an effect is called significant: uncorrected, and
    with Holm's correction.

    Args:
        kind: what the p-values are of. "domains": McNemar's tests of n prompts each; "metrics": of
            the same n prompts, so that nine of ten changes are shared by all metrics; "z": tests of
            independent normal variables, which use up the 5 %; "z, correlated": by 0.8.
        real: of the first so many looks the effect is real, of the others it is nil.
    """
    rng, real_effects = _rng(looks), np.where(np.arange(looks) < real, 1.0, 0.0)
    if kind.startswith("z"):
        common = 0.8 if "correlated" in kind else 0.0
        z = math.sqrt(common) * rng.normal(size=(trials, 1)) + 3 * real_effects
        z = z + math.sqrt(1 - common) * rng.normal(size=(trials, looks))
        p = 2 * scipy.stats.norm.sf(np.abs(z))
    else:
        own, common = (0.3, 0.0) if kind == "domains" else (0.03, 0.27)
        shared, moved = _moves(rng, common, (trials, 1, n)), _moves(rng, own, (trials, looks, n))
        gains = rng.random(moved.shape) < 0.2 * real_effects[:, None]
        moved = np.where(gains, 1, np.where(shared, shared, moved))
        counts = np.stack([(moved == 1).sum(-1), (moved == -1).sum(-1)], axis=-1).tolist()
        p = np.array([[paired_p(n, wins, losses) for wins, losses in family] for family in counts])
    corrected = np.array([[*holm(dict(enumerate(row))).values()] for row in p.tolist()])
    return tuple(float((values[:, real:] <= ALPHA).any(axis=1).mean()) for values in (p, corrected))  # type: ignore[return-value]


def _moves(rng: np.random.Generator, changed: float, shape: tuple[int, ...]) -> np.ndarray:
    """1 for a win, -1 for a loss, 0 for a tie."""
    drawn = rng.random(shape)
    return np.where(drawn < changed / 2, 1, np.where(drawn < changed, -1, 0)).astype(np.int8)


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


def _cell(setting: str, n: int, truth: float, intervals: Iterable[tuple[Interval, float]]) -> Cell:
    covered = width = 0.0
    for interval, weight in intervals:
        covered += weight * (interval.low - 1e-9 <= truth <= interval.high + 1e-9)
        width += weight * (interval.high - interval.low)
    return Cell(setting, n, covered, width)


def _outcomes(probability: np.ndarray, trials: int) -> Weighted:
    """Outcome (i, j) has probability[i, j]. All likely ones or, if there are more of them than
    trials, a systematic sample."""
    weights = np.where(probability > 1e-7, probability, 0.0)
    if np.count_nonzero(weights) > trials:
        reached = np.cumsum(weights)
        drawn = np.searchsorted(reached, (np.arange(trials) + 0.5) / trials * reached[-1])
        weights = np.bincount(drawn, minlength=weights.size).reshape(weights.shape)
    weights = weights / weights.sum()
    return [(int(i), int(j), float(weights[i, j])) for i, j in np.argwhere(weights)]


def _rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(seed))
