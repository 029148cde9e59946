"""Words, signatures and buckets: what near duplicates are found by."""

import random
import time
from functools import partial

import numpy as np
import pytest

from tasks.cleaning.near_duplicates import buckets, decide, ranks, sketch
from tasks.cleaning.rules import NearDuplicates
from tasks.cleaning.shingles import hash_grams, words_of
from tests.tasks.cleaning.cleaning_rows import text


def same_words(one: str, other: str) -> bool:
    return words_of([one])[0].tolist() == words_of([other])[0].tolist()


SAME = (
    ("Janet’s ducks lay 16 eggs.", "JANETS  DUCKS\nlay (16) eggs"), ("7 × 2", "7*2"),
    ("It cost $80,000 in May", "it cost 80000 in may"), ("cafe\u0301", "café"), ("7 − 2", "7-2"),
    ("two-thirds of it", "two thirds, of it!"), ("ｆｕｌｌ ｗｉｄｔｈ", "full width"),
    ("soft\u00adhyphen and zero\u200bwidth", "softhyphen and zerowidth"),
)  # fmt: skip
OTHER = (("7 - 2", "7 / 2"), ("x^2", "x*2"), ("3 + 4", "3 < 4"), ("a b", "ab"), ("12 3", "1 23"))


def test_case_punctuation_and_unicode_forms_change_no_word_and_operators_and_spaces_do():
    assert [same_words(*both) for both in (*SAME, *OTHER)] == [True] * 8 + [False] * 5


def test_scripts_without_spaces_are_words_by_character():
    words, ends = words_of(["你好世界", "ไทย", "안녕 세계", "ab你c"])
    assert np.diff(ends, prepend=0).tolist() == [4, 3, 2, 3]
    assert words[0] == words[-2]
    assert len(set(words.tolist())) == len(words) - 1


def test_texts_of_a_block_do_not_run_into_each_other():
    texts = ["", "one two three four", "...", "three", "你", "two\n"]
    words, ends = words_of(texts)
    assert words.tolist() == [word for each in texts for word in words_of([each])[0].tolist()]
    assert np.diff(ends, prepend=0).tolist() == [0, 4, 0, 1, 1, 1]
    grams, gram_ends = hash_grams(words, ends, 3)
    assert np.diff(gram_ends, prepend=0).tolist() == [0, 2, 0, 1, 1, 1]
    assert grams[0] != grams[1]


def test_hashes_are_the_same_in_every_process_and_version():
    """Worked by another program: they are on disk between passes and machines."""
    mask = 2**64 - 1

    def mix(value: int) -> int:
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
            value = (value ^ value >> 33) * factor & mask
        return value ^ value >> 33

    def word(characters: str) -> int:
        state = 0xCBF29CE484222325
        for character in characters:
            state = (state ^ ord(character)) * 0x100000001B3 & mask
        return mix(state)

    def gram(words: list[int]) -> int:
        state = len(words)
        for each in words:
            state = (state ^ each) * 0x9FB21C651E98DF25 & mask
            state ^= state >> 33
        return mix(state)

    words, ends = words_of(["Zwei Ähren, 3 Äpfel"])
    expected = [word(each) for each in ("zwei", "ähren", "3", "äpfel")]
    assert words.tolist() == expected
    assert hash_grams(words, ends, 3)[0].tolist() == [gram(expected[:3]), gram(expected[1:])]


@pytest.mark.parametrize("permutations", [128, 100])
def test_signatures_are_datasketchs_bit_for_bit(permutations):
    import datasketch

    made = sketch(NearDuplicates(threshold=0.7, words=5, permutations=permutations))
    rng = random.Random(1)
    words, ends = words_of([text(rng, length) for length in (1, 3, 5, 6, 50, 400)])
    grams, gram_ends = hash_grams(words, ends, 5)
    signatures = made.signatures(words, ends)
    theirs_of = partial(datasketch.MinHash, permutations, seed=1, scheme="affine32")
    for at, (low, high) in enumerate(zip([0, *gram_ends], gram_ends, strict=False)):
        theirs = theirs_of(hashfunc=lambda gram: gram >> 32)
        theirs.update_batch(grams[low:high].tolist())
        assert theirs.hashvalues.tolist() == signatures[at].tolist()
    lsh = datasketch.MinHashLSH(0.7, permutations)
    assert (made.bands, made.band_rows) == (lsh.b, lsh.r)


def test_rows_share_a_bucket_exactly_where_datasketchs_index_finds_them():
    import datasketch

    rng = random.Random(2)
    base = text(rng, 60).split()
    texts = [" ".join([*base[:at], "other", *base[at + 3 :]]) for at in range(0, 60, 2)]
    texts += [text(rng) for _ in range(30)]
    made = sketch(NearDuplicates())
    signatures = made.signatures(*words_of(texts))
    keys = made.keys(signatures, np.zeros(len(texts), np.uint64))
    index = datasketch.MinHashLSH(0.7, 128)
    theirs_of = partial(datasketch.MinHash, 128, seed=1, scheme="affine32")
    hashes = [theirs_of(hashvalues=one) for one in signatures]
    for at, one in enumerate(hashes):
        index.insert(at, one)
    for at, one in enumerate(hashes):
        shared = np.flatnonzero((keys == keys[:, at : at + 1]).any(axis=0))
        assert set(index.query(one)) == set(shared.tolist())


def test_rows_of_different_contexts_share_no_bucket():
    made = sketch(NearDuplicates())
    signatures = made.signatures(*words_of(["the same question of both"] * 3))
    keys = made.keys(signatures, np.array([5, 7, 5], np.uint64))
    assert (keys[:, 0] == keys[:, 2]).all()
    assert (keys[:, 0] != keys[:, 1]).all()


def test_the_first_by_rank_leads_and_those_like_it_fall():
    """Signatures of ten values; 7 in 10 are enough. Row 1 is like 0 (8 in 10), row 2 like 1 only
    (7), row 3 like none."""
    first = np.arange(10)
    one, two, three = first.copy(), first.copy(), np.arange(10) + 100
    one[:2] += 50
    two[:2] += 50
    two[2:5] += 60
    signatures = np.array([first, one, two, three], np.uint32)
    fallen, agreed = decide(np.arange(4), np.array([4]), signatures, np.arange(4), 7)
    assert fallen.tolist() == [-1, 0, -1, -1]
    assert agreed.tolist() == [0, 8, 0, 0]


def test_buckets_keep_the_order_of_their_rows_and_leave_out_single_ones():
    members, ends = buckets(np.array([7, 3, 7, 9, 3, 7], np.uint64))
    assert (members.tolist(), ends.tolist()) == ([1, 4, 0, 2, 5], [2, 5])
    assert [array.tolist() for array in buckets(np.empty(0, np.uint64))] == [[], []]


def test_a_hundred_thousand_copies_in_one_bucket_take_no_time():
    """Each is compared with one leader: 10^5 comparisons, not 5 x 10^9 (which would take over a
    minute)."""
    rows = 100_000
    members, ends = buckets(np.full(rows, 7, np.uint64))
    signatures = np.tile(np.arange(128, dtype=np.uint32), (rows, 1))
    began = time.process_time()
    fallen, _ = decide(members, ends, signatures, np.arange(rows), 100)
    assert time.process_time() - began < 30
    assert (fallen[1:] == 0).all()


def test_ranks_depend_on_the_seed_and_put_solved_rows_first():
    ids, solved = np.arange(10_000, dtype=np.uint64), np.full(10_000, 5, np.uint64)
    assert len(set(ranks(ids, solved, 0).tolist())) == len(ids)
    assert (ranks(ids, solved, 0) != ranks(ids, solved, 1)).all()
    unsolved = solved | np.uint64(2**63)
    assert ranks(ids, solved, 0).max() < ranks(ids, unsolved, 0).min()
    assert (np.argsort(ranks(ids, solved, 0)) == np.argsort(ranks(ids, unsolved, 0))).all()
