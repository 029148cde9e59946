"""The spread of a number over seeds: its mean with Student's interval, and the noise floor.

There is one value per seed, drawn independently; the prompts are the same, so an interval here
predicts other seeds on these prompts, and not other prompts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from tasks.statistics.intervals import CONFIDENCE, Interval


@dataclass(frozen=True)
class Spread:
    """A number under several seeds.

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
