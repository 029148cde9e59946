"""Sequence packing: several short rows in one fixed-length row, kept apart by segment ids.

A packed row trains exactly as its parts would alone: attention is causal within a segment,
positions restart at each segment, and the loss mask travels with the tokens. Best-fit decreasing
(Johnson, 1974) leaves a few per cent of padding.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Packed:
    """Rows of a fixed length.

    Attributes:
        tokens: (N, L) int32.
        mask: (N, L) bool, True on supervised tokens.
        segments: (N, L) int32, 1, 2, ... within a row, 0 on padding.
        positions: (N, L) int32, counted from the start of each segment.
    """

    tokens: np.ndarray
    mask: np.ndarray
    segments: np.ndarray
    positions: np.ndarray

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def padding(self) -> float:
        """Fraction of tokens that are padding."""
        return float((self.segments == 0).mean()) if len(self) else 0.0


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of the rows that share each bin; no bin holds more than `capacity` tokens.

    Rows go, longest first, into the fullest bin that still has room. Bins keep the order in which
    they were opened.
    """
    bins: list[list[int]] = []
    room: list[tuple[int, int]] = []  # (free tokens, bin), sorted
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        slot = bisect.bisect_left(room, (lengths[index], -1))
        if slot == len(room):
            bins.append([])
            free, target = capacity, len(bins) - 1
        else:
            free, target = room.pop(slot)
        bins[target].append(index)
        bisect.insort(room, (free - lengths[index], target))
    return bins


def pack(rows: Sequence[tuple[list[int], list[int]]], length: int, pad_id: int) -> Packed:
    """Pack (prompt tokens, response tokens) rows into rows of `length` tokens; each must fit on its
    own."""
    bins = best_fit([len(prompt) + len(response) for prompt, response in rows], length)
    shape = (len(bins), length)
    packed = Packed(
        np.full(shape, pad_id, np.int32),
        np.zeros(shape, bool),
        np.zeros(shape, np.int32),
        np.zeros(shape, np.int32),
    )
    for row, members in enumerate(bins):
        start = 0
        for segment, member in enumerate(members, start=1):
            prompt, response = rows[member]
            middle, end = start + len(prompt), start + len(prompt) + len(response)
            packed.tokens[row, start:end] = prompt + response
            packed.mask[row, middle:end] = True
            packed.segments[row, start:end] = segment
            packed.positions[row, start:end] = np.arange(end - start)
            start = end
    return packed
