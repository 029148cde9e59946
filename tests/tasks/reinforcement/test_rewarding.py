"""How a stage's rewards are combined: weights by domain and update, and the scorer's threads."""

import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from schemas.base import InputError
from schemas.examples import Domain
from tasks.contract.reward import Judged, Resources, Response, Reward, RewardConfig
from tasks.reinforcement import rewarding
from tasks.reinforcement.rewarding import Scorer, parse_rewards
from tests.tasks.prompts import prompt, trace
from tests.tasks.rewards.test_rewards import score


def test_a_reward_is_asked_for_its_domains_only():
    """Math: format 1 and exact answer 3; science: format alone, for the exact answer has no factor
    there; creative: no total. A factor of a half beside a weight of 1.5: .5 of 2."""
    tables = [
        {"name": "format", "domains": {"math": 1.0, "science": 2.0}},
        {"name": "exact_answer", "weight": 3.0, "domains": {"math": 1.0}},
    ]
    configs = parse_rewards(tables, "rewards")
    # as a stage's config goes to its job
    assert parse_rewards([one.model_dump(mode="json") for one in configs], "rewards") == configs
    prompts = [prompt(domain=one) for one in (Domain.MATH, Domain.SCIENCE, Domain.CREATIVE)]
    scores = score(configs, prompts, [trace("5")] * 3)
    np.testing.assert_array_equal(scores.total, [0.25, 1.0, np.nan])
    np.testing.assert_array_equal(scores.components["exact_answer"], [0.0, np.nan, np.nan])
    tables = [{"name": "format", "domains": {"math": 0.5}}, {"name": "exact_answer", "weight": 1.5}]
    assert score(parse_rewards(tables, "rewards"), [prompt()], [trace("5")]).total[0] == 0.25


def test_an_annealed_weight_moves_from_one_value_to_the_other():
    for table, weights in (
        ((0.45, 0.25, 1, 101), {1: 0.45, 51: 0.35, 101: 0.25, 500: 0.25}),
        ((0.0, 1.0, 100, 200), {1: 0.0, 100: 0.0, 150: 0.5, 200: 1.0, 201: 1.0}),
        ((5.0, 10.0, 301, 301), {1: 5.0, 300: 5.0, 301: 10.0, 302: 10.0}),
        ((5.0, 10.0, None, 1), {1: 10.0}),
    ):
        keys = ("start", "end", "from_step", "to_step")
        weight = {key: value for key, value in zip(keys, table, strict=True) if value is not None}
        (config,) = parse_rewards([{"name": "format", "weight": weight}], "rewards")
        found = {update: config.weight_of(prompt(), update) for update in weights}
        assert found == pytest.approx(weights)


def test_annealed_weights_are_those_of_the_update_and_zero_asks_nobody():
    """Trace quality gives way to correctness: at update 1 the exact answer is not asked, at 11
    nothing else counts."""
    configs = parse_rewards(
        [
            {"name": "format", "weight": {"start": 1.0, "end": 0.0, "to_step": 11}},
            {"name": "exact_answer", "weight": {"start": 0.0, "end": 1.0, "to_step": 11}},
        ],
        "rewards",
    )
    with closing(Scorer(configs, Resources({}, answers=None))) as scorer:
        found = [scorer.score([prompt()], [Response(trace("5"))], update) for update in (1, 6, 11)]
    assert [scores.total[0] for scores in found] == [1.0, 0.5, 0.0]
    assert np.isnan(found[0].components["exact_answer"][0])
    assert np.isnan(found[2].components["format"][0])


ONE_TO_TWO = {"start": 1.0, "end": 2.0, "to_step": 9}


def test_bad_weights_are_refused_with_the_fix():
    for table, message in (
        ({"weight": {"start": 1.0, "end": 2.0}}, r"required key 'weight\.to_step' is missing"),
        ({"weight": ONE_TO_TWO | {"to_stp": 9}}, r"'weight\.to_stp'. Did you mean 'to_step'\?"),
        ({"weight": ONE_TO_TWO | {"start": -1.0}}, r"weight\.start = -1\.0 is not valid"),
        ({"weight": ONE_TO_TWO | {"from_step": 10}}, "to_step 9 lies before from_step 10; swap"),
        ({"weight": ONE_TO_TWO | {"end": 1.0}}, "write that number in place of the table"),
        ({"domains": {"maths": 1.0}}, "'maths' is not valid. Did you mean 'math'. Valid"),
        ({"domains": {"math": -1.0}}, r"domains\.math = -1\.0 is not valid"),
        ({"domains": {}}, "no domain has a factor above 0"),
        ({"domains": {"math": 0.0}}, "no domain has a factor above 0"),
    ):
        with pytest.raises(InputError, match=message):
            parse_rewards([{"name": "format", **table}], "rewards")


# The scorer: threads, what rewards hold, what they say
# ---------------------------------------------------------------------------


def made(**parts: Any) -> Reward:
    """A reward that gives nothing, but for these parts."""
    return Reward(
        version=1,
        config=RewardConfig,
        **{"score": lambda _, __, responses: [None] * len(responses), **parts},
    )


class Fake:
    """Rewards that are not in the directory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **rewards: Reward) -> None:
        monkeypatch.setattr(rewarding, "REWARDS", rewards)
        self.configs = [RewardConfig(name=name) for name in rewards]

    def scorer(self) -> Scorer:
        return Scorer(self.configs, Resources({}, answers=None))


def test_two_requests_are_scored_at_the_same_time_and_kept_apart(monkeypatch: pytest.MonkeyPatch):
    """Each of four calls waits for the other three: both rewards of both requests must be under way
    at once."""
    together = threading.Barrier(4, timeout=300)

    def length(_config: object, _prompts: object, responses: Sequence[Response]) -> list[float]:
        together.wait()
        return [float(len(one.text)) for one in responses]

    fake = Fake(monkeypatch, one=made(score=length), other=made(score=length))
    with closing(fake.scorer()) as scorer:
        futures = [
            scorer.submit([prompt()] * count, [Response("x" * count)] * count, update=1)
            for count in (1, 3)
        ]
        assert [future.result().total.tolist() for future in futures] == [[1.0], [3.0, 3.0, 3.0]]


def test_an_exception_in_one_reward_reaches_whoever_asked_and_the_scorer_lives_on(monkeypatch):
    def fails(_config: object, _prompts: object, responses: Sequence[Response]) -> list[float]:
        if responses[0].text == "bad":
            raise RuntimeError("the judge is on fire")
        return [1.0] * len(responses)

    fine = made(score=lambda _config, _prompts, responses: [0.0] * len(responses))
    with closing(Fake(monkeypatch, fails=made(score=fails), fine=fine).scorer()) as scorer:
        with pytest.raises(RuntimeError, match="on fire"):
            scorer.submit([prompt()], [Response("bad")], update=1).result()
        assert scorer.score([prompt()], [Response("good")]).total.tolist() == [0.5]


class Held:
    """What a reward's `prepare` returns."""

    def __init__(self, name: str, closed: list[str]) -> None:
        self.name, self.closed = name, closed

    def close(self) -> None:
        self.closed.append(self.name)


def test_what_rewards_hold_is_closed_once(monkeypatch: pytest.MonkeyPatch):
    closed: list[str] = []
    rewards = {
        name: made(
            prepare=lambda config, _resources: Held(config.name, closed),
            close=Held.close,
            score=lambda held, _prompts, responses: [float(len(held.name))],
        )
        for name in ("a", "bb")
    }
    scorer = Fake(monkeypatch, **rewards).scorer()
    assert scorer.score([prompt()], [Response("")]).total.tolist() == [1.5]
    assert closed == []
    scorer.close()
    assert closed == ["a", "bb"]
    with pytest.raises(RuntimeError, match="shutdown"):
        scorer.submit([prompt()], [Response("")], update=1)


def test_a_reward_that_cannot_be_prepared_closes_those_before_it(monkeypatch: pytest.MonkeyPatch):
    closed: list[str] = []

    def refuses(_config: object, _resources: object) -> None:
        raise InputError("no key")

    first = made(prepare=lambda config, _resources: Held(config.name, closed), close=Held.close)
    with pytest.raises(InputError, match="no key"):
        Fake(monkeypatch, first=first, second=made(prepare=refuses)).scorer()
    assert closed == ["first"]


def test_details_are_kept_where_a_reward_gave_any(monkeypatch: pytest.MonkeyPatch):
    """Row by row, also beside responses that the reward was not asked about, and for an
    abstention."""

    def judge(_config, _prompts, responses):
        return [
            Judged(None if one.text == "?" else 1.0, {"said": one.text}) if one.text else 0.0
            for one in responses
        ]

    plain = made(score=lambda *given: [0.0] * len(given[2]))
    fake = Fake(monkeypatch, judge=made(score=judge), plain=plain)
    judge_config = RewardConfig(name="judge", domains={Domain.MATH: 1.0})
    fake.configs = [judge_config, RewardConfig(name="plain")]
    with closing(fake.scorer()) as scorer:
        prompts = [prompt(domain=Domain.SCIENCE), *[prompt()] * 3]
        scores = scorer.score(prompts, [Response(text) for text in ("x", "y", "", "?")])
    assert scores.details == {"judge": [{}, {"said": "y"}, {}, {"said": "?"}]}
    np.testing.assert_array_equal(scores.components["judge"], [np.nan, 1.0, 0.0, np.nan])
    assert scores.total.tolist() == [0.0, 0.5, 0.0, 0.25]


def test_a_reward_that_raises_is_named(monkeypatch):
    def raising(config, prompts, responses):
        return [one.solution for one in prompts]

    faulty = Reward(version=1, config=RewardConfig, score=raising)
    monkeypatch.setattr(rewarding, "REWARDS", {"mine": faulty})
    with (
        closing(Scorer([RewardConfig(name="mine")], Resources({}, answers=None))) as scorer,
        pytest.raises(AttributeError, match="no attribute 'solution'") as caught,
    ):
        scorer.score([prompt()], [Response("x")])
    assert caught.value.__notes__ == ["in reward 'mine'"]
