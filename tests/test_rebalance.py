"""Rebalance: exact stratified quotas, splits that never move a prompt, and errors that say what is missing."""

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.base import InputError
from schemas.examples import Domain, Example, prompt_id
from tasks import rebalance
from tasks.data.quotas import allocate, take
from tasks.data.splits import SPLITS, split_of
from tasks.job import Job, read_jsonl, write_jsonl


def example(text: str, domain: str = "math", difficulty: int = 1, grounding: str | None = None) -> Example:
    context = "Fact." if grounding else None
    return Example(
        id=prompt_id(text),
        prompt=text,
        domain=Domain(domain),
        answer="1",
        difficulty=difficulty,
        reasoning="r",
        grounding=grounding,
        context=context,
    )


POOL = [example(f"math {n}", "math", 1 + n % 5) for n in range(1000)]
POOL += [example(f"coding {n}", "coding", 1 + n % 2) for n in range(400)]
POOL += [example(f"grounded {n}", "general", 3, "answerable") for n in range(300)]


def run(tmp_path: Path, examples: list[Example], **config) -> tuple[dict, dict[str, list[Example]]]:
    number = len(list(tmp_path.iterdir()))
    source, out = tmp_path / f"in{number}", tmp_path / f"out{number}"
    source.mkdir()
    out.mkdir()
    write_jsonl(source / "examples.jsonl", examples)
    metrics = rebalance.run(Job(rebalance.Config.parse(config), {"examples": source}, out, out))
    return metrics, {split: read_jsonl(out / f"{split}.jsonl", Example) for split in SPLITS}


QUOTAS = {
    "quotas": {"math": {"train": 500, "validation": 20, "heldout": 101}, "coding": {"train": 99, "heldout": 7}},
    "grounding_quotas": {"answerable": {"train": 50, "heldout": 20}},
}


def test_every_quota_is_met_exactly(tmp_path):
    metrics, splits = run(tmp_path, POOL, **QUOTAS)
    counts = {split: Counter(row.grounding or row.domain.value for row in rows) for split, rows in splits.items()}
    assert counts == {
        "train": {"math": 500, "coding": 99, "answerable": 50},
        "validation": {"math": 20},
        "heldout": {"math": 101, "coding": 7, "answerable": 20},
    }
    assert metrics["rows"] == {"train": 649, "validation": 20, "heldout": 128}
    heldout = metrics["domains"]["math"]["heldout"]
    assert (heldout["requested"], heldout["achieved"]) == (101, 101)
    assert sum(split["available"] for split in metrics["domains"]["math"].values()) == 1000
    assert metrics["groundings"]["answerable"]["train"]["achieved"] == 50


def test_a_domain_without_a_quota_gives_no_rows(tmp_path):
    _, splits = run(tmp_path, POOL, quotas={"coding": {"train": 10}})
    assert {row.domain.value for rows in splits.values() for row in rows} == {"coding"}


def test_difficulties_keep_their_share(tmp_path):
    metrics, splits = run(tmp_path, POOL, **QUOTAS)
    train = Counter(row.difficulty for row in splits["train"] if row.domain == "math")
    available = Counter(row.difficulty for row in POOL if row.domain == "math" and split_of(row.id, 0.05, 0.15) == "train")
    for difficulty, count in train.items():
        assert abs(count - 500 * available[difficulty] / available.total()) < 1
    assert metrics["domains"]["math"]["train"]["difficulty"] == {str(level): train[level] for level in range(1, 6)}


def test_no_prompt_is_in_two_splits(tmp_path):
    _, splits = run(tmp_path, POOL, **QUOTAS)
    ids = [row.id for rows in splits.values() for row in rows]
    assert len(set(ids)) == len(ids)


def test_the_order_of_the_rows_does_not_matter(tmp_path):
    shuffled = random.Random(1).sample(POOL, len(POOL))
    assert run(tmp_path, POOL, **QUOTAS) == run(tmp_path, shuffled, **QUOTAS)


def test_another_seed_takes_other_rows_but_moves_none_between_splits(tmp_path):
    _, first = run(tmp_path, POOL, **QUOTAS)
    _, second = run(tmp_path, POOL, **QUOTAS, seed=1)
    ids = [{split: {row.id for row in rows} for split, rows in splits.items()} for splits in (first, second)]
    assert ids[0]["train"] != ids[1]["train"]
    assert not ids[0]["train"] & ids[1]["heldout"]
    assert not ids[0]["heldout"] & ids[1]["train"]


def test_a_quota_that_cannot_be_filled_names_domain_split_what_there_is_and_what_is_missing(tmp_path):
    with pytest.raises(InputError) as error:
        run(
            tmp_path,
            POOL,
            quotas={"math": {"train": 900, "heldout": 10}, "science": {"heldout": 5}},
            grounding_quotas={"unanswerable": {"train": 1}},
        )
    has = Counter(split_of(row.id, 0.05, 0.15) for row in POOL if row.domain == "math")
    message = str(error.value)
    assert f"quotas.math.train = 900: there are {has['train']}, {900 - has['train']} are missing (1000 rows of math in all" in message
    assert "quotas.science.heldout = 5: there are 0, 5 are missing" in message
    assert "grounding_quotas.unanswerable.train = 1: there are 0, 1 are missing" in message
    assert "quotas.math.heldout" not in message
    assert "Lower the quota, let the teacher produce more rows" in message


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"quotas": {"maths": {"train": 1}}}, "Input should be 'math'"),
        ({"quotas": {"math": {"train": -1}}}, "greater than or equal to 0"),
        ({"quotas": {"math": {"test": 1}}}, "Extra inputs"),
        ({"quotas": {"math": {"train": 1}}, "validation_fraction": 0.5, "heldout_fraction": 0.5}, "leaves nothing to train on"),
        ({}, "no quota is set"),
    ],
)
def test_a_wrong_config_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        rebalance.Config.parse(config)


@given(st.text(min_size=1, max_size=40), st.floats(0, 0.4), st.floats(0, 0.4))
def test_a_split_depends_on_the_normalised_prompt_and_the_fractions_alone(text, validation, heldout):
    split = split_of(prompt_id(text), validation, heldout)
    assert split == split_of(prompt_id(f"  {text}\n"), validation, heldout)
    assert split in SPLITS


@given(st.text(max_size=40), st.floats(0, 0.3), st.floats(0, 0.3), st.floats(0, 0.3))
def test_a_larger_heldout_fraction_never_takes_a_prompt_out_of_the_heldout_split(text, validation, heldout, more):
    if split_of(prompt_id(text), validation, heldout) == "heldout":
        assert split_of(prompt_id(text), validation, heldout + more) == "heldout"


def test_splits_have_about_the_sizes_that_were_asked_for():
    counts = Counter(split_of(prompt_id(f"prompt {n}"), 0.05, 0.15) for n in range(20000))
    assert counts["heldout"] / 20000 == pytest.approx(0.15, abs=0.01)
    assert counts["validation"] / 20000 == pytest.approx(0.05, abs=0.006)


sizes = st.dictionaries(st.integers(1, 5), st.integers(0, 60), min_size=1)


@given(sizes, st.data())
def test_an_allocation_is_exact_within_one_of_the_share_and_never_more_than_there_is(available, data):
    total = sum(available.values())
    quota = data.draw(st.integers(0, total))
    parts = allocate(quota, available)
    assert sum(parts.values()) == quota
    for stratum, part in parts.items():
        assert 0 <= part <= available[stratum]
        assert total == 0 or abs(part - quota * available[stratum] / total) < 1


def test_largest_remainders_get_the_rows_that_are_left_and_ties_go_to_the_easier():
    """10 of {1: 4, 2: 3, 3: 7} (14 rows): shares 2.857, 2.143, 5.0; whole parts 2, 2, 5; the one left goes to difficulty 1."""
    assert allocate(10, {1: 4, 2: 3, 3: 7}) == {1: 3, 2: 2, 3: 5}
    assert allocate(1, {1: 2, 2: 2}) == {1: 1, 2: 0}


def test_more_than_there_is_cannot_be_taken():
    with pytest.raises(ValueError, match="cannot take 3 of 2 rows"):
        take(POOL[:2], 3, seed=0)
