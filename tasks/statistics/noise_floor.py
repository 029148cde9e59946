"""The noise floor: how far a rate moves when nothing changes but the seed that draws the answers.

One model answers n prompts under k seeds; any two of the runs are an A/A comparison. Prompt i is
right in c_i of the k runs. The share of pairs of runs that disagree about it, averaged over the
prompts, is the flip rate

    f = 1/n sum_i 2 c_i (k - c_i) / (k (k - 1))

If the model is right about prompt i with probability p_i, each time anew, then f is an unbiased
estimate of 1/n sum_i 2 p_i (1 - p_i) for any k from 2 on (it is a mean over pairs, a U-statistic;
Hoeffding 1948). The rate of a run has the variance sum_i p_i (1 - p_i) / n^2, estimated by f / 2n,
and the difference of two runs twice that, f / n. So two runs are enough: the standard deviation of
two rates is one observation of the noise, f is n of them.

This assumes that a seed draws the answers to different prompts independently, as sampling does. A
seed that also trained the model moves all prompts together, and f / n is then less than the noise.
"""

import math
from collections.abc import Sequence

import numpy as np

from schemas.base import StrictModel
from tasks.statistics.intervals import Z


class NoiseFloor(StrictModel):
    """One model's results under different seeds, fractions of 1.

    Attributes:
        seeds, n: runs, and prompts of each.
        mean: of the rate over the runs.
        sd: of the rate of a run, sqrt(f / 2n).
        flip_rate: f, the share of the prompts whose verdict differs between two runs.
        bound: |difference of two runs' rates| is at most this in 95 % of all pairs of runs: a
            smaller change is no change.
    """

    seeds: int
    n: int
    mean: float
    sd: float
    flip_rate: float
    bound: float


def noise_floor(runs: Sequence[Sequence[bool]]) -> NoiseFloor:
    """The noise of one model's rate over seeds; see the module docstring.

    Args:
        runs: shape (k, n): whether the answer to prompt j was right in run i. k >= 2, n >= 1.

    The bound is z sqrt(f' / (n + 2)), where f' = (n f + 2) / (n + 2) has the two
    pseudo-observations of `tasks.statistics.intervals.paired_bootstrap`: that no prompt has flipped
    does not say that none ever will.

    Raises:
        ValueError: fewer than two runs, no prompts, or runs of different length.
    """
    lengths = sorted({len(run) for run in runs})
    if len(runs) < 2 or len(lengths) != 1 or lengths == [0]:
        raise ValueError(
            f"{len(runs)} runs of {lengths} prompts; noise shows between two or more runs over the"
            " same prompts, at least one"
        )
    k, n = len(runs), lengths[0]
    right = np.asarray(runs, dtype=bool).sum(axis=0)
    flips = float((2 * right * (k - right)).sum()) / (k * (k - 1))
    return NoiseFloor(
        seeds=k,
        n=n,
        mean=float(right.sum()) / (k * n),
        sd=math.sqrt(flips / 2) / n,
        flip_rate=flips / n,
        bound=Z * math.sqrt(flips + 2) / (n + 2),
    )
