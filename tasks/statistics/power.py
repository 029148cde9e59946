"""How many prompts it takes: what a paired comparison of two models can find, before it is made.

Both models answer the same n prompts. A fraction `discordant` of the prompts is right for one model
and wrong for the other, and the true difference of the rates is `difference`: a prompt is won with
probability (discordant + difference) / 2 and lost with (discordant - difference) / 2. A difference
larger than `discordant` changes as many prompts as it must: discordant counts as at least
|difference|.

Power is exact and unconditional (Schork and Williams 1980, "Number of observations required for the
comparison of two correlated proportions"): d of the n prompts change with the probability of
Binomial(n, discordant), each of them is a win or a loss, and a test passes when at most so many are
losses. As these are whole numbers, power grows with n in small teeth: the n that are given here
have the power asked for; a few more may lack a little of it, and a few fewer may have it too.

The power reached in simulation beside the power promised: docs/measurements.md, 2026-11-21.
"""

import math
from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from tasks.statistics.intervals import ALPHA, Z

Counts = np.ndarray
"""Shape (m,): numbers of prompts."""
_POWER = 0.8
_STEPS = 2001
"""Sums over more numbers of changes than this are taken in steps, of a hundredth of a standard
deviation at most."""


def detectable_effect(n: int, discordant: float) -> float:
    """The smallest |difference| of two rates, a fraction, that a paired comparison of n prompts
    finds with a probability of 80 %.

    To find is to reject by McNemar's exact test at 5 %, two-sided, on the right side. Fewer than
    six prompts find no effect: infinity.

    Raises:
        ValueError: n is not positive, or `discordant` is no fraction.
    """
    _require(n >= 1, f"n = {n} is no number of prompts")
    _require_probabilities(discordant, _POWER)
    if mcnemar_power(n, 1.0, 1.0) < _POWER:
        return math.inf
    low, high = 0.0, 1.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        found = mcnemar_power(n, middle, discordant) >= _POWER
        low, high = (low, middle) if found else (middle, high)
    return high


def needed_n(effect: float, discordant: float, *, power: float = _POWER) -> int:
    """The prompts that a paired comparison needs to find a difference of |effect| with this
    probability; see `detectable_effect`.

    Raises:
        ValueError: effect is zero or beyond -1 .. 1, or so small that a thousand million prompts do
            not find it; a probability is not one.
    """
    _require(
        0 < abs(effect) <= 1,
        f"no number of prompts finds a difference of {effect:g}; it must be within -1 .. 1, and"
        " not 0",
    )
    _require_probabilities(discordant, power)
    return _least(lambda n: mcnemar_power(n, abs(effect), discordant) >= power)


def needed_n_noninferiority(
    margin: float, discordant: float, difference: float = 0.0, *, power: float = _POWER
) -> int:
    """The prompts that are needed to show, with this probability, that a model which differs from
    another one by `difference` has not lost as much as `margin`, a fraction above 0.

    That is shown when the interval of the difference
    (`tasks.statistics.intervals.paired_bootstrap`) lies above -margin: at 95 %, an error of 2.5 %
    one-sided. For large n the answer is the usual (z + z_power)^2 (discordant - difference^2) /
    (margin + difference)^2 (Liu et al. 2002, "Tests for equivalence or non-inferiority for paired
    binary data"). For small n the interval's pseudo-observations count: if nothing ever changes, a
    margin of 5 % still needs 59 prompts.

    Raises:
        ValueError: a margin that is not positive or that the difference uses up (no n shows what is
            not so), or a probability is not one.
    """
    _require(0 < margin <= 1, f"margin = {margin:g} is not within 0 .. 1")
    _require(
        -margin < difference <= 1,
        f"no number of prompts shows that a difference of {difference:g} is above -{margin:g} and"
        " at most 1",
    )
    _require_probabilities(discordant, power)

    def shown(n: int) -> float:
        return _power(n, difference, discordant, lambda each: _losses_within(margin, n, each))

    return _least(lambda n: shown(n) >= power)


def _power(
    n: int, difference: float, discordant: float, allowed: Callable[[Counts], Counts]
) -> float:
    """The probability that of the prompts that change, at most `allowed` (of that number, -1: none
    is few enough) are lost."""
    from scipy.special import bdtr

    discordant = max(discordant, abs(difference))
    spread = 8 * math.sqrt(n * discordant * (1 - discordant)) + 8
    lowest = max(0, math.floor(n * discordant - spread))
    highest = min(n, math.ceil(n * discordant + spread))
    changed = np.linspace(lowest, highest, min(highest - lowest + 1, _STEPS)).astype(np.int64)
    fewer = bdtr(lowest - 1, n, discordant) if lowest else 0.0
    probability = np.diff(bdtr(changed, n, discordant), prepend=fewer)
    lost = (1 - difference / discordant) / 2 if discordant else 0.0
    most = np.minimum(allowed(changed), changed)
    return float(probability @ np.where(most < 0, 0.0, bdtr(np.maximum(most, 0), changed, lost)))


def mcnemar_power(n: int, effect: float, discordant: float) -> float:
    """Of McNemar's exact test (`tasks.statistics.intervals.mcnemar`): at most c losses, the largest
    with 2 P[Binomial(changed, 1/2) <= c] <= 5 %."""
    from scipy.special import bdtr

    def allowed(changed: Counts) -> Counts:
        return _largest(lambda losses: 2 * bdtr(losses, changed, 0.5) <= ALPHA, changed)

    return _power(n, effect, discordant, allowed)


def _losses_within(margin: float, n: int, changed: Counts) -> Counts:
    """With how many losses the lower end of `paired_bootstrap` is above -margin.

    What is resampled there is wins - losses of n + 2 prompts. Its 2.5 % quantile is taken from its
    cumulants k1, k2, k3 (Cornish and Fisher 1938), and half a step is for whole numbers.
    """
    of = n + 2

    def above(losses: Counts) -> Counts:
        rate, mean = (changed + 2) / of, (changed - 2 * losses) / of
        k2, k3 = of * (rate - mean**2), of * mean * (1 - 3 * rate + 2 * mean**2)
        k1 = of * mean
        quantile = k1 - Z * np.sqrt(k2) + (Z * Z - 1) / 6 * k3 / np.maximum(k2, 1e-9)
        return np.ceil(quantile - 0.5) > -margin * of

    return _largest(above, changed)


def _largest(holds: Callable[[Counts], Counts], highest: Counts) -> Counts:
    """The largest whole numbers from 0 to `highest` that hold, where smaller ones do too; -1 where
    none does."""
    low, high = np.full_like(highest, -1), highest
    while (low < high).any():
        middle = (low + high + 1) // 2
        good = holds(np.maximum(middle, 0)) | (middle < 0)
        low, high = np.where(good, middle, low), np.where(good, high, middle - 1)
    return low


def _least(enough: Callable[[int], bool]) -> int:
    """The least n that is enough, where more is too. Raises ValueError: not even a thousand million
    are."""
    high = 1
    while not enough(high):
        high *= 2
        _require(high < 2**30, "not even a thousand million prompts are enough")
    return bisect_left(range(high), True, lo=high // 2, key=enough)


def _require_probabilities(discordant: float, power: float) -> None:
    _require(0 <= discordant <= 1, f"discordant = {discordant:g} is no fraction of the prompts")
    _require(0 < power < 1, f"power = {power:g} is no probability between 0 and 1")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
