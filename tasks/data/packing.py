"""Sequence packing: several short rows in one fixed-length row, separated by segment ids.

A packed row trains exactly as its parts would alone: attention is causal within a segment,
positions restart at each segment, and the loss mask is packed with the tokens. Best-fit decreasing
(Johnson, 1974) leaves a few per cent of padding.

Responses to one prompt may share it: a row has the prompt once, and behind it as many of them as
fit, each in a segment that sees its own tokens and the prompt's.
"""

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Text = tuple[list[int], list[int]]
"""The tokens of a prompt and of its response."""

BRANCHES = 1 << 16
"""More than the texts of a row that go on from one prefix (`PackedResponses.segments`)."""

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


def pack(rows: Sequence[Text], length: int, pad_id: int) -> Packed:
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
    arrays = packed.tokens, packed.segments, packed.positions
    for row, members in enumerate(bins):
        start = 0
        for segment, member in enumerate(members, start=1):
            prompt, response = rows[member]
            first = start + len(prompt)
            start = _put(*arrays, row, start, prompt + response, segment)
            packed.mask[row, first:start] = True
    return packed


def _put(
    tokens: np.ndarray,
    segments: np.ndarray,
    positions: np.ndarray,
    row: int,
    start: int,
    text: list[int],
    segment: int,
    position: int = 0,
) -> int:
    """Write a text into a row, from `start` on; returns its end."""
    end = start + len(text)
    tokens[row, start:end], segments[row, start:end] = text, segment
    positions[row, start:end] = np.arange(position, position + len(text))
    return end


class Group(NamedTuple):
    """Texts that go on from the same tokens, `prefix`, which may be none."""

    prefix: list[int]
    texts: list[Text]

    @property
    def lengths(self) -> "Lengths":
        return len(self.prefix), tuple(len(prompt) + len(said) for prompt, said in self.texts)


Lengths = tuple[int, tuple[int, ...]]
"""The tokens of a group's prefix, and of each of its texts behind it."""


def in_groups(texts: Sequence[Text], *, shared: bool) -> list[Group]:
    """Texts in groups: `shared`, neighbours of one prompt share all of it but its last token, which
    predicts the first of each response."""
    if not shared:
        return [Group([], [text]) for text in texts]
    found = []
    for prompt, same in itertools.groupby(texts, key=operator.itemgetter(0)):
        said = [response for _, response in same]
        alone = len(said) == 1
        prefix, last = ([], prompt) if alone else (prompt[:-1], prompt[-1:])
        found.append(Group(prefix, [(last, response) for response in said]))
    return found


class Shape(NamedTuple):
    """Packed rows: how many, and how many tokens each has."""

    rows: int
    length: int


class PackedResponses(NamedTuple):
    """S responses, each behind its prompt, in N rows of L tokens.

    Attributes:
        tokens, positions, segments: (N, L) int32, what the model takes. A prefix has a multiple of
            BRANCHES as its segment, and what goes on from it the numbers after that.
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
    groups: Sequence[Group],
    shape: Shape,
    response_length: int,
    pad_id: int,
    *,
    blocks: bool = False,
) -> PackedResponses:
    """Pack non-empty prompts with their responses, of at most `response_length` tokens, into rows
    of one shape; with `blocks` into as many blocks of that shape as needed. Raises ValueError where
    they do not fit."""
    texts = [(group.prefix, *text) for group in groups for text in group.texts]
    parts = units([group.lengths for group in groups], shape.length)
    bins = best_fit([tokens for tokens, _ in parts], shape.length)
    rows = -(-len(bins) // shape.rows) * shape.rows if blocks else shape.rows
    if len(bins) > rows:
        raise ValueError(f"{len(texts)} texts fill {len(bins)} rows of {shape}")
    tokens = np.full((rows, shape.length), pad_id, np.int32)
    segments, positions = np.zeros_like(tokens), np.zeros_like(tokens)
    places = np.full((len(texts), response_length), tokens.size, np.int32)
    arrays = tokens, segments, positions
    for row, members in enumerate(bins):
        start = 0
        for number, member in enumerate(members, start=1):
            indices, segment = parts[member][1], number * BRANCHES
            prefix = texts[indices[0]][0]
            start = _put(*arrays, row, start, prefix, segment)
            for branch, index in enumerate(indices, start=1):
                _, prompt, response = texts[index]
                before = np.arange(len(response)) + start + len(prompt) - 1
                places[index, : len(response)] = row * shape.length + before
                text, own = prompt + response, segment + branch
                start = _put(*arrays, row, start, text, own, len(prefix))
    predicts = np.zeros(tokens.size + 1, bool)  # the last is past the ends
    predicts[places] = True
    return PackedResponses(tokens, positions, segments, predicts[:-1].reshape(tokens.shape), places)


def units(groups: Sequence[Lengths], length: int) -> list[tuple[int, list[int]]]:
    """What stays together in a row of this length: a text without a prefix, or a prefix with as
    many texts as fit behind it. Each as its tokens, and the indices of its texts among those of all
    groups."""
    found, first = [], 0
    for prefix, texts in groups:
        bins = best_fit(texts, length - prefix) if prefix else [[one] for one in range(len(texts))]
        for members in bins:
            tokens = prefix + sum(texts[member] for member in members)
            found.append((tokens, [first + member for member in members]))
        first += len(texts)
    return found


def lengths_for(needed: int, longest: int) -> list[int]:
    """The row lengths that hold so many tokens, shortest first: eighths of the longest, rounded up
    to a multiple of 8, or of `LANES` where the longest is one."""
    unit = LANES if longest % LANES == 0 else 8
    eighths = {min(longest, -(-longest * part // (8 * unit)) * unit) for part in range(1, 9)}
    return sorted(eighth for eighth in eighths if eighth >= needed)


def fit(groups: Sequence[Lengths], shape: Shape) -> bool:
    """Whether groups, each of whose texts fits a row with its prefix, fit rows of this shape."""
    lengths = [tokens for tokens, _ in units(groups, shape.length)]
    return len(lengths) <= shape.rows or (
        sum(lengths) <= shape.rows * shape.length
        and len(best_fit(lengths, shape.length)) <= shape.rows
    )


def first_fit(groups: Sequence[Lengths], shape: Shape) -> list[list[int]]:
    """Indices of the groups that share each block of this shape. Groups go, longest first, into the
    first block that has room for all their texts; each must fit a block of its own."""
    if fit(groups, shape):
        return [list(range(len(groups)))]
    blocks: list[list[int]] = []
    for index in sorted(range(len(groups)), key=lambda i: (-_tokens(groups[i]), i)):
        for block in blocks:
            if fit([groups[member] for member in [*block, index]], shape):
                block.append(index)
                break
        else:
            blocks.append([index])
    return blocks


def longest_text(groups: Iterable[Lengths]) -> int:
    """The most tokens of a text with its prefix, which a row has to hold."""
    return max(prefix + max(texts) for prefix, texts in groups)


def _tokens(group: Lengths) -> int:
    prefix, texts = group
    return prefix + sum(texts)


def tightest(
    batches: Sequence[Sequence[Lengths]],
    longest: int,
    multiple: int,
    work: float,
    *,
    blocks: int = 1,
    rows: int,
) -> Shape:
    """The cheapest shape of a block for all batches of groups, which are cut into blocks by
    `first_fit`.

    Args:
        longest: the most tokens of a row; see `lengths_for`.
        multiple: the number of rows is a multiple of this.
        work: a token's cost without attention, in units of attention to one token: a row costs its
            length times (work + length).
        blocks: the most blocks of a batch.
        rows: the most rows of a block, enough for any batch.
    """
    heaviest = sorted(batches, key=lambda groups: -sum(map(_tokens, groups)))
    each = {group for groups in batches for group in groups}

    @functools.cache
    def needed(shape: Shape) -> float:
        """Blocks of all batches; infinity where a batch has too many."""
        if not all(fit([group], shape) for group in each):
            return math.inf
        total = 0
        for groups in heaviest:
            count = len(first_fit(groups, shape))
            if count > blocks:
                return math.inf
            total += count
        return total

    most = -(-rows // multiple) * multiple
    found, tokens = [], sum(map(_tokens, heaviest[0]))
    for length in lengths_for(longest_text(each), longest):
        fewest = -(-tokens // (blocks * length * multiple)) * multiple
        shapes = [Shape(count, length) for count in range(fewest, most + 1, multiple)]
        # few rows leave little padding, many pack best
        first = next((shape for shape in shapes if needed(shape) < math.inf), shapes[-1])
        found += [first, shapes[-1]]
    return min(
        found, key=lambda shape: needed(shape) * shape.rows * shape.length * (work + shape.length)
    )
