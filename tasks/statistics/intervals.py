"""Uncertainty of evaluation results: intervals for a rate and for differences, a test of a paired
change, a correction for many looks.

Everything is at 95 %. Items count as drawn independently from one population: the choice of prompts
is uncertain, the model's answers are not (decoding is greedy; `tasks.statistics.noise_floor` is
about sampled answers).

docs/measurements.md, 2026-11-21, has the coverage of the intervals.
"""

import math
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.95
ALPHA = 0.05
"""Two-sided, as the intervals are."""
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
RESAMPLES = 10_000
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Interval:
    """A confidence interval, ends included."""

    low: float
    high: float


def wilson(successes: int, n: int) -> Interval:
    """Wilson's score interval for a proportion (Wilson 1927), without continuity correction.

        centre = (p + z^2/2n) / (1 + z^2/n)
        half width = z / (1 + z^2/n) * sqrt(p(1-p)/n + z^2/4n^2)

    It never leaves [0, 1] and has a width even at 0 of n and n of n: 0 of 10 gives [0, 0.2775].

    Raises:
        ValueError: n is not positive, or successes is not in [0, n].
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} is no proportion")
    p, shrink = successes / n, 1 + Z * Z / n
    centre = (p + Z * Z / (2 * n)) / shrink
    half = Z / shrink * math.sqrt(p * (1 - p) / n + Z * Z / (4 * n * n))
    return Interval(
        low=0.0 if successes == 0 else centre - half, high=1.0 if successes == n else centre + half
    )


@dataclass(frozen=True)
class Rate:
    """`successes` of `n`, fractions of 1, with the Wilson interval."""

    successes: int
    n: int

    @classmethod
    def of(cls, outcomes: Collection[bool]) -> "Rate | None":
        """The rate of true outcomes; None without outcomes."""
        return cls(sum(outcomes), len(outcomes)) if len(outcomes) else None

    @property
    def value(self) -> float:
        return self.successes / self.n

    @property
    def interval(self) -> Interval:
        return wilson(self.successes, self.n)


def record(name: str, value: float | None, interval: Interval | None) -> dict[str, float | None]:
    """`{name, name_low, name_high}`, the form of an estimate with its interval in metrics."""
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def rate_record(name: str, outcomes: Collection[bool]) -> dict[str, float | None]:
    """The `record` of the rate of true outcomes; all None without outcomes."""
    rate = Rate.of(outcomes)
    return record(name, rate.value, rate.interval) if rate else record(name, None, None)


def newcombe(successes_before: int, n_before: int, successes_after: int, n_after: int) -> Interval:
    """Newcombe's hybrid score interval (Newcombe 1998, method 10) of after - before, the rates of
    two independent samples.

    It is made of the Wilson intervals [l0, u0] of the rate before, p0, and [l1, u1] of the rate
    after, p1; d = p1 - p0:

        d - sqrt((p1 - l1)^2 + (u0 - p0)^2)   to   d + sqrt((u1 - p1)^2 + (p0 - l0)^2)

    Raises:
        ValueError: what `wilson` raises.
    """
    old, new = wilson(successes_before, n_before), wilson(successes_after, n_after)
    before, after = successes_before / n_before, successes_after / n_after
    below = math.hypot(after - new.low, old.high - before)
    above = math.hypot(new.high - after, before - old.low)
    return Interval(low=after - before - below, high=after - before + above)


def paired_bootstrap(before: Sequence[bool], after: Sequence[bool], *, seed: int) -> Interval:
    """Percentile bootstrap interval (Efron 1979) of the difference of two rates, after - before,
    where item i of both is the same prompt.

    It resamples the n prompts and two more, one that was won and one that was lost, as in Bonett
    and Price 2012, "Adjusted Wald confidence interval for a difference of binomial proportions
    based on paired data". Without the two a bootstrap knows only the changes that it has seen: if 2
    % of 100 prompts are won in truth, its interval contains that 86 times of 100. With them the
    interval of n equal outcomes has a half width of about 2.8 / (n + 2), much like the rule of
    three.

    Raises:
        ValueError: no items, sequences of different length, or values that are neither true nor
            false (0 and 1 will do).
    """
    if len(before) != len(after) or len(before) == 0:
        raise ValueError(
            f"{len(before)} items before and {len(after)} after; a paired difference needs the same"
            " items, at least one"
        )
    wins, losses = _changes(before, after)
    return _bootstrap([1, -1, 0], [wins + 1, losses + 1, len(before) - wins - losses], seed)


def bootstrap_share(values: Sequence[float], *, seed: int) -> Interval:
    """Percentile bootstrap interval of a mean of values from 0 to 1, such as the share of each
    prompt's samples that is right.

    As in `paired_bootstrap`, two more are resampled: one of 0 and one of 1, as Agresti and Caffo
    2000 add a success and a failure to a rate. So the interval of equal values has a width.

    Raises:
        ValueError: no values, or one that is not within 0 .. 1.
    """
    outside = [value for value in values if not 0 <= value <= 1]
    if outside or len(values) == 0:
        raise ValueError(
            f"{len(values)} shares, {outside[:3]} of them not within 0 .. 1; a mean needs at least"
            " one, and all within"
        )
    return _bootstrap(*np.unique([*values, 0.0, 1.0], return_counts=True), seed)


def _bootstrap(values: ArrayLike, counts: ArrayLike, seed: int) -> Interval:
    """Bootstrap of the mean of `values`, each with its count: quantiles of the means of `RESAMPLES`
    resamples of the same size.

    A resample is drawn as a multinomial over the values: the same distribution as drawing item by
    item, three numbers instead of n where items are won, lost or tied.
    """
    n = int(np.sum(counts))
    rng = np.random.Generator(np.random.Philox(seed))
    means = rng.multinomial(n, np.divide(counts, n), size=RESAMPLES) @ np.asarray(values) / n
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(low), float(high))


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Exact two-sided p-value of McNemar's test: were as many items won as lost, apart from chance?

    Under the null hypothesis each of the d items whose outcome changed is a win or a loss with
    probability 1/2, so p = min(1, 2 P[Binomial(d, 1/2) <= min(wins, losses)]); no change at all
    gives 1.

    Raises:
        ValueError: sequences of different length.
    """
    wins, losses = _changes(before, after)
    changed = wins + losses
    tail = sum(math.comb(changed, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**changed)


def _changes(before: Sequence[bool], after: Sequence[bool]) -> tuple[int, int]:
    """Prompts won and prompts lost."""
    pairs = list(zip(before, after, strict=True))
    for value in {value for pair in pairs for value in pair} - {False, True}:
        raise ValueError(
            f"{value!r} is no outcome; a mean of quantities has an interval by"
            " `tasks.statistics.means.student`"
        )
    return pairs.count((False, True)), pairs.count((True, False))


def holm(p: Mapping[Key, float | None]) -> dict[Key, float]:
    """p-values adjusted for looking at all of them (Holm 1979).

    Sorted ascending, the i-th of m (from 0) becomes the maximum of (m - i) p and the one before it,
    at most 1. None is a look at which nothing changed, so that its p-value could never be small
    (Tarone 1990): it does not count, and becomes 1.

    The probability of even one false alarm in a family stays at most ALPHA whichever of the
    hypotheses are true, and however the p-values depend on one another: the looks share prompts and
    models. Bonferroni promises the same and finds less; Hochberg's and Benjamini and Hochberg's
    corrections find more, but need a kind of independence.
    """
    adjusted, largest = dict.fromkeys(p, 1.0), 0.0
    looks = {key: value for key, value in p.items() if value is not None}
    for rank, key in enumerate(sorted(looks, key=looks.__getitem__)):
        largest = max(largest, min(1.0, (len(looks) - rank) * looks[key]))
        adjusted[key] = largest
    return adjusted
