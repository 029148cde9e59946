"""Power of a paired comparison of two models: the effects that it can find, and the prompts that it
needs.

Both models answer the same n prompts. A fraction `discordant` of the prompts is right for one model
and wrong for the other, and the true difference of the rates is `difference`: a prompt is won with
probability (discordant + difference) / 2 and lost with (discordant - difference) / 2. A difference
larger than `discordant` changes as many prompts as it must: discordant counts as at least
|difference|.

Power is exact and unconditional (Schork and Williams 1980, "Number of observations required for the
comparison of two correlated proportions"): d of the n prompts change with the probability of
Binomial(n, discordant), each of them is a win or a loss, and a test passes when at most so many are
losses. As these are whole numbers, power grows with n in small teeth: the n returned here have the
requested power; a few more may lack a little of it, and a few fewer may have it too.

docs/measurements.md, 2026-11-21, compares the power reached in simulation with this.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from statistics import NormalDist

from tasks.statistics.intervals import ALPHA
from tasks.statistics.noninferiority import Counts, evidence, largest, passing

LEVEL = ALPHA / 2
"""The default level, one-sided; a gate has its own (`flows.promotion.levels`)."""
MANY = 3_000
_POWER = 0.8


def detectable_effect(n: int, discordant: float, *, level: float = LEVEL) -> float:
    """The smallest |difference| of two rates, a fraction, that a paired comparison of n prompts
    finds with a probability of 80 %.

    To find is to reject by McNemar's exact test at this level, one-sided. Fewer than six prompts
    find no effect at 2.5 %: infinity.

    Raises:
        ValueError: n is not positive, or `discordant` is no fraction.
    """
    _require(n >= 1, f"n = {n} is no number of prompts")
    _require_fraction(discordant)
    if mcnemar_power(n, 1.0, 1.0, level) < _POWER:
        return math.inf
    low, high = 0.0, 1.0
    while high - low > 1e-5:
        middle = (low + high) / 2
        found = mcnemar_power(n, middle, discordant, level) >= _POWER
        low, high = (low, middle) if found else (middle, high)
    return high


def needed_n(effect: float, discordant: float, *, level: float = LEVEL) -> int:
    """The prompts that a paired comparison needs to find a difference of |effect|; see
    `detectable_effect`.

    Raises:
        ValueError: effect is zero or beyond -1 .. 1, or so small that a thousand million prompts do
            not find it; or `discordant` is no fraction.
    """
    _require(
        0 < abs(effect) <= 1,
        f"no number of prompts finds a difference of {effect:g}; it must be within -1 .. 1, and"
        " not 0",
    )
    _require_fraction(discordant)
    return _least(lambda n: mcnemar_power(n, abs(effect), discordant, level) >= _POWER)


def needed_n_noninferiority(
    margin: float, discordant: float, difference: float = 0.0, *, level: float = LEVEL
) -> int:
    """The prompts that are needed to show, with a probability of 80 %, that a model which differs
    from another one by `difference` has not lost as much as `margin`, a fraction above 0.

    That is shown when the exact p-value (`tasks.statistics.noninferiority`) is at most the level.
    It is asked of the result that is reached, or exceeded, with the power: as many changes as are
    expected, and of the wins above the losses the normal distribution's quantile. Of more than
    MANY prompts the answer is the usual (z + z_power)^2 (discordant - difference^2) / (margin +
    difference)^2 (Liu et al. 2002, "Tests for equivalence or non-inferiority for paired binary
    data"). If nothing ever changes, a margin of 5 % still needs 72.

    Raises:
        ValueError: a margin that is not positive or that the difference uses up (no n shows what is
            not so), or `discordant` is no fraction.
    """
    _require(0 < margin <= 1, f"margin = {margin:g} is not within 0 .. 1")
    _require(
        -margin < difference <= 1,
        f"no number of prompts shows that a difference of {difference:g} is above -{margin:g} and"
        " at most 1",
    )
    _require_fraction(discordant)
    discordant = max(discordant, abs(difference))
    spread = math.sqrt(discordant - difference**2)
    z = NormalDist().inv_cdf(_POWER)
    least = ((NormalDist().inv_cdf(1 - level) + z) * spread / (margin + difference)) ** 2
    if least > MANY:
        return math.ceil(least)

    def shown(n: int) -> bool:
        changed = round(n * discordant)
        net = math.floor(n * difference - z * math.sqrt(n) * spread)
        wins = min(max((changed + net) // 2, 0), changed)
        return evidence(n, wins, changed - wins, margin) <= level

    return _least(shown)


def mcnemar_power(n: int, effect: float, discordant: float, level: float = LEVEL) -> float:
    """Bound the losses by McNemar's exact test (`tasks.statistics.intervals.mcnemar`): at most c,
    the largest with P[Binomial(changed, 1/2) <= c] <= level, one-sided."""
    from scipy.special import bdtr

    def allowed(changed: Counts) -> Counts:
        return largest(lambda losses: bdtr(losses, changed, 0.5) <= level, changed)

    return passing(n, effect, discordant, allowed)


def _least(enough: Callable[[int], bool]) -> int:
    """The least n that is enough, where more is too. Raises ValueError: not even a thousand million
    are."""
    high = 1
    while not enough(high):
        high *= 2
        _require(high < 2**30, "not even a thousand million prompts are enough")
    return bisect_left(range(high), True, lo=high // 2, key=enough)


def _require_fraction(discordant: float) -> None:
    _require(0 <= discordant <= 1, f"discordant = {discordant:g} is no fraction of the prompts")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)
