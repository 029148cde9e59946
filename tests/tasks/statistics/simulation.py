"""Statistics against simulation: do 95 % intervals hold the truth 95 times of 100, is promised
power reached, how often do many looks err?

    python -m benchmarks.coverage [--trials 1000]

Called are the functions that evaluations, the report and the gate call, on one core. Where a
setting is two counts of prompts, its likely outcomes are gone through and their probabilities
summed; or so many of them as there are trials, spaced evenly over the probability, which is right
to half a point. Goal: coverage of 93 to 97 %. Where few prompts are expected to change, outcomes
are so few whole numbers that no interval can be exact; what counts there is that none falls short.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy.stats import binom, norm

from benchmarks.paired import heading, parser, row
from tasks.statistics.intervals import (
    ALPHA,
    Interval,
    bootstrap_mean,
    bootstrap_share,
    holm,
    mcnemar,
    newcombe,
    paired_bootstrap,
    wilson,
)
from tasks.statistics.noise import noise_floor
from tasks.statistics.power import detectable_effect, needed_n, needed_n_noninferiority

SIZES = (50, 100, 150, 300, 900, 2000)
RATES = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
UNPAIRED = ((0.05, 0.05), (0.05, 0.2), (0.1, 0.15), (0.3, 0.35))
UNPAIRED += ((0.5, 0.5), (0.5, 0.7), (0.8, 0.95), (0.95, 0.95))
PAIRED = ((0.02, 0.0), (0.02, 0.02), (0.05, 0.0), (0.05, 0.03), (0.1, 0.0), (0.1, 0.05))
PAIRED += ((0.1, -0.1), (0.3, 0.0), (0.3, 0.1), (0.5, -0.3))
"""(fraction of prompts that change, true difference)."""
SUPERIORITY = ((0.05, 0.1), (0.05, 0.3), (0.1, 0.1), (0.1, 0.3), (0.2, 0.5), (0.3, 0.3))
"""(effect, discordant)."""
NONINFERIORITY = ((0.02, 0.02, 0.0), (0.05, 0.02, 0.0), (0.05, 0.1, 0.0), (0.05, 0.3, 0.0))
NONINFERIORITY += ((0.05, 0.1, 0.02), (0.1, 0.3, -0.03))
"""(margin, discordant, true difference)."""
SOLVED = {
    "few prompts ever solved": (0.05, 1.0),
    "nearly all always solved": (1.0, 0.03),
    "some always, some never": (0.3, 0.3),
}
"""Probability to solve a prompt: the parameters of its Beta distribution."""
LOW, HIGH = 0.93, 0.97
MANY = 15
"""Changes, above which the paired interval is not conservative any more."""
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
    weights = binom.pmf(np.arange(n + 1), n, rate)
    found = ((wilson(k, n), weight) for k, weight in enumerate(weights))
    return _cell(f"rate {rate:.2f}", n, rate, found)


def newcombe_cell(n: int, before: float, after: float, trials: int) -> Cell:
    """Two independent samples of n."""
    counts = np.arange(n + 1)
    likely = np.outer(binom.pmf(counts, n, before), binom.pmf(counts, n, after))
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
    found = ((bootstrap_mean(one, seed=seed), 1 / trials) for seed, one in enumerate(drawn))
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
    wins = np.arange(binom.isf(1e-9, n, win) + 1)[:, None]
    losses = np.arange(binom.isf(1e-9, n, loss) + 1)[None, :]
    rest = binom.pmf(losses, n - wins, loss / (1 - win))
    return _outcomes(binom.pmf(wins, n, win) * rest, trials)


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
    """How often the interval lies above -margin."""
    found = changes(n, max(discordant, abs(difference)), difference, trials)
    intervals = ((paired_interval(n, wins, losses), share) for wins, losses, share in found)
    return sum(share for interval, share in intervals if interval.low > -margin)


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
        p = 2 * norm.sf(np.abs(z))
    else:
        own, common = (0.3, 0.0) if kind == "domains" else (0.03, 0.27)
        shared, moved = _moves(rng, common, (trials, 1, n)), _moves(rng, own, (trials, looks, n))
        gains = rng.random(moved.shape) < 0.2 * real_effects[:, None]
        moved = np.where(gains, 1, np.where(shared, shared, moved))
        counts = np.stack([(moved == 1).sum(-1), (moved == -1).sum(-1)], axis=-1).tolist()
        p = np.array([[paired_p(n, wins, losses) for wins, losses in family] for family in counts])
    corrected = np.array([holm(row) for row in p.tolist()])
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


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--trials", type=int, default=1000)
    trials, began = made.parse_args().trials, time.process_time()
    _coverage("Wilson, one rate (exact)", [wilson_cell(n, p) for p in RATES for n in SIZES])
    unpaired = [newcombe_cell(n, *rates, 10 * trials) for rates in UNPAIRED for n in SIZES]
    _coverage("Newcombe, two samples", unpaired)
    paired = {(n, *one): paired_cell(n, *one, trials) for one in PAIRED for n in SIZES}
    _coverage("paired bootstrap", list(paired.values()))
    many = [cell for (n, discordant, _), cell in paired.items() if n * discordant > MANY]
    _summary(f"more than {MANY} changes expected", many)
    _coverage("bootstrap of a mean", [grades_cell(n, trials) for n in (12, 50)])
    shares = [shares_cell(n, one, trials) for one in SOLVED for n in (50, 150, 300)]
    _coverage("bootstrap of shares", shares)
    _power(trials)
    heading("six looks: % of families with a false alarm", "uncorrected", "Holm")
    for kind in ("z", "z, correlated", "domains", "metrics"):
        for real in (0, 3):
            errors = family_errors(kind, real, trials * (20 if kind.startswith("z") else 2))
            row(f"{kind}, {real} effects real", *map(_percent, errors))
    heading("noise floor, %", "flips, true", "estimated", "bound holds")
    for n in (100, 300, 900):
        for seeds in (2, 5):
            true, estimated, held = noise_cell(n, seeds, trials)
            rates = (f"{100 * rate:.2f}" for rate in (true, estimated))
            row(f"{seeds} seeds, {n} prompts", *rates, _percent(held))
    print(f"\n{trials} trials, {time.process_time() - began:.0f} s on one core")


def _percent(rate: float | None) -> str:
    return "" if rate is None else f"{100 * rate:.1f}"


def _coverage(name: str, cells: list[Cell]) -> None:
    sizes = sorted({cell.n for cell in cells})
    by = {(cell.setting, cell.n): cell for cell in cells}
    title = f"% of 95% intervals that hold the truth: {name}"
    heading(title, *(f"n={n}" for n in sizes))
    for setting in dict.fromkeys(cell.setting for cell in cells):
        row(setting, *(_percent(by[setting, n].coverage) for n in sizes))
    _summary("all", cells)


def _summary(of: str, cells: list[Cell]) -> None:
    held = [cell.coverage for cell in cells]
    below, above = sum(one < LOW for one in held), sum(one > HIGH for one in held)
    mean, least, most = (_percent(rate) for rate in (float(np.mean(held)), min(held), max(held)))
    print(
        f"\n{of}: {len(held)} settings, mean {mean}, least {least}, most {most}; "
        f"{len(held) - below - above} within 93..97, {below} below, {above} above"
    )


def _power(trials: int) -> None:
    columns = ("n", "test", "interval")
    heading("% found, where 80 and 90% are promised", *columns, *columns)
    for effect, discordant in SUPERIORITY:
        cells: list[object] = []
        for power in (0.8, 0.9):
            n = needed_n(effect, discordant, power=power)
            cells += [n, *map(_percent, power_of_mcnemar(n, effect, discordant, trials))]
        row(f"needed_n: {100 * effect:.0f} points, {discordant:.0%} change", *cells)
    for n in (50, 150, 300):
        effects, cells = [detectable_effect(n, 0.2, power=power) for power in (0.8, 0.9)], []
        for effect in effects:
            cells += [n, *map(_percent, power_of_mcnemar(n, effect, 0.2, trials))]
        points = " and ".join(f"{100 * effect:.1f}" for effect in effects)
        row(f"detectable_effect: {points} points, 20% change", *cells)
    for margin, discordant, true in NONINFERIORITY:
        cells = []
        for power in (0.8, 0.9):
            n = needed_n_noninferiority(margin, discordant, true, power=power)
            cells += [n, "", _percent(shown_not_inferior(n, margin, discordant, true, trials))]
        points = f"{100 * true:+.0f} points, {discordant:.0%} change"
        row(f"margin {100 * margin:.0f}: {points}", *cells)
    for margin, discordant in ((0.05, 0.05), (0.05, 0.1), (0.05, 0.3)):
        cells = []
        for n in (100, 300):
            wrong = shown_not_inferior(n, margin, discordant, -margin, trials)
            cells += [n, "", _percent(wrong)]
        lost = f"margin {100 * margin:.0f}, and all of it lost"
        row(f"error: {lost}, {discordant:.0%} change", *cells)


if __name__ == "__main__":
    main()
