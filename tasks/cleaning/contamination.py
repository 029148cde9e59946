"""Contamination: texts that give evaluation items away, by exact match and by word n-grams.

A text, normalised as in `tasks.cleaning.shingles`, is contaminated by an item if

    exact      both have the same words, however few or many (those of a grounded prompt's context
               included);
    coverage   at least half (`coverage`) of the distinct 8-grams (`words`) of one of the two,
               whichever has fewer, are in both: the item is embedded in a longer text, or the text
               is a piece of the item, or either with words replaced;
    run        13 (`long_words`) successive words of the text are in the item: all 8-grams of the
               run are the item's, at whatever places. Every common 13-gram without a template in it
               is such a run.

Texts of fewer than 8 words have no 8-gram: exact only. An n-gram of more than 10 items belongs to a
template, such as "answer with a single number", and does not count, as GPT-3's filter left out
13-grams that collided more than 10 times (Brown et al. 2020, appendix C). Of several items the one
with the highest coverage is named, exact matches first.

An index is a sorted array of the items' n-grams, found by the upper bits of a hash, with the items
of each: about 20 bytes for each distinct n-gram. N-grams are compared by 64-bit hashes, not word by
word; `tasks.cleaning.shingles` has the odds.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tasks.cleaning.rules import Contamination
from tasks.cleaning.shingles import Ends, Words, hash_grams, mix

TEMPLATE_ITEMS = 10
"""N-grams in more items than this are a template's."""

_STEP = np.uint64(0x9E3779B97F4A7C15)

EXACT, COVERAGE, RUN = 1, 2, 3
"""How a text matches; 0 is not at all."""


@dataclass(frozen=True)
class Index:
    """The n-grams of evaluation items.

    Attributes:
        rules: the thresholds.
        grams: distinct n-grams, sorted; those with the same upper bits as g begin at `slots[g >>
            shift]`.
        items, item_ends: the items of each n-gram, sorted, one n-gram after the other.
        sizes: how many distinct n-grams each item has, without templates'.
        texts, text_items: distinct hashes of whole texts, sorted, and the first item of each.
    """

    rules: Contamination
    grams: Words
    slots: NDArray[np.uint32]
    shift: np.uint64
    items: NDArray[np.int32]
    item_ends: NDArray[np.int64]
    sizes: NDArray[np.int32]
    texts: Words
    text_items: NDArray[np.int32]

    def scan(
        self, words: Words, ends: Ends
    ) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.float32]]:
        """How each text matches, which item (-1 for none), and the coverage."""
        same, size = self.same(words, ends), self.rules.words
        hits, items, scores = scan_grams(
            *(words, ends, size, self.rules.long_words - size + 1, self.rules.coverage),
            *(self.grams, self.slots, self.shift, self.items, self.item_ends, self.sizes),
        )
        exact = same >= 0
        hits[exact], items[exact], scores[exact] = EXACT, same[exact], 1.0
        return hits, items, scores

    def same(self, words: Words, ends: Ends) -> NDArray[np.int32]:
        """The first item that has the same words as each text; -1: none has."""
        if not len(self.texts):
            return np.full(len(ends), -1, np.int32)
        wholes = whole_texts(words, ends)
        found = np.minimum(np.searchsorted(self.texts, wholes), len(self.texts) - 1)
        exact = (self.texts[found] == wholes) & (np.diff(ends, prepend=0) > 0)
        return np.where(exact, self.text_items[found], np.int32(-1))


def index(words: Words, ends: Ends, rules: Contamination) -> Index:
    """The index of items, given their words. Their numbers are their positions, so give them in a
    defined order. Of items with the same words only the first counts: a question that a set has a
    dozen times is no template."""
    counts, size = np.diff(ends, prepend=0), rules.words
    owners = np.arange(len(ends), dtype=np.int32)
    texts, text_items = np.unique(whole_texts(words, ends), return_index=True)
    # short items are compared as wholes only, not as one short n-gram
    long = (counts >= size) & np.isin(owners, text_items)
    long_ends = np.cumsum(np.where(long, counts, 0))
    grams, gram_ends = hash_grams(words[np.repeat(long, counts)], long_ends, size)
    owner = np.repeat(owners, np.diff(gram_ends, prepend=0))
    order = np.lexsort((owner, grams))
    grams, owner = grams[order], owner[order]
    other = (grams[1:] != grams[:-1]) | (owner[1:] != owner[:-1])
    first = np.concatenate(([True], other))[: len(grams)]
    grams, owner = grams[first], owner[first]
    distinct, times = np.unique(grams, return_counts=True)
    telling = times <= TEMPLATE_ITEMS
    owner = owner[np.repeat(telling, times)]
    distinct, times = distinct[telling], times[telling]
    bits = max(1, len(distinct).bit_length())
    shift = np.uint64(64 - bits)
    slots = np.searchsorted(distinct >> shift, np.arange(2**bits + 1, dtype=np.uint64))
    sizes = np.bincount(owner, minlength=len(ends)).astype(np.int32)
    return Index(
        *(rules, distinct, slots.astype(np.uint32), shift, owner, np.cumsum(times), sizes),
        *(texts, text_items.astype(np.int32)),
    )


@njit(cache=True, nogil=True)
def whole_texts(words, ends):  # type: ignore[no-untyped-def]
    """A hash of all words of each text."""
    out = np.empty(ends.size, np.uint64)
    low = 0
    for text in range(ends.size):
        state = np.uint64(ends[text] - low)
        for at in range(low, ends[text]):
            state = mix(state ^ words[at]) + _STEP
        out[text] = state
        low = ends[text]
    return out


@njit(cache=True, nogil=True)
def _place(gram, grams, slots, shift):  # type: ignore[no-untyped-def]
    """The index of an n-gram in `grams`, -1 if it is not there."""
    slot = gram >> shift
    for at in range(slots[slot], slots[slot + np.uint64(1)]):
        if grams[at] == gram:
            return at
    return -1


@njit(cache=True, nogil=True)
def _has(items, low, high, item):  # type: ignore[no-untyped-def]
    found = False
    for at in range(low, high):
        found |= items[at] == item
    return found


@njit(cache=True, nogil=True)
def scan_grams(words, ends, size, run, coverage, grams, slots, shift, items, item_ends, sizes):  # type: ignore[no-untyped-def]
    """`Index.scan` without whole texts; `run`: successive n-grams of a long run."""
    hits, found, scores = (
        np.zeros(ends.size, np.uint8),
        np.full(ends.size, -1, np.int32),
        np.zeros(ends.size, np.float32),
    )
    mine, mine_ends = hash_grams(words, ends, size)
    places = np.empty(mine.size, np.int64)
    low, start = 0, 0
    for text in range(ends.size):
        count, high, some = ends[text] - start, mine_ends[text], False
        if count >= size and grams.size:
            for at in range(low, high):
                places[at] = _place(mine[at], grams, slots, shift)
                some |= places[at] >= 0
        if some:
            hits[text], found[text], scores[text] = _judge(
                mine[low:high], places[low:high], run, coverage, items, item_ends, sizes
            )
        low, start = high, ends[text]
    return hits, found, scores


@njit(cache=True, nogil=True)
def _sort(values):  # type: ignore[no-untyped-def]
    """Sort in place; returns how many are distinct. Shell's sort: numba takes nine seconds to
    compile np.sort and np.unique."""
    gap = values.size // 2
    while gap:
        for i in range(gap, values.size):
            value, at = values[i], i
            while at >= gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap = 1 if gap == 2 else gap * 5 // 11
    distinct = 0
    for i in range(values.size):
        distinct += i == 0 or values[i] != values[i - 1]
    return distinct


@njit(cache=True, nogil=True)
def _judge(here, places, run, coverage, items, item_ends, sizes):  # type: ignore[no-untyped-def]
    """One text that shares n-grams with an item: how it matches, the item, its coverage."""
    total = _sort(here.copy())
    shared = places.copy()
    _sort(shared)
    owners = np.empty(shared.size * TEMPLATE_ITEMS, np.int32)
    count, last = 0, -1
    for place in shared:
        if place > last:
            last = place
            for at in range(item_ends[place - 1] if place else 0, item_ends[place]):
                owners[count] = items[at]
                count += 1
    owners = owners[:count]
    _sort(owners)
    hit, best, score = 0, -1, 0.0
    at = 0
    while at < count:
        item, beyond = owners[at], at
        while beyond < count and owners[beyond] == item:
            beyond += 1
        covered = (beyond - at) / min(total, sizes[item])
        kind = COVERAGE if covered >= coverage else 0
        if kind == 0 and beyond - at >= run:
            length = 0
            for place in places:
                inside = place >= 0 and _has(
                    items, item_ends[place - 1] if place else 0, item_ends[place], item
                )
                length = length + 1 if inside else 0
                if length >= run:
                    kind = RUN
                    break
        if kind and covered > score:
            hit, best, score = kind, item, covered
        at = beyond
    return hit, best, score
