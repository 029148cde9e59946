"""Near duplicates by MinHash and locality-sensitive hashing (Broder 1997; Leskovec, Rajaraman and
Ullman, Mining of Massive Datasets, 3.4).

A row's signature is that of `datasketch.MinHash(num_perm, seed=1, scheme="affine32")` over the
upper halves of its shingles' hashes, bit for bit, and the bands are those that
`datasketch.MinHashLSH` finds best for the threshold. datasketch itself is 270 times slower on
GSM8K, and its index keeps every row in memory.

Rule: rows whose signatures agree in a band (and, if grounded, that have one context) share a
bucket. In each bucket, rows are taken in the order of `ranks`: a row whose estimated Jaccard
similarity to an earlier leader of that bucket is at least the threshold is dropped; otherwise it
becomes a leader there. A row stays if no bucket drops it. So buckets may be decided anywhere in any
order, the first row of every cluster stays, and the time for a bucket is rows x leaders. datatrove
and text-dedup unite all pairs above the threshold, so that a chain of pairs is one cluster; here a
row is dropped only for a leader that it is itself similar to.

Most time goes into signatures: 128 multiply-adds and minima for each shingle, eight or 16 at once
(AVX2, AVX-512), about 10 ns a shingle.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tasks.cleaning.rules import NearDuplicates
from tasks.cleaning.shingles import Ends, Words, hash_grams, mix

Signatures = NDArray[np.uint32]
"""Shape (rows, permutations)."""

_UPPER = np.uint64(32)
_EMPTY = np.uint32(0xFFFFFFFF)
_S1, _M1, _S2, _M2 = np.uint32(16), np.uint32(0x85EBCA6B), np.uint32(13), np.uint32(0xC2B2AE35)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Sketch:
    """How signatures are computed and compared. Small: it is sent to every process.

    Attributes:
        words: length of a shingle.
        multipliers, offsets: the permutations' a and b, shape (permutations,).
        bands, band_rows: how many buckets a row is in, and how many values of the signature must
            agree there.
        enough: signatures that agree in at least so many places are near duplicates.
    """

    words: int
    multipliers: NDArray[np.uint32]
    offsets: NDArray[np.uint32]
    bands: int
    band_rows: int
    enough: int

    @cached_property
    def permutations(self) -> int:
        return len(self.multipliers)

    def signatures(self, words: Words, ends: Ends) -> Signatures:
        """Signatures of texts, given their words. A text without words has the empty signature, all
        ones."""
        grams, gram_ends = hash_grams(words, ends, self.words)
        signatures: Signatures = minima(grams, gram_ends, self.multipliers, self.offsets)
        return signatures

    def keys(self, signatures: Signatures, contexts: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The bucket of each row in each band, shape (bands, rows). Rows of different `contexts`
        never share one."""
        keys: NDArray[np.uint64] = band_keys(signatures, self.bands, self.band_rows)
        return keys ^ contexts


def sketch(rules: NearDuplicates) -> Sketch:
    """datasketch's permutations of seed 1, and the bands that minimise its LSH's errors at this
    threshold."""
    from datasketch import MinHash, MinHashLSH

    threshold, permutations = rules.threshold, rules.permutations
    multipliers, offsets = MinHash(permutations, seed=1, scheme="affine32").permutations
    lsh = MinHashLSH(threshold, permutations)
    enough = next(count for count in range(permutations + 1) if count / permutations >= threshold)
    return Sketch(rules.words, np.asarray(multipliers), np.asarray(offsets), lsh.b, lsh.r, enough)


def ranks(ids: NDArray[np.uint64], content: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """The order of rows: solved ones (highest bit of `content`) first, among them by a hash of
    (seed, id), so that each is as likely to lead."""
    hashes: NDArray[np.uint64] = mix(ids ^ mix(np.uint64(seed % 2**64) ^ _GOLDEN))
    return hashes >> np.uint64(1) | content & np.uint64(2**63)


@njit(cache=True, nogil=True)
def minima(grams, ends, multipliers, offsets):  # type: ignore[no-untyped-def]
    """The minimum of each permutation over each row's shingles: a * fmix32(h) + b modulo 2^32."""
    size = multipliers.size
    out = np.full((ends.size, size), _EMPTY, np.uint32)
    low = 0
    for row in range(ends.size):
        least = out[row]
        for at in range(low, ends[row]):
            h = np.uint32(grams[at] >> _UPPER)
            h = np.uint32(np.uint32(h ^ (h >> _S1)) * _M1)
            h = np.uint32(np.uint32(h ^ (h >> _S2)) * _M2)
            h = np.uint32(h ^ (h >> _S1))
            for k in range(size):
                least[k] = min(least[k], np.uint32(np.uint32(multipliers[k] * h) + offsets[k]))
        low = ends[row]
    return out


@njit(cache=True, nogil=True)
def band_keys(signatures, bands, band_rows):  # type: ignore[no-untyped-def]
    """64 bits for each row in each band, shape (bands, rows): equal where the band's values are."""
    out = np.empty((bands, signatures.shape[0]), np.uint64)
    for row in range(signatures.shape[0]):
        for band in range(bands):
            key = np.uint64(band)
            for k in range(band * band_rows, (band + 1) * band_rows):
                key = mix(key ^ np.uint64(signatures[row, k])) + _GOLDEN
            out[band, row] = key
    return out


def buckets(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Buckets of more than one row: their rows, one bucket after the other, each in the given
    order; and where each bucket ends."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))[: keys.size])
    sizes = np.diff(np.append(starts, keys.size))
    shared = sizes > 1
    return order[np.repeat(shared, sizes)], np.cumsum(sizes[shared])


def fallen(
    keys: NDArray[np.uint64], signatures: Signatures, places: NDArray[np.int64], enough: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The duplicates among the rows of some buckets, their leaders, and in how many places their
    signatures agree. `keys`: the bucket of each row, in order of rank; else as `decide`."""
    members, ends = buckets(keys)
    leaders, agreed = decide(members, ends, signatures, places, enough)
    fell = leaders >= 0
    return members[fell], leaders[fell], agreed[fell].astype(np.int64)


@njit(cache=True, nogil=True)
def decide(members, ends, signatures, places, enough):  # type: ignore[no-untyped-def]
    """Decide buckets: for each member the leader that it duplicates (-1 if it leads) and in how
    many places their signatures agree.

    Args:
        members: rows, one bucket after the other, in each by rank; `ends`: where each bucket ends.
        signatures, places: the signature of row r is `signatures[places[r]]`.
        enough: see `Sketch`.
    """
    fallen = np.full(members.size, -1, np.int64)
    agreed = np.zeros(members.size, np.int32)
    leaders = np.empty(members.size, np.int64)
    size = signatures.shape[1]
    low = 0
    for bucket in range(ends.size):
        count = 0
        for at in range(low, ends[bucket]):
            mine = signatures[places[members[at]]]
            for leader in leaders[:count]:
                theirs = signatures[places[leader]]
                equal = 0
                for k in range(size):
                    equal += mine[k] == theirs[k]
                if equal >= enough:
                    fallen[at], agreed[at] = leader, equal
                    break
            else:
                leaders[count] = members[at]
                count += 1
        low = ends[bucket]
    return fallen, agreed
