"""Words of texts and hashes of their n-grams, for near duplicates and contamination.

Normalisation: NFKC, lower case, then every character is one of

    word       letters, marks and digits: a run of them is a word
    alone      a word by itself: characters of scripts without spaces between words (Han, kana,
               Thai, Lao, Khmer, Myanmar), and mathematical symbols: 3 + 4 is not 3 < 4
    operator   - * / ^ between operands (digits, brackets, single letters): then a word by itself,
               otherwise punctuation
    vanishing  apostrophes, invisible format characters (zero-width space, soft hyphen), the comma
               in 80,000
    separator  everything else: white space, punctuation, other symbols

Operators distinguish exercises: without any punctuation, `6 - 2` and `6 / 2` would be the same
text.

A word is 64 bits: FNV-1a (Fowler, Noll, Vo) over its code points with the finalizer of MurmurHash3;
an n-gram is 64 bits over its words. Both are the same in every process and on every machine. Two
given different n-grams have the same hash with a probability of about 2^-64: among 10^9 n-grams of
rows and 10^7 of evaluation items, one pair in 2,000 such corpora. The hashes do not resist texts
made to collide.

A block of texts is one pass of compiled code over its code points: about 2 ns each.
"""

import unicodedata
from collections.abc import Sequence
from functools import cache

import numpy as np
from numba import njit
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""Hashes of words or n-grams, those of many texts one after the other."""
Ends = NDArray[np.int64]
"""The end of each text: text i is `[ends[i - 1], ends[i])`, the first begins at 0."""

SEPARATOR, WORD, ALONE, OPERATOR, VANISHING = range(5)

_NO_SPACES = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x2FDF), (0x3005, 0x3007),
    (0x3040, 0x30FF), (0x31F0, 0x31FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xA9E0, 0xA9FF),
    (0xAA60, 0xAA7F), (0xF900, 0xFAFF), (0x1B000, 0x1B16F), (0x20000, 0x3FFFF),
)  # fmt: skip
"""Blocks of Unicode whose letters stand alone: Thai and Lao, Myanmar, Khmer, CJK, kana."""

_SIGNS = str.maketrans("−‐‑‒–—×÷", "------*/")
FNV_START, FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_GRAM = np.uint64(0x9FB21C651E98DF25)
_MIX_1, _MIX_2 = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_MIX_SHIFT = np.uint64(33)
_COMMA, _SPACE, _OPEN, _CLOSE, _BACKSLASH, _ZERO, _NINE = map(ord, ", ()\\09")


def _class(code: int) -> int:
    character = chr(code)
    category = unicodedata.category(character)
    if category[0] in "LMN":
        return ALONE if any(low <= code <= high for low, high in _NO_SPACES) else WORD
    if category == "Cf" or character in "'’‘ʼ`´":
        return VANISHING
    if character in "-*/^":
        return OPERATOR
    return ALONE if category == "Sm" and character not in "|~" else SEPARATOR


@cache
def classes() -> NDArray[np.uint8]:
    """The class of each code point, shape (0x110000,)."""
    # Unassigned and private code points are most of the range: classified once.
    table = np.full(0x110000, SEPARATOR, np.uint8)
    for code in (*range(0x30000), *range(0xE0000, 0xE1000)):
        table[code] = _class(code)
    table[0x30000:0x33480] = ALONE
    return table


def normalise(text: str) -> str:
    """NFKC, lower case, and one character for each operator; ASCII needs only lower case."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", text).lower().translate(_SIGNS)


def code_points(texts: Sequence[str]) -> tuple[NDArray[np.uint32], Ends]:
    """The code points of the texts, one text after the other, and where each text ends."""
    codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    return codes, np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)))


def words_of(texts: Sequence[str]) -> tuple[Words, Ends]:
    """The hashes of the words of each text."""
    return hash_words(*code_points([normalise(text) for text in texts]), classes())


@njit(cache=True, nogil=True)
def mix(value):  # type: ignore[no-untyped-def]
    """The 64-bit finalizer of MurmurHash3: a bijection."""
    value = (value ^ (value >> _MIX_SHIFT)) * _MIX_1
    value = (value ^ (value >> _MIX_SHIFT)) * _MIX_2
    return value ^ (value >> _MIX_SHIFT)


@njit(cache=True, nogil=True)
def _is_operand(codes, low, high, at, step, table):  # type: ignore[no-untyped-def]
    """Whether the next non-space character, from `at` on in direction `step`, is a digit, a bracket
    or a single letter."""
    while low <= at < high and codes[at] == _SPACE:
        at += step
    if not low <= at < high:
        return False
    code = codes[at]
    if _ZERO <= code <= _NINE or code == (_OPEN if step > 0 else _CLOSE) or code == _BACKSLASH:
        return True
    beyond = at + step
    is_letter = table[code] == WORD
    return is_letter and not (
        low <= beyond < high
        and table[codes[beyond]] == WORD
        and not _ZERO <= codes[beyond] <= _NINE
    )


@njit(cache=True, nogil=True)
def _is_thousands(codes, low, high, at):  # type: ignore[no-untyped-def]
    """Whether the comma at `at` is between a digit and exactly three."""
    if at == low or at + 3 >= high or not _ZERO <= codes[at - 1] <= _NINE:
        return False
    for i in range(at + 1, at + 4):
        if not _ZERO <= codes[i] <= _NINE:
            return False
    return at + 4 == high or not _ZERO <= codes[at + 4] <= _NINE


@njit(cache=True, nogil=True)
def hash_words(codes, ends, table):  # type: ignore[no-untyped-def]
    """Words of normalised texts, given as code points one after the other."""
    words = np.empty(codes.size, np.uint64)
    word_ends = np.empty(ends.size, np.int64)
    count, low = 0, 0
    for text in range(ends.size):
        high = ends[text]
        state, length = FNV_START, 0
        for at in range(low, high):
            code = codes[at]
            kind = table[code]
            if kind == WORD:
                state = (state ^ np.uint64(code)) * FNV_PRIME
                length += 1
                continue
            if kind == VANISHING or (code == _COMMA and _is_thousands(codes, low, high, at)):
                continue
            if length:
                words[count] = mix(state)
                count += 1
                state, length = FNV_START, 0
            if (
                kind == OPERATOR
                and _is_operand(codes, low, high, at - 1, -1, table)
                and _is_operand(codes, low, high, at + 1, 1, table)
            ):
                kind = ALONE
            if kind == ALONE:
                words[count] = mix((FNV_START ^ np.uint64(code)) * FNV_PRIME)
                count += 1
        if length:
            words[count] = mix(state)
            count += 1
        word_ends[text] = count
        low = high
    return words[:count].copy(), word_ends


@njit(cache=True, nogil=True)
def hash_grams(words, ends, size):  # type: ignore[no-untyped-def]
    """Hashes of the n-grams of `size` words in order, and where each text's end. A text of fewer
    words is one n-gram; an empty one has none."""
    grams = np.empty(words.size, np.uint64)
    gram_ends = np.empty(ends.size, np.int64)
    count, low = 0, 0
    for text in range(ends.size):
        high = ends[text]
        length = min(size, high - low)
        for at in range(low, high - length + 1 if length else low):
            state = np.uint64(length)
            for i in range(at, at + length):
                state = (state ^ words[i]) * _GRAM
                state ^= state >> _MIX_SHIFT
            grams[count] = mix(state)
            count += 1
        gram_ends[text] = count
        low = high
    return grams[:count].copy(), gram_ends
