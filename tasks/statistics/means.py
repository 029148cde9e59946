"""Means of quantities, such as the values of a metric function: a mean with its interval, a test
of a paired change, the difference of two independent means, and the spread over seeds.

The counterparts of `tasks.statistics.intervals` for quantities; for rates, whose outcomes are true
or false, `Rate`, `mcnemar` and `newcombe` are sharper.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, variance

import numpy as np

from tasks.statistics.intervals import CONFIDENCE, Interval, record

FLIPS = 10_000
EXACT, DRAWN = 12, 200
"""Up to the first number of changes all signs are tried, of more some; where they weigh as much as
more than the second number of the largest one, their sum is taken as normal."""


def student(values: Sequence[float]) -> Interval:
    """Student's interval of a mean, value +- t(n - 1) s / sqrt(n). For one value, or equal ones, it
    has no width. Raises statistics.StatisticsError: no values."""
    from scipy.special import stdtrit

    mean, n = fmean(values), len(values)
    if n == 1:
        return Interval(mean, mean)
    reach = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * math.sqrt(variance(values, mean) / n)
    return Interval(mean - reach, mean + reach)


def student_p(values: Sequence[float], margin: float = 0.0) -> float:
    """The one-sided p-value, by Student's t, of the hypothesis that the mean is -margin or less.
    One value, or equal ones, have no spread: 1, or 0 if all are above -margin. Raises
    statistics.StatisticsError: no values."""
    from scipy.special import stdtr

    mean, n = fmean(values) + margin, len(values)
    error = math.sqrt(variance(values) / n) if n > 1 else 0.0
    if error == 0:
        return float(mean <= 0 or n == 1)
    return float(stdtr(n - 1, -mean / error))


@dataclass(frozen=True)
class Mean:
    """The mean of `n` quantities with its interval (`student`)."""

    value: float
    n: int
    interval: Interval

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean | None":
        """None of none."""
        return cls(fmean(values), len(values), student(values)) if values else None


def mean_record(name: str, values: Sequence[float]) -> dict[str, float | None]:
    """The `record` of the mean; all None without values."""
    mean = Mean.of(values)
    return record(name, mean.value, mean.interval) if mean else record(name, None, None)


def sign_flips(differences: Sequence[float], *, seed: int) -> float:
    """Two-sided p-value of Fisher's randomisation test of paired differences: were as many gained
    as lost, apart from chance?

    Under the null hypothesis each difference has either sign with probability 1/2, so p is the
    share of all 2^d choices of signs, of the d differences that are not 0, whose sum is as far from
    0 as the one that was seen, or farther. Of differences of 1 and -1 that is McNemar's exact test.
    With more than 12 it is an estimate by 10,000 choices, (1 + hits) / 10,001: never 0, and without
    hits at most Hoeffding's bound of it, 2 exp(-sum^2 / 2 sum of squares); where the squares sum to
    more than 200 times the largest one, that of the normal distribution which the sum then has, and
    of a sum nearer to 0 by the largest one: equal differences leave such gaps between sums. Of more
    than 200 different sizes the sum of the smaller ones is drawn as a normal one.
    """
    sizes = np.abs([one for one in differences if one != 0])
    if sizes.size == 0:
        return 1.0
    least = abs(math.fsum(differences)) * (1 - 1e-9)  # sums of the same numbers differ in rounding
    squares, largest = float(sizes @ sizes), float(sizes.max())
    if squares > DRAWN * largest**2:
        return 2 * NormalDist().cdf(-max(0.0, least - largest) / math.sqrt(squares))
    if sizes.size <= EXACT:
        choices = np.arange(2**sizes.size)[:, None] >> np.arange(sizes.size) & 1
        return float(np.mean(np.abs((2 * choices - 1) @ sizes) >= least))
    rng = np.random.Generator(np.random.Philox(seed))
    values, counts = np.unique(sizes, return_counts=True)
    rest = math.sqrt(float(counts[:-DRAWN] @ values[:-DRAWN] ** 2))
    values, counts = values[-DRAWN:], counts[-DRAWN:]
    drawn = 2 * rng.binomial(counts, 0.5, size=(FLIPS, values.size)) - counts
    hits = int(np.sum(np.abs(drawn @ values + rng.normal(0, rest, FLIPS)) >= least))
    bound = 2 * math.exp(-(least**2) / squares / 2)
    return (1 + hits) / (1 + FLIPS) if hits else min(1 / (1 + FLIPS), bound)


def welch(before: Sequence[float], after: Sequence[float]) -> tuple[Interval, float] | None:
    """Welch's interval of after - before, the means of two independent samples, and its two-sided
    p-value; None where one has fewer than two values, of which nothing is known.

        d +- t(df) sqrt(v0 / n0 + v1 / n1),  df by Welch and Satterthwaite

    Where the values of each are equal they have no spread, and p is at most that of the permutation
    test: 2 of the ways to choose n0 of all values.
    """
    from scipy.stats import ttest_ind

    if min(len(before), len(after)) < 2:
        return None
    gap = fmean(after) - fmean(before)
    error = math.sqrt(sum(variance(side) / len(side) for side in (before, after)))
    if error <= 1e-12 * abs(gap):  # equal up to rounding
        ways = math.comb(len(before) + len(after), len(before))
        return Interval(gap, gap), min(1.0, 2 / ways) if gap else 1.0
    with warnings.catch_warnings():  # of one side without a spread, whose variance is 0
        warnings.simplefilter("ignore", RuntimeWarning)
        found = ttest_ind(after, before, equal_var=False)
    low, high = found.confidence_interval(CONFIDENCE)
    return Interval(float(low), float(high)), float(found.pvalue)


@dataclass(frozen=True)
class Spread:
    """A number under several seeds: its mean with Student's interval, and the noise floor. There is
    one value per seed, drawn independently; the prompts are the same, so the interval predicts
    other seeds on these prompts, and not other prompts.

        interval  mean +- t(n - 1) sd / sqrt(n)
        bound     t(n - 1) sqrt(2) sd: |difference| of two further seeds is at most this in 95 % of
                  all pairs, so a smaller one between two single runs is noise
        p         two-sided, of Student's test that the mean is 0; of equal values, which have no
                  spread, of the test by their signs

    Two seeds tell little: t(1) is 12.7, and t(4), of five, 2.8.

    Attributes:
        sd: the standard deviation over seeds, the noise floor.
    """

    values: tuple[float, ...]
    mean: float
    interval: Interval
    sd: float
    bound: float
    p: float

    @property
    def n(self) -> int:
        return len(self.values)

    @classmethod
    def of(cls, values: Sequence[float], step: float = 0.0) -> "Spread | None":
        """The spread of values that are known to `step`; None for fewer than two.

        A rate over n prompts has steps of 1 / n, and if they are coarse two seeds give the same
        number by chance. So the variance includes that of rounding, step^2 / 12.
        """
        if len(values) < 2:
            return None
        from scipy.special import stdtr, stdtrit

        n, mean = len(values), fmean(values)
        sd = math.sqrt(variance(values, mean) + step * step / 12)
        reach, error = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)), sd / math.sqrt(n)
        interval = Interval(mean - reach * error, mean + reach * error)
        p = 2.0 ** (1 - n) if mean else 1.0
        if error > 1e-12 * abs(mean):  # unequal, rounding aside
            p = float(2 * stdtr(n - 1, -abs(mean) / error))
        return cls(tuple(values), mean, interval, sd, reach * math.sqrt(2) * sd, p)
