"""What a reward model learns from: traces split into steps, traces with one wrong step, pairs of
well-formed traces alone."""

from collections import Counter

import numpy as np
import pytest

from schemas.examples import Trace
from tasks.reward_models.pairs import (
    damaged_pairs,
    fits_lengths,
    pair_arrays,
    split_pairs,
    trace_pairs,
)
from tasks.reward_models.steps import damaged, split_steps, step_tokens
from tests.tasks.reward_models.step_traces import EXAMPLES, TOKENIZER, preference

SPLIT = (
    ["ones 3+3=6, ", "tens 9+0+0=9, ", "so 96"],
    ["It is red, white and blue. ", "Next? ", '"Yes!" ', "Done"],
    ["1. Add 3.5 and 2.\n", "2. That is 5.5\n\n", "End"],
    ["x = 3;  ", "y is 4"],
    ["one"],
)


def test_a_reasoning_is_split_into_its_steps():
    assert [split_steps("".join(steps)) for steps in SPLIT] == list(SPLIT)


@pytest.mark.parametrize(
    "reasoning", ["7+2=9, 9-1=8, so 8", "Über <end_of_turn> 日本. Then é\nthe end", "a. b. c"]
)
def test_a_step_ends_at_the_token_that_has_its_last_character(reasoning: str):
    tokens, ends = step_tokens(TOKENIZER, Trace(reasoning=reasoning, answer="8"))
    text, place = f"<reasoning>{reasoning}", len("<reasoning>")
    assert tokens[-1] == TOKENIZER.end_of_turn_id
    assert ends[-1] == len(tokens) - 1
    assert len(ends) == len(split_steps(reasoning)) + 1
    for step, end in zip(split_steps(reasoning), ends, strict=False):
        last = place + len(step.rstrip())
        assert TOKENIZER.decode(tokens[:end]) != text[:last]
        assert TOKENIZER.decode(tokens[: end + 1]).startswith(text[:last])
        place += len(step)


def test_damage_changes_one_number_of_one_step_and_keeps_the_length():
    long = EXAMPLES[0].model_copy(update={"reasoning": "1" * 5000})  # too many digits for Python
    for one in (*EXAMPLES, long):
        damage = damaged(one, EXAMPLES, seed=0)
        both = zip(split_steps(one.reasoning), split_steps(damage.reasoning), strict=True)
        assert [index for index, (a, b) in enumerate(both) if a != b] == [damage.step]
        assert len(damage.reasoning) == len(one.reasoning)
        assert damage == damaged(one, EXAMPLES, seed=0)
    assert set(Counter(damaged(one, EXAMPLES, seed=0).step for one in EXAMPLES)) == {0, 1, 2}


def test_where_there_is_no_number_a_step_of_another_trace_takes_the_place():
    words, others = (
        EXAMPLES[0].model_copy(update={"reasoning": text})
        for text in ("A is b. B is c.", "D is e.")
    )
    found = [damaged(words.model_copy(update={"id": one.id}), [others], 0) for one in EXAMPLES]
    assert {damage.reasoning for damage in found} == {"D is e. B is c.", "A is b. D is e."}
    other = words.model_copy(update={"reasoning": "A is b. A is b."})
    assert damaged(words, [other], 0) in (None, ("A is b. A is b.", 1))


def test_pairs_without_two_traces_are_left_out_and_counted():
    good, bad, spaced = (
        Trace(reasoning="r is r.", answer=answer).render() for answer in ("1", "2", "1")
    )
    given = [
        preference(good, "<answer>2</answer>", "malformed"),
        preference(good, bad, "truncated"),
        preference(good, spaced.replace("\n", "\n\n  ")),
        preference(good, Trace(reasoning="a " * 100, answer="2").render()),
        preference(good, bad),
        preference(good, bad),
    ]
    left_out: Counter[str] = Counter()
    found = trace_pairs(iter(given), "data", 1, fits_lengths(TOKENIZER, 24, 64), left_out)
    assert [(pair.chosen, pair.rejected, pair.origin) for pair in found] == [(good, bad, "data")]
    assert left_out == {"malformed": 2, "same": 1, "too_long": 1}


def test_splits_are_by_prompt_and_what_is_measured_has_one_pair_a_prompt():
    left_out: Counter[str] = Counter()
    pairs = damaged_pairs(EXAMPLES, 60, 0, fits_lengths(TOKENIZER, 24, 64), left_out)
    others = [pair.model_copy(update={"origin": "data", "damaged_step": None}) for pair in pairs]
    splits = split_pairs([*pairs, *others], 0.2, 0.3)
    ids = {split: [pair.id for pair in found] for split, found in splits.items()}
    assert not set(ids["train"]) & set(ids["heldout"] + ids["validation"])
    assert not set(ids["validation"]) & set(ids["heldout"])
    assert all(len(ids[split]) == len(set(ids[split])) > 5 for split in ("validation", "heldout"))
    assert len(ids["train"]) == 2 * len(set(ids["train"]))
    assert {pair.origin for pair in splits["heldout"]} == {"data", "damaged"}
    assert splits == split_pairs([*others, *pairs], 0.2, 0.3) | {"train": splits["train"]}


def test_the_steps_before_the_damage_are_right_and_those_after_it_are_not_known():
    (pair,) = damaged_pairs(EXAMPLES[:1], 1, 3, lambda pair: True, Counter())
    arrays = pair_arrays(TOKENIZER, [pair, pair.model_copy(update={"damaged_step": None})], 24, 64)
    ends = [row.response.ends for row in pair.rows(TOKENIZER)]
    step = pair.damaged_step
    assert arrays["chosen_labels"][0, ends[0][:-1]].tolist() == [1, 1, 1]
    labels = [1] * step + [-1] + [0] * (2 - step)
    assert arrays["rejected_labels"][0, ends[1][:-1]].tolist() == labels
    assert np.abs(arrays["rejected_labels"]).sum() == step + 1
    assert not arrays["chosen_labels"][1].any()
    assert np.flatnonzero(arrays["chosen_ends"][0]).tolist() == ends[0]
