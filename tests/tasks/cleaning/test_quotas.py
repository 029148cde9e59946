"""Quotas: exact shares, exact numbers per difficulty, an order that is a hash, and pairs that
follow their prompts."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.examples import prompt_id
from tasks.cleaning.pools import write_pairs
from tasks.cleaning.quotas import Pool, Quota, Shortfall, allocate, ranks, shortfall_table
from tasks.cleaning.rules import SPLITS, split_of

sizes = st.dictionaries(st.integers(1, 5), st.integers(0, 60), min_size=1)


@given(sizes, st.data())
def test_an_allocation_is_exact_within_one_of_the_share_and_never_more_than_there_is(
    available, data
):
    total = sum(available.values())
    quota = data.draw(st.integers(0, total))
    parts = allocate(quota, available)
    assert sum(parts.values()) == quota
    for stratum, part in parts.items():
        assert 0 <= part <= available[stratum]
        assert total == 0 or abs(part - quota * available[stratum] / total) < 1


def test_largest_remainders_get_the_rows_that_are_left_and_ties_go_to_the_easier():
    """10 of {1: 4, 2: 3, 3: 7} (14 rows): shares 2.857, 2.143, 5.0; whole parts 2, 2, 5; the one
    left goes to difficulty 1."""
    assert allocate(10, {1: 4, 2: 3, 3: 7}) == {1: 3, 2: 2, 3: 5}
    assert allocate(1, {1: 2, 2: 2}) == {1: 1, 2: 0}


def pool(*levels: int) -> Pool:
    return Pool(np.arange(100, 100 + len(levels)), np.array(levels, np.uint8))


def test_a_number_takes_the_first_rows_of_each_difficulty_in_proportion():
    assert pool(1, 2, 1, 2, 1, 1).take(3).rows.tolist() == [100, 101, 102]
    assert pool(1, 1, 1, 1, 2, 2).take(3).rows.tolist() == [100, 101, 104]


def test_a_table_takes_exactly_so_many_of_each_difficulty_in_the_pools_order():
    taken = pool(3, 1, 1, 3, 2, 3).take({3: 2, 1: 1})
    assert taken.rows.tolist() == [100, 101, 103]
    assert taken.by_level() == {1: 1, 3: 2}


def test_what_a_pool_lacks_is_told_by_difficulty_where_the_quota_is():
    assert pool(1, 1, 2).lacks(4) == {None: (4, 3)}
    assert pool(1, 1, 2).lacks(3) == {}
    assert pool(1, 1, 2).lacks({1: 2, 2: 3, 5: 1}) == {2: (3, 1), 5: (1, 0)}
    assert pool().lacks({1: 0}) == {}


def test_of_more_than_there_is_all_is_taken():
    assert pool(1, 1).take(3).rows.tolist() == [100, 101]
    assert pool(1, 2, 2).take({1: 3, 2: 1}).rows.tolist() == [100, 101]


def test_a_quota_is_written_as_numbers_or_as_tables_and_survives_json():
    quota = Quota.parse({"train": {"1": 100, "3": 400}, "heldout": 50})
    assert (quota.total("train"), quota.total("validation"), quota.total("heldout")) == (500, 0, 50)
    assert Quota.parse(quota.model_dump(mode="json")) == quota
    for wrong in (-1, {"6": 1}, {"0": 1}, {"1": -1}):
        with pytest.raises(ValidationError):
            Quota.parse({"train": wrong})


@given(st.lists(st.text(max_size=10), max_size=20), st.integers(0, 5))
def test_the_rank_of_a_prompt_is_the_hash_of_seed_and_id(texts, seed):
    ids = [prompt_id(text) for text in texts]
    expected = [int(hashlib.sha256(f"{seed}/{one}".encode()).hexdigest()[:16], 16) for one in ids]
    assert ranks(seed, np.array([int(one, 16) for one in ids], np.uint64)).tolist() == expected


def test_the_table_of_what_is_missing_is_aligned():
    short = [
        Shortfall("quotas", "math", "train", None, 900, 812),
        Shortfall("grounding_quotas", "answerable", "heldout", 3, 5, 0),
    ]
    assert shortfall_table(short).splitlines() == [
        "  cell                                   requested  available  missing",
        "  quotas.math.train                            900        812       88",
        "  grounding_quotas.answerable.heldout.3          5          0        5",
    ]


@given(st.text(min_size=1, max_size=40), st.floats(0, 0.4), st.floats(0, 0.4))
def test_a_split_depends_on_the_normalised_prompt_and_the_fractions_alone(
    text, validation, heldout
):
    split = split_of(prompt_id(text), validation, heldout)
    assert split == split_of(prompt_id(f"  {text}\n"), validation, heldout)
    assert split in SPLITS


@given(st.text(max_size=40), st.floats(0, 0.3), st.floats(0, 0.3), st.floats(0, 0.3))
def test_a_larger_heldout_fraction_never_takes_a_prompt_out_of_the_heldout_split(
    text, validation, heldout, more
):
    if split_of(prompt_id(text), validation, heldout) == "heldout":
        assert split_of(prompt_id(text), validation, heldout + more) == "heldout"


def test_splits_have_about_the_sizes_that_were_asked_for():
    splits = [split_of(prompt_id(f"prompt {n}"), 0.05, 0.15) for n in range(20000)]
    assert splits.count("heldout") / 20000 == pytest.approx(0.15, abs=0.01)
    assert splits.count("validation") / 20000 == pytest.approx(0.05, abs=0.006)


def test_pairs_of_chosen_prompts_are_written_once_whatever_file_they_are_in(tmp_path: Path):
    ids = [prompt_id(str(n)) for n in range(5)]
    lines = [f'{{"id":"{one}","chosen":"{text}"}}' for one in ids for text in ("a", "b")]
    files = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    chosen = np.array([int(prompt_id(str(n)), 16) for n in (0, 2, 4, 9)], np.uint64)
    written = []
    for split in (3, 8):
        files[0].write_text("\n".join([*lines[:split], lines[0]]) + "\n")
        files[1].write_text("\n".join(reversed(lines[split:])) + "\n")
        assert write_pairs(tmp_path / "out.jsonl", files, chosen, seed=0) == 6
        written.append((tmp_path / "out.jsonl").read_text())
    assert written[0] == written[1]
    assert sorted(written[0].splitlines()) == sorted([*lines[:2], *lines[4:6], *lines[8:]])
