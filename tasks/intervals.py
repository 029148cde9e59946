"""Uncertainty of evaluation results: an interval for a rate, an interval for a paired difference, a test of a paired change.

Everything is at 95 %. Items are treated as drawn independently from one population; what is uncertain is which prompts were asked, not what
the model says to them (decoding is greedy).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True)
class Interval:
    """A confidence interval, ends included."""

    low: float
    high: float


def wilson(successes: int, n: int) -> Interval:
    """Wilson's score interval for a proportion (Wilson 1927), without continuity correction.

        centre = (p + z^2/2n) / (1 + z^2/n)      half width = z / (1 + z^2/n) * sqrt(p(1-p)/n + z^2/4n^2)

    It never leaves [0, 1] and has a width even at 0 of n and n of n: 0 of 10 gives [0, 0.2775].

    Raises:
        ValueError: n is not positive, or successes is not in [0, n].
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} is no proportion")
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    p, shrink = successes / n, 1 + z * z / n
    centre = (p + z * z / (2 * n)) / shrink
    half = z / shrink * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Interval(low=0.0 if successes == 0 else centre - half, high=1.0 if successes == n else centre + half)


def paired_bootstrap(before: Sequence[float], after: Sequence[float], *, seed: int) -> Interval:
    """Percentile bootstrap interval (Efron 1979) of mean(after - before), where item i of both is the same prompt.

    Prompts are resampled `RESAMPLES` times with replacement. A resample is drawn as a multinomial over the distinct differences, which is
    the same distribution as drawing n items and costs three numbers instead of n when the outcomes are 0 and 1. The interval of n equal
    differences has no width: look at the Wilson intervals of the two rates beside it.

    Raises:
        ValueError: no items, or sequences of different length.
    """
    if len(before) != len(after) or len(before) == 0:
        raise ValueError(f"{len(before)} items before and {len(after)} after; a paired difference needs the same items, at least one")
    values, counts = np.unique(np.subtract(after, before, dtype=np.float64), return_counts=True)
    n = len(before)
    rng = np.random.Generator(np.random.Philox(seed))
    means = rng.multinomial(n, counts / n, size=RESAMPLES) @ values / n
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(low), float(high))


def mcnemar(before: Sequence[bool], after: Sequence[bool]) -> float:
    """Exact two-sided p-value of McNemar's test: were as many items won as lost, apart from chance?

    Under the null hypothesis each of the d items whose outcome changed is a win or a loss with probability 1/2, so
    p = min(1, 2 P[Binomial(d, 1/2) <= min(wins, losses)]); no change at all gives 1.

    Raises:
        ValueError: sequences of different length.
    """
    wins = sum(new and not old for old, new in zip(before, after, strict=True))
    losses = sum(old and not new for old, new in zip(before, after, strict=True))
    changed = wins + losses
    tail = sum(math.comb(changed, k) for k in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**changed)
