"""Rewards: what a completion is worth, and how a stage's rewards are combined when some abstain."""

import numpy as np
import pytest

from schemas.base import InputError
from schemas.examples import GROUNDED_REFUSAL, Domain, Prompt
from tasks.contract.reward import REWARDS, Resources, Response, Reward, RewardConfig
from tasks.reinforcement import rewarding
from tasks.reinforcement.rewarding import Rewards, Scorer, combine, parse_rewards
from tasks.rewards import exact_answer
from tasks.rewards import format as format_reward


def score(configs: list[RewardConfig], prompts: list[Prompt], completions: list[str]) -> Rewards:
    """What a stage with these rewards makes of completions."""
    scorer = Scorer(configs, Resources({}, answers=None))
    try:
        return scorer.score(prompts, [Response(text) for text in completions])
    finally:
        scorer.close()


def prompt(answer: str = "4", **changes) -> Prompt:
    return Prompt(
        id="0" * 16,
        prompt="What is 2 + 2?",
        domain=Domain.MATH,
        answer=answer,
        **{"check": "numeric", **changes},
    )


def trace(answer: str, reasoning: str = "2 + 2 = 4") -> str:
    return f"<reasoning>{reasoning}</reasoning>\n<answer>{answer}</answer>"


def format_scores(*completions: str, partial_credit: float = 0.5) -> list[float | None]:
    config = format_reward.Config(partial_credit=partial_credit)
    return format_reward.score(
        config, [prompt()] * len(completions), [Response(text) for text in completions]
    )


def test_a_well_formed_trace_earns_one_whatever_its_answer():
    assert format_scores(trace("4"), trace("no idea"), "  " + trace("4") + "\n") == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("completion", "in_place"),
    [
        ("", 0),
        ("4", 0),
        ("<reasoning>2 + 2", 1),
        ("<reasoning>2 + 2</reasoning>", 2),
        ("<reasoning>2 + 2</reasoning>\n<answer>4", 3),  # cut off before the answer was closed
        ("The answer: " + trace("4"), 4),  # text outside the tags
        ("<reasoning></reasoning>\n<answer>4</answer>", 4),  # an empty part
        (
            "<reasoning>a<reasoning>b</reasoning>\n<answer>4</answer>",
            3,
        ),  # a repeated tag earns nothing
        ("</answer><answer></reasoning><reasoning>", 1),  # the right tags in the wrong order
        (trace("4") + trace("4"), 0),
    ],
)
def test_a_malformed_completion_earns_part_of_the_partial_credit(completion: str, in_place: int):
    assert format_scores(completion) == [0.5 * in_place / 4]
    assert format_scores(completion, partial_credit=0.0) == [0.0]


def test_partial_credit_never_reaches_a_whole_trace():
    with pytest.raises(InputError, match=r"partial_credit = 1\.0"):
        parse_rewards([{"name": "format", "partial_credit": 1.0}], "rewards")


def exact(prompt: Prompt, completion: str) -> float | None:
    return exact_answer.score(exact_answer.Config(), [prompt], [Response(completion)])[0]


def test_exact_answer_asks_for_a_well_formed_trace_and_the_right_answer():
    assert exact(prompt(), trace("4")) == 1.0
    assert exact(prompt(), trace("4.0")) == 1.0
    assert exact(prompt(), trace("5")) == 0.0
    assert exact(prompt(), "<answer>4</answer>") == 0.0
    assert exact(prompt(), "") == 0.0


def test_exact_answer_abstains_where_no_answer_can_be_verified():
    assert exact(prompt(check="none"), trace("4")) is None
    assert exact(prompt(check="none"), "") is None


GROUNDED = {"check": "exact", "context": "Ana lives in Rome.", "domain": Domain.GENERAL}


@pytest.mark.parametrize("grounding", ["unanswerable", "out_of_domain"])
def test_refusing_is_the_correct_answer_where_the_context_has_none(grounding: str):
    asked = prompt(GROUNDED_REFUSAL, grounding=grounding).model_copy(update=GROUNDED)
    assert exact(asked, trace(GROUNDED_REFUSAL)) == 1.0
    assert exact(asked, trace("The context does not mention that")) == 1.0
    assert exact(asked, trace("Rome")) == 0.0
    assert exact(asked, GROUNDED_REFUSAL) == 0.0


def test_refusing_an_answerable_question_is_wrong():
    asked = prompt("Rome", grounding="answerable").model_copy(update=GROUNDED)
    assert exact(asked, trace("Rome")) == 1.0
    assert exact(asked, trace(GROUNDED_REFUSAL)) == 0.0


def test_every_reward_keeps_the_contract():
    assert {"format", "exact_answer"} <= set(REWARDS.names())
    for name in REWARDS.names():
        reward = REWARDS[name]
        assert set(reward.config.model_fields) >= {"name", "weight"}
        assert reward.config.model_fields["name"].default == name


def test_weights_and_knobs_come_from_the_tables():
    format_config, exact_config = parse_rewards(
        [{"name": "format", "weight": 0.25, "partial_credit": 0}, {"name": "exact_answer"}],
        "rewards",
    )
    assert (format_config.weight, format_config.partial_credit, exact_config.weight) == (
        0.25,
        0.0,
        1.0,
    )


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([{"weight": 1.0}], "needs a name, one of: .*exact_answer.*format"),
        ([{"name": "fromat"}], "unknown reward 'fromat'. Did you mean 'format'\\?"),
        ([{"name": "format", "wieght": 1.0}], "unknown key 'wieght'. Did you mean 'weight'\\?"),
        ([{"name": "format", "weight": 0}], "weight = 0 is not valid"),
        ([{"name": "format", "weight": "1"}], "weight = '1' is not valid"),
        ([{"name": "format"}, {"name": "format"}], "reward 'format' is listed 2 times"),
    ],
)
def test_bad_reward_tables_are_refused_with_the_fix(tables: list, message: str):
    with pytest.raises(InputError, match=message):
        parse_rewards(tables, "rewards")


def test_rewards_combine_as_a_weighted_mean():
    """format 1, exact 0 at weights 1 and 3: 1/4. A malformed completion with two tags in place: (1
    x .25 + 3 x 0) / 4."""
    configs = parse_rewards(
        [{"name": "format", "weight": 1.0}, {"name": "exact_answer", "weight": 3.0}], "rewards"
    )
    scores = score(
        configs, [prompt()] * 3, [trace("5"), trace("4"), "<reasoning>2 + 2</reasoning>"]
    )
    assert scores.total.tolist() == [0.25, 1.0, 0.0625]
    assert scores.components["format"].tolist() == [1.0, 1.0, 0.25]
    assert scores.components["exact_answer"].tolist() == [0.0, 1.0, 0.0]


def test_an_abstention_gives_its_weight_to_the_others_of_that_completion_only():
    configs = [RewardConfig(name="one"), RewardConfig(name="two", weight=3.0)]
    components = {"one": np.array([1.0, 1.0, np.nan]), "two": np.array([0.0, np.nan, np.nan])}
    total = combine(configs, components, [prompt()] * 3, update=1)
    np.testing.assert_array_equal(total, [0.25, 1.0, np.nan])


def test_a_prompt_without_a_verifiable_answer_is_scored_by_what_remains():
    configs = parse_rewards(
        [{"name": "format"}, {"name": "exact_answer", "weight": 3.0}], "rewards"
    )
    scores = score(configs, [prompt(check="none"), prompt()], [trace("4"), trace("4")])
    assert np.isnan(scores.components["exact_answer"]).tolist() == [True, False]
    assert scores.total.tolist() == [1.0, 1.0]


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
def test_a_reward_that_breaks_its_contract_is_named(
    monkeypatch: pytest.MonkeyPatch, values: object, message: str
):
    monkeypatch.setattr(
        rewarding,
        "REWARDS",
        {"broken": Reward(version=1, config=RewardConfig, score=lambda *_: values)},
    )
    with pytest.raises(ValueError, match=message):
        score([RewardConfig(name="broken")], [prompt()] * 2, ["", ""])


def test_every_completion_needs_its_own_prompt():
    with pytest.raises(ValueError, match="1 prompts and 2 responses"):
        score(parse_rewards([{"name": "format"}], "rewards"), [prompt()], ["", ""])
