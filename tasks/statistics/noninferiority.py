"""Evidence in a paired comparison that a model has not lost a margin, or that it has gained: an
exact p-value that holds at levels of one in a million, too, where no bootstrap reaches.

Both models answered the same n prompts; of those that changed, `wins` are right now and `losses`
are wrong now. The hypothesis is that the truth is a difference of -margin, or less:

    margin = 0: McNemar's exact test, one-sided: P[Binomial(wins + losses, 1/2) <= losses]
    margin > 0: the unconditional exact test of Hsueh, Liu and Chen 2001, "Unconditional exact tests
        for equivalence or noninferiority for paired binary endpoints": p is the largest
        probability, over all fractions of prompts that may change, of a result that speaks as much
        against the hypothesis as the one that was found, or more

Results are ordered by the signed root of the likelihood ratio, as in Lloyd and Moldovan 2008, "A
more powerful exact test of noninferiority from binary matched-pairs data", instead of by Tango's
score, as in the former: when few prompts change, chance would reach the score of a result if all of
them changed, and p would be a hundred times as large. The fractions tried lie about a standard
deviation of the number of changes apart, which finds the largest p to within 1 % of it.
"""

import math
from collections.abc import Callable

import numpy as np

Counts = np.ndarray
"""Shape (m,): numbers of prompts."""
_STEPS = 2001
"""Sums over more numbers of changes than this go in steps of at most a hundredth of a standard
deviation."""


def evidence(n: int, wins: int, losses: int, margin: float = 0.0) -> float:
    """The one-sided p-value of such a result if the truth is a loss of `margin`, or more.

    Raises:
        ValueError: margin is not within 0 .. 1, or more prompts change than there are.
    """
    from scipy.special import bdtr

    if not 0 <= margin < 1 or min(wins, losses) < 0 or wins + losses > n:
        raise ValueError(f"{wins} wins and {losses} losses of {n} prompts, margin {margin:g}")
    if margin == 0:
        return float(bdtr(losses, wins + losses, 0.5)) if wins + losses else 1.0
    found = float(root(n, np.array([wins]), np.array([losses]), margin)[0]) - 1e-9
    changed = np.arange(n + 1)
    most = largest(lambda lost: root(n, changed - lost, lost, margin) >= found, changed)
    angles = np.linspace(math.asin(math.sqrt(margin)), math.pi / 2, 8 + math.ceil(3 * math.sqrt(n)))
    return min(
        1.0, max(passing(n, -margin, rate, most.__getitem__) for rate in np.sin(angles) ** 2)
    )


def root(n: int, wins: Counts, losses: Counts, margin: float) -> Counts:
    """The signed root of the likelihood ratio, of counts of one shape, against a loss of `margin`,
    above 0: positive where less was lost."""
    from scipy.special import rel_entr

    net = wins - losses
    linear = -(wins + losses) - (2 * n - net) * margin
    under = np.maximum(linear**2 - 8 * n * losses * margin * (1 + margin), 0.0)
    lost = (np.sqrt(under) - linear) / (4 * n)  # the likeliest rates, if they differ by -margin
    won = np.maximum(lost - margin, 0.0)
    parts = ((wins, won), (losses, lost), (n - wins - losses, 1 - won - lost))
    ratio = sum(rel_entr(count, n * np.maximum(rate, 1e-300)) for count, rate in parts)
    roots: Counts = np.sign(net + n * margin) * np.sqrt(2 * np.maximum(ratio, 0.0))
    return roots


def passing(
    n: int, difference: float, discordant: float, allowed: Callable[[Counts], Counts]
) -> float:
    """The probability that of the prompts that change, at most `allowed` (of that number, -1: none
    is few enough) are lost, where each of n changes with probability `discordant`."""
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


def largest(holds: Callable[[Counts], Counts], highest: Counts) -> Counts:
    """The largest whole numbers from 0 to `highest` for which the condition holds, if it holds for
    all smaller ones; -1 if it holds for none."""
    low, high = np.full_like(highest, -1), highest
    while (low < high).any():
        middle = (low + high + 1) // 2
        good = holds(np.maximum(middle, 0)) | (middle < 0)
        low, high = np.where(good, middle, low), np.where(good, high, middle - 1)
    return low
