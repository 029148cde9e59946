"""Sequence packing: several short rows in one fixed-length row, separated by segment ids.

A packed row trains exactly as its parts would alone: attention is causal within a segment,
positions restart at each segment, and the loss mask is packed with the tokens. Best-fit decreasing
(Johnson, 1974) leaves a few per cent of padding.
"""

import bisect
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Text = tuple[list[int], list[int]]
"""The tokens of a prompt and of its response."""

LANES = 128
"""Attention's kernels need rows of a multiple of so many tokens (`tasks.models.attention`)."""


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
    """Indices of the rows that share each bin; no bin has more than `capacity` tokens.

    Rows go, longest first, into the fullest bin that still has room. Bins stay in the order in
    which they were opened.
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


def pack(
    rows: Sequence[Text], length: int, pad_id: int, bins: Sequence[Sequence[int]] | None = None
) -> Packed:
    """Pack (prompt tokens, response tokens) rows into rows of `length` tokens; each must fit on its
    own. `bins`: which rows share each of them; None: `best_fit`."""
    if bins is None:
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


class Shape(NamedTuple):
    """Packed rows: how many, and how many tokens each has."""

    rows: int
    length: int


class PackedResponses(NamedTuple):
    """S prompts with a response each, in N rows of L tokens.

    Attributes:
        tokens, positions, segments: (N, L) int32, what the model takes; a segment is a prompt with
            its response.
        predicts: (N, L) bool, True where the next token is one of a response.
        places: (S, R) int32, for each token of a response the index, in the flattened rows, of the
            token before it, which predicts it; N x L past the response's end.
    """

    tokens: np.ndarray
    positions: np.ndarray
    segments: np.ndarray
    predicts: np.ndarray
    places: np.ndarray


def pack_responses(
    texts: Sequence[Text], shape: Shape, response_length: int, pad_id: int, *, blocks: bool = False
) -> PackedResponses:
    """Pack non-empty prompts with their responses, of at most `response_length` tokens, into rows
    of one shape; with `blocks` into as many blocks of that shape as needed. Raises ValueError where
    they do not fit."""
    bins = best_fit([len(prompt) + len(response) for prompt, response in texts], shape.length)
    rows = -(-len(bins) // shape.rows) * shape.rows if blocks else shape.rows
    if len(bins) > rows:
        raise ValueError(f"{len(texts)} texts fill {len(bins)} rows of {shape}")
    packed = pack(texts, shape.length, pad_id, [*bins, *[[]] * (rows - len(bins))])
    predicts = np.roll(packed.mask, -1, axis=1)  # no row begins with a response
    found, begin = np.flatnonzero(predicts), 0
    places = np.full((len(texts), response_length), packed.tokens.size, np.int32)
    for member in (member for members in bins for member in members):
        length = len(texts[member][1])
        places[member, :length] = found[begin : begin + length]
        begin += length
    return PackedResponses(packed.tokens, packed.positions, packed.segments, predicts, places)


def lengths_for(needed: int, longest: int) -> list[int]:
    """The row lengths that hold so many tokens, shortest first: eighths of the longest, rounded up
    to a multiple of 8, or of `LANES` where the longest is one."""
    unit = LANES if longest % LANES == 0 else 8
    eighths = {min(longest, -(-longest * part // (8 * unit)) * unit) for part in range(1, 9)}
    return sorted(eighth for eighth in eighths if eighth >= needed)


def fit(lengths: Sequence[int], shape: Shape) -> bool:
    """Whether texts of these lengths, none longer than a row, fit rows of this shape."""
    return len(lengths) <= shape.rows or (
        sum(lengths) <= shape.rows * shape.length
        and len(best_fit(lengths, shape.length)) <= shape.rows
    )


def first_fit(groups: Sequence[Sequence[int]], shape: Shape) -> list[list[int]]:
    """Indices of the groups of texts that share each block of this shape. Groups go, longest first,
    into the first block that has room for all their texts; each must fit a block of its own.

    Args:
        groups: the lengths of the texts of each.
    """
    if fit([length for group in groups for length in group], shape):
        return [list(range(len(groups)))]
    blocks: list[list[int]] = []
    for index in sorted(range(len(groups)), key=lambda i: (-sum(groups[i]), i)):
        for block in blocks:
            if fit([length for member in [*block, index] for length in groups[member]], shape):
                block.append(index)
                break
        else:
            blocks.append([index])
    return blocks


def tightest(
    batches: Sequence[Sequence[Sequence[int]]],
    longest: int,
    multiple: int,
    work: float,
    *,
    blocks: int = 1,
    rows: int,
) -> Shape:
    """The cheapest shape of a block for all batches, which are cut into blocks by `first_fit`.

    Args:
        batches: for each its groups, for each group the lengths of its texts.
        longest: the most tokens of a row; see `lengths_for`.
        multiple: the number of rows is a multiple of this.
        work: a token's cost without attention, in units of attention to one token: a row costs its
            length times (work + length).
        blocks: the most blocks of a batch.
        rows: the most rows of a block, enough for any batch.
    """
    heaviest = sorted(batches, key=lambda groups: -sum(map(sum, groups)))
    each = {tuple(group) for groups in batches for group in groups}

    @functools.cache
    def needed(shape: Shape) -> float:
        """Blocks of all batches; infinity where a batch has too many."""
        if not all(fit(group, shape) for group in each):
            return math.inf
        total = 0
        for groups in heaviest:
            count = len(first_fit(groups, shape))
            if count > blocks:
                return math.inf
            total += count
        return total

    most = -(-rows // multiple) * multiple
    found = []
    for length in lengths_for(max(map(max, each)), longest):
        fewest = -(-sum(map(sum, heaviest[0])) // (blocks * length * multiple)) * multiple
        shapes = [Shape(count, length) for count in range(fewest, most + 1, multiple)]
        # few rows leave little padding, many pack best
        first = next((shape for shape in shapes if needed(shape) < math.inf), shapes[-1])
        found += [first, shapes[-1]]
    return min(
        found, key=lambda shape: needed(shape) * shape.rows * shape.length * (work + shape.length)
    )
