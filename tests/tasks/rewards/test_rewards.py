"""Rewards: what a completion is worth, and how a stage's rewards are combined when some abstain."""

from contextlib import closing
from typing import Any

import numpy as np
import pytest

from schemas.base import InputError
from schemas.examples import GROUNDED_REFUSAL, Domain, Prompt
from tasks.contract.reward import Resources, Response, Reward, RewardConfig
from tasks.reinforcement import rewarding
from tasks.reinforcement.rewarding import Rewards, Scorer, combine, parse_rewards
from tasks.rewards import exact_answer
from tasks.rewards import format as format_reward
from tests.tasks.prompts import paid, prompt, trace


def score(configs: list[RewardConfig], prompts: list[Prompt], completions: list[str]) -> Rewards:
    """What a stage with these rewards makes of completions."""
    with closing(Scorer(configs, Resources({}, answers=None))) as scorer:
        return scorer.score(prompts, [Response(text) for text in completions])


def test_a_well_formed_trace_earns_one_whatever_its_answer():
    assert paid(format_reward, trace("4"), trace("no idea"), f"  {trace('4')}\n") == [1.0] * 3


MALFORMED = {
    "": 0,
    "4": 0,
    "<reasoning>2 + 2": 1,
    "<reasoning>2 + 2</reasoning>": 2,
    "<reasoning>2 + 2</reasoning>\n<answer>4": 3,  # cut off before the answer was closed
    "The answer: " + trace("4"): 4,  # text outside the tags
    "<reasoning></reasoning>\n<answer>4</answer>": 4,  # an empty part
    "<reasoning>a<reasoning>b</reasoning>\n<answer>4</answer>": 3,  # a repeated tag earns nothing
    "</answer><answer></reasoning><reasoning>": 1,  # the right tags in the wrong order
    trace("4") + trace("4"): 0,
}


def test_a_malformed_completion_earns_part_of_the_partial_credit():
    assert paid(format_reward, *MALFORMED) == [0.5 * tags / 4 for tags in MALFORMED.values()]
    assert paid(format_reward, *MALFORMED, partial_credit=0.0) == [0.0] * len(MALFORMED)


def test_exact_answer_asks_for_a_well_formed_trace_and_the_right_answer_or_abstains():
    told = [trace("4"), trace("4.0"), trace("5"), "<answer>4</answer>", ""]
    assert paid(exact_answer, *told) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert paid(exact_answer, *told, asked=prompt(check="none")) == [None] * 5


def test_refusing_is_right_where_the_context_has_no_answer_and_wrong_where_it_has_one():
    grounded = {"check": "exact", "context": "Ana lives in Rome.", "domain": Domain.GENERAL}
    unanswerable = prompt(GROUNDED_REFUSAL, grounding="unanswerable", **grounded)
    refusals = [trace(GROUNDED_REFUSAL), trace("The context does not mention that")]
    said = (*refusals, trace("Rome"), GROUNDED_REFUSAL)
    assert paid(exact_answer, *said, asked=unanswerable) == [1.0, 1.0, 0.0, 0.0]
    answerable = prompt("Rome", grounding="answerable", **grounded)
    assert paid(exact_answer, trace("Rome"), refusals[0], asked=answerable) == [1.0, 0.0]


def bands(*pairs: tuple[float, float]) -> list[dict[str, Any]]:
    near = [{"within": within, "value": value} for within, value in pairs]
    return [{"name": "numeric_answer", "near": near}]


def test_bad_reward_tables_are_refused_with_the_fix():
    for tables, message in (
        ([{"weight": 1.0}], "needs a name, one of: .*exact_answer.*format"),
        ([{"name": "fromat"}], "unknown reward 'fromat'. Did you mean 'format'\\?"),
        ([{"name": "format", "wieght": 1.0}], "unknown key 'wieght'. Did you mean 'weight'\\?"),
        ([{"name": "format", "weight": 0}], "weight = 0 is not valid"),
        ([{"name": "format", "weight": "1"}], "weight = '1' is not valid"),
        ([{"name": "format", "partial_credit": 1.0}], r"partial_credit = 1\.0"),
        ([{"name": "length"}], "there is no band: give a minimum or a maximum"),
        ([{"name": "length", "minimum": 10, "maximum": 9}], "maximum 9 is below minimum 10"),
        ([{"name": "length", "maximum": 150, "slope": 0}], "slope = 0 is not valid"),
        (bands((0.2, 0.1), (0.1, 0.2)), "near must go from narrow to wide"),
        (bands((0.1, 0.1), (0.2, 0.1)), "each band worth less than the one before"),
        (bands((0.1, 1.0)), r"near\.0\.value = 1\.0 is not valid"),
        (
            [{"name": "tfidf", "against": "prompt", "ignore_prompt": True}],
            "ignore_prompt leaves nothing to compare with",
        ),
        ([{"name": "format"}, {"name": "format"}], "reward 'format' is listed 2 times"),
    ):
        with pytest.raises(InputError, match=message):
            parse_rewards(tables, "rewards")


BOTH = parse_rewards([{"name": "format"}, {"name": "exact_answer", "weight": 3.0}], "rewards")


def test_rewards_combine_as_a_weighted_mean():
    """format 1, exact 0 at weights 1 and 3: 1/4. A malformed completion with two tags in place: (1
    x .25 + 3 x 0) / 4."""
    told = [trace("5"), trace("4"), "<reasoning>2 + 2</reasoning>"]
    scores = score(BOTH, [prompt()] * 3, told)
    assert scores.total.tolist() == [0.25, 1.0, 0.0625]
    assert scores.components["format"].tolist() == [1.0, 1.0, 0.25]
    assert scores.components["exact_answer"].tolist() == [0.0, 1.0, 0.0]


def test_an_abstention_moves_a_response_neither_up_nor_down_among_those_to_its_prompt():
    """The second reward, of weight 3, gave 0 and .5 to the prompt's others: (1 + 3 x .25) / 4. The
    last response answers another prompt, which it did not rule on."""
    configs = [RewardConfig(name="one"), RewardConfig(name="two", weight=3.0)]
    one, two = [1, 1, None, None, 1], [0, None, 0.5, None, None]
    components = {"one": np.array(one, np.float64), "two": np.array(two, np.float64)}
    total = combine(configs, components, [*[prompt()] * 4, prompt(id="p2")], update=1)
    np.testing.assert_array_equal(total, [0.25, 0.4375, 0.625, np.nan, 1.0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0], "reward 'broken' returned 1 values for 2 responses"),  # must not be broadcast
        ([1.0, 0.0, 1.0], "returned 3 values for 2 responses"),
        (np.ones(2), "returned a ndarray for 2 responses"),
        (1.0, "returned a float for 2 responses"),
        ([1.0, float("nan")], "returned nan for response 1; .* None to abstain"),
        ([float("inf"), 1.0], "returned inf for response 0"),
        (["1", 1.0], "returned '1' for response 0"),
    ],
)
def test_a_reward_that_breaks_its_contract_is_named(monkeypatch, values, message):
    broken = Reward(version=1, config=RewardConfig, score=lambda *_: values)
    monkeypatch.setattr(rewarding, "REWARDS", {"broken": broken})
    with pytest.raises(ValueError, match=message):
        score([RewardConfig(name="broken")], [prompt()] * 2, ["", ""])


def test_numpys_numbers_are_numbers(monkeypatch):
    values = [np.float32(0.5), np.int64(1)]
    mine = Reward(version=1, config=RewardConfig, score=lambda *_: values)
    monkeypatch.setattr(rewarding, "REWARDS", {"mine": mine})
    found = score([RewardConfig(name="mine")], [prompt()] * 2, ["", ""])
    assert found.total.tolist() == [0.5, 1.0]


def test_every_completion_needs_its_own_prompt():
    with pytest.raises(ValueError, match="1 prompts and 2 responses"):
        score(BOTH, [prompt()], ["", ""])
