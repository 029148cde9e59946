"""TF-IDF of words: document frequencies of a corpus, and cosines between texts, as scikit-learn's
TfidfVectorizer has them.

    idf(w) = ln((1 + n) / (1 + df(w))) + 1          n documents, df(w) of which have the word w
    weight of w in a text = tf idf(w), or with sublinear counts (1 + ln tf) idf(w)
    cosine(a, b) = sum_w a_w b_w / (|a| |b|), 0 when either text has no word of the corpus

A word is what scikit-learn's default pattern finds in the lower-case text: two or more word
characters of `re` in a row. Words that are in no document of the corpus weigh nothing. A word is
known by 64 bits: FNV-1a over its code points with the finalizer of MurmurHash3
(`tasks.data.shingles`), so that nothing but compiled code touches single words; given two different
words these agree with a probability of 2^-63. The compiled functions hold no interpreter lock:
other threads go on.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import islice

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tasks.data.shingles import FNV_PRIME, FNV_START, code_points, mix

_DOCUMENTS_AT_ONCE = 1000


class TermWeights:
    """Document frequencies of a corpus. Fitted once; after that only read, so that threads may
    share it."""

    def __init__(self, documents: Iterable[str]) -> None:
        """Count in how many documents each word is."""
        self.documents = 0
        # An open-addressing table: word (0: empty slot), documents that have it, the last of them.
        # Never more than half full.
        self._words = np.zeros(1024, np.uint64)
        self._frequencies, last = np.zeros((2, 1024), np.int64)
        rest = iter(documents)
        while block := list(islice(rest, _DOCUMENTS_AT_ONCE)):
            words, ends = _words_of(block)
            used = np.count_nonzero(self._words)
            if 2 * (used + words.size) > self._words.size:
                size = 1 << int(2 * (used + words.size)).bit_length()
                self._words, self._frequencies, last = _rehash(self._words, self._frequencies, size)
            _count(self._words, self._frequencies, last, words, ends, self.documents)
            self.documents += len(block)
        self._idf = np.log((1 + self.documents) / (1 + self._frequencies)) + 1

    def __len__(self) -> int:
        """How many words the corpus has."""
        return int(np.count_nonzero(self._words))

    def cosines(
        self,
        texts: Sequence[str],
        references: Sequence[str],
        which: Sequence[int],
        *,
        sublinear: bool,
        without: Sequence[str] | None = None,
    ) -> NDArray[np.float64]:
        """(N,) cosines of N texts and their references, in [0, 1].

        Args:
            which: for each text the index of its reference.
            sublinear: whether a word that is there tf times counts as 1 + ln tf.
            without: for each reference a text whose words weigh nothing, neither in the reference
                nor in the texts compared with it.
        """
        left, ends = self._slots(texts)
        right, right_ends = self._slots(references)
        out, out_ends = self._slots(without or [""] * len(references))
        of_text = np.asarray(which, np.int64)
        order = np.argsort(of_text, kind="stable")
        pairs = (left, ends, of_text, order, right, right_ends, out, out_ends)
        return np.asarray(_cosines(*pairs, self._idf, sublinear))

    def _slots(self, texts: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the words of the texts are in the table, one text after the other, and where each
        text ends."""
        slots, slot_ends = _slots(*_words_of(texts), self._words)
        return slots, slot_ends


def _words_of(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hashes of the words of the texts, one text after the other, and where each text ends."""
    lower = [text.lower() for text in texts]
    words, word_ends = _hash_words(*code_points(lower), _word_characters())
    return words, word_ends


@cache
def _word_characters() -> NDArray[np.bool_]:
    """Whether each code point is a word character of `re`, shape (0x110000,)."""
    table = np.zeros(0x110000, np.bool_)
    found = re.findall(r"\w", "".join(map(chr, range(0x110000))))
    table[[ord(character) for character in found]] = True
    return table


@njit(cache=True, nogil=True)
def _hash_words(codes, ends, is_word):  # type: ignore[no-untyped-def]
    """Hashes of the words of all texts, one after the other, and where each text ends. A hash is
    never 0."""
    words = np.empty(codes.size // 2 + ends.size, np.uint64)
    word_ends = np.empty(ends.size, np.int64)
    count, low = 0, 0
    for text in range(ends.size):
        state, length = FNV_START, 0
        for at in range(low, ends[text] + 1):
            if at < ends[text] and is_word[codes[at]]:
                state = (state ^ np.uint64(codes[at])) * FNV_PRIME
                length += 1
            elif length:
                if length > 1:
                    words[count] = mix(state) | np.uint64(1)
                    count += 1
                state, length = FNV_START, 0
        low = ends[text]
        word_ends[text] = count
    return words[:count], word_ends


@njit(cache=True, nogil=True)
def _find(table, word):  # type: ignore[no-untyped-def]
    """The slot of a word, or the empty slot where it belongs. The size of the table is a power of
    two."""
    last = table.size - 1
    slot = np.int64(word >> np.uint64(1)) & last
    while table[slot] != 0 and table[slot] != word:
        slot = (slot + 1) & last
    return slot


@njit(cache=True, nogil=True)
def _count(table, frequencies, last, words, ends, documents):  # type: ignore[no-untyped-def]
    """Count the documents of a block into the table; `last` holds the last document, from 1, that
    each word was counted for."""
    low = 0
    for document in range(ends.size):
        for at in range(low, ends[document]):
            slot = _find(table, words[at])
            table[slot] = words[at]
            if last[slot] != documents + document + 1:
                last[slot] = documents + document + 1
                frequencies[slot] += 1
        low = ends[document]


@njit(cache=True, nogil=True)
def _rehash(table, frequencies, size):  # type: ignore[no-untyped-def]
    """The table at another size; the new documents that are counted into it come after all that
    were."""
    new, counts = np.zeros(size, np.uint64), np.zeros(size, np.int64)
    for old in range(table.size):
        if table[old]:
            slot = _find(new, table[old])
            new[slot], counts[slot] = table[old], frequencies[old]
    return new, counts, np.zeros(size, np.int64)


@njit(cache=True, nogil=True)
def _slots(words, ends, table):  # type: ignore[no-untyped-def]
    """The slots of the words that the table has, one text after the other, and where each text
    ends."""
    slots, slot_ends = np.empty(words.size, np.int64), np.empty(ends.size, np.int64)
    count, low = 0, 0
    for text in range(ends.size):
        for at in range(low, ends[text]):
            slot = _find(table, words[at])
            if table[slot]:
                slots[count] = slot
                count += 1
        low, slot_ends[text] = ends[text], count
    return slots[:count], slot_ends


@njit(cache=True, nogil=True)
def _weight(count, idf, sublinear):  # type: ignore[no-untyped-def]
    return (1 + np.log(count) if sublinear else count) * idf


@njit(cache=True, nogil=True)
def _part(slots, ends, number):  # type: ignore[no-untyped-def]
    """The slots of one text."""
    return slots[(ends[number - 1] if number else 0) : ends[number]]


@njit(cache=True, nogil=True)
def _counted(slots, counts):  # type: ignore[no-untyped-def]
    """The distinct slots of a text in the order of their first use; `counts` has how often each is
    there."""
    distinct, number = np.empty(slots.size, np.int64), 0
    for slot in slots:
        if counts[slot] == 0:
            distinct[number] = slot
            number += 1
        counts[slot] += 1
    return distinct[:number]


@njit(cache=True, nogil=True)
def _cosines(slots, ends, which, order, ref_slots, ref_ends, out_slots, out_ends, idf, sublinear):  # type: ignore[no-untyped-def]
    """(N,) cosines. `order` takes the texts reference by reference; each reference is spread over
    the table once."""
    found, reference = np.zeros(ends.size), np.zeros(idf.size)
    left_out, counts = np.zeros(idf.size, np.bool_), np.zeros(idf.size, np.int64)
    current, norm = -1, 0.0
    words, left = ref_slots[:0], out_slots[:0]
    for text in order:
        if which[text] != current:
            reference[words] = 0
            left_out[left] = False
            current = which[text]
            words, left = _part(ref_slots, ref_ends, current), _part(out_slots, out_ends, current)
            left_out[left] = True
            norm = 0.0
            for slot in _counted(words, counts):
                if not left_out[slot]:
                    reference[slot] = _weight(counts[slot], idf[slot], sublinear)
                    norm += reference[slot] * reference[slot]
                counts[slot] = 0
        squares, product = 0.0, 0.0
        for slot in _counted(_part(slots, ends, text), counts):
            if not left_out[slot]:
                weight = _weight(counts[slot], idf[slot], sublinear)
                squares += weight * weight
                product += weight * reference[slot]
            counts[slot] = 0
        if squares > 0 and norm > 0:
            found[text] = min(1.0, product / np.sqrt(squares * norm))
    return found
