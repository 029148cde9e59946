"""How prompts share rows, so that reading them computes little padding: as SFT packs its examples
(`tasks.data.packing`)."""

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tasks.data.packing import LANES, best_fit

SHORTEST = 32
"""The least tokens of a row of prompts."""

SAVED = 1 / 8
"""The part of all tokens that narrower rows have to save, to be worth a program of their own."""


@dataclass(frozen=True)
class Read:
    """Prompts, by their indices, that are read at a time: those that share each row, of so many
    tokens."""

    rows: list[list[int]]
    width: int

    @property
    def prompts(self) -> list[int]:
        return [index for row in self.rows for index in row]


class PromptRows:
    """The rows in which prompts are read.

    Args:
        together: the most prompts to read at a time.
        rows: the rows that they share.
        longest: the most tokens of a prompt.

    Attributes:
        widths: the tokens that rows may have.
    """

    def __init__(self, together: int, rows: int, longest: int) -> None:
        self.together, self.rows = together, rows
        shared = rows < together
        self.widths = halves(math.ceil(longest / LANES) * LANES if shared else longest, SHORTEST)

    def reads(self, lengths: Sequence[int]) -> list[Read]:
        """How to read prompts of so many tokens with the least padding, the longest first."""
        longest = max(lengths, default=0)
        plans = [self._reads(lengths, width) for width in self.widths if width >= longest]
        return min(plans, key=lambda reads: (sum(read.width for read in reads), len(reads)))

    def _reads(self, lengths: Sequence[int], widest: int) -> list[Read]:
        """Reads in rows of at most so many tokens. Each fills its rows, with the longest prompts
        that still fit, until it has `together`."""
        waiting: dict[int, list[int]] = {}
        for index in reversed(range(len(lengths))):
            waiting.setdefault(lengths[index], []).append(index)
        left, found = sorted(waiting), list[Read]()
        while left:
            rows = list[list[int]]()
            for _ in range(self.rows):
                row, room = list[int](), widest
                while left and left[0] <= room and sum(map(len, rows)) + len(row) < self.together:
                    length = left[bisect.bisect_right(left, room) - 1]
                    row.append(waiting[length].pop())
                    room -= length
                    if not waiting[length]:
                        left.remove(length)
                rows.append(row)
            found.append(self._narrowest(Read([*filter(None, rows)], widest), lengths))
        widths = list[int]()
        for width in self.widths:
            some = [read for read in found if widths[-1:] < [read.width] <= [width]]
            if width == widest or (widest - width) * len(some) > SAVED * widest * len(found):
                widths.append(width)
        return [Read(read.rows, fit(widths, read.width)) for read in found]

    def _narrowest(self, read: Read, lengths: Sequence[int]) -> Read:
        """The same prompts in rows as narrow as hold them."""
        chosen = read.prompts
        for width in self.widths:
            if max(lengths[index] for index in chosen) <= width < read.width:
                rows = best_fit([lengths[index] for index in chosen], width)
                if len(rows) <= self.rows:
                    return Read([[chosen[place] for place in row] for row in rows], width)
        return read


def fit(widths: Sequence[int], needed: int) -> int:
    return next(width for width in widths if width >= needed)


def halves(longest: int, least: int) -> list[int]:
    """A width, its half and so on, of which none but the first is below `least`."""
    widths = [longest]
    while least <= _rounded(widths[0] / 2) < widths[0]:
        widths.insert(0, _rounded(widths[0] / 2))
    return widths


def _rounded(width: float) -> int:
    """Up to a multiple of 8."""
    return math.ceil(width / 8) * 8
