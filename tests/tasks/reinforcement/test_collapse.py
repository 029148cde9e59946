"""The collapse detector: what kills a run is seen soon, what only looks like it is not."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tasks.contract.reward import Resources
from tasks.reinforcement.collapse import Detector, Sign, sign_of
from tasks.reinforcement.grpo_config import Collapse
from tasks.reinforcement.rewarding import Rewards, Scorer
from tasks.sampling.sampler import Completion
from tests.tasks.prompts import trace
from tests.tasks.reinforcement.test_batches import (
    PROMPTS,
    FakeScorer,
    alternate,
    batches_of,
    config,
)

GROUPS, GROUP_SIZE = 8, 8


def sign(generator: np.random.Generator, p: float, stratum: str = "math 1", **changes) -> Sign:
    """A rollout whose prompts have pass rates around p: one reward of 0 or 1, and a format's that
    is always 1."""
    rates = generator.beta(8 * p + 1e-6, 8 * (1 - p) + 1e-6, GROUPS)
    rewards = (generator.random((GROUPS, GROUP_SIZE)) < rates[:, None]).astype(float)
    fields = {
        "rewards": {stratum: (rewards.size, float(rewards.mean()))},
        "spread": float(rewards.std()),
        "teaching": float((np.ptp(rewards, axis=1) > 0).mean()),
        "solved": float((rewards == 1).all(axis=1).mean()),
        "format": 1.0,
        "entropy": 1.0,
        "kl": 0.1,
    }
    return Sign(**{**fields, **changes})


def first_alarm(signs: Iterator[Sign]) -> tuple[int, str] | None:
    """After how many rollouts something is wrong, and what."""
    detector = Detector(Collapse())
    for count, one in enumerate(signs, 1):
        wrong = detector.add(one)
        if wrong:
            return count, wrong
    return None


def healthy(kind: str, seed: int, rollouts: int) -> Iterator[Sign]:
    """Runs in which nothing dies: pass rates that stay, rise, saturate, fall a little, or belong to
    ever harder prompts."""
    generator = np.random.default_rng(seed)
    for number in range(rollouts):
        t = number / rollouts
        if kind == "harder":
            yield sign(generator, (0.9, 0.5, 0.2)[int(3 * t)], stratum=f"math {int(3 * t)}")
        else:
            rate = {
                "stationary": 0.5,
                "rising": 0.1 + 0.8 * t,
                "saturating": 0.98 - 0.9 * np.exp(-8 * t),
                "drifting": 0.75 - 0.2 * t,
            }[kind]
            yield sign(generator, rate, entropy=float(np.exp(-5 * t)), kl=0.02 + t)


@pytest.mark.parametrize("kind", ["stationary", "rising", "saturating", "drifting", "harder"])
def test_healthy_runs_raise_no_alarm(kind: str):
    alarms = [first_alarm(healthy(kind, seed, 200)) for seed in range(10)]
    assert alarms == [None] * 10


def dying(generator: np.random.Generator, **dead) -> Iterator[Sign]:
    """100 rollouts that get better, then bad ones."""
    rate = dead.pop("rate", 0.7)
    for number in range(200):
        yield sign(generator, 0.5 + number / 500) if number < 100 else sign(generator, rate, **dead)


@pytest.mark.parametrize(
    ("dead", "within", "because"),
    [
        ({"rate": 0.05}, 20, "the mean reward fell by"),
        ({"rate": 0.5, "kl": 8.0}, 20, "the KL to the initial policy rose"),
        ({"format": 0.1}, 20, "the format reward fell from"),
        (
            {"teaching": 0.05, "solved": 0.0, "entropy": 1e-3},
            20,
            "entropy fell from 1 to 0.001 nats:",
        ),
    ],
)
def test_each_way_to_die_is_seen_and_named(dead: dict, within: int, because: str):
    for seed in range(5):
        found = first_alarm(dying(np.random.default_rng(seed), **dead))
        assert found is not None
        count, wrong = found
        assert 100 < count <= 100 + within
        assert because in wrong


def test_a_policy_that_solved_everything_or_never_learned_anything_is_not_dying():
    """All groups are right, and therefore equal, and the entropy is gone; or what cannot be learned
    from does no harm either."""
    dead = {"rate": 1.0, "teaching": 0.0, "solved": 1.0, "entropy": 1e-4}
    assert first_alarm(dying(np.random.default_rng(0), **dead)) is None
    generator = np.random.default_rng(0)
    assert first_alarm(sign(generator, 0.0, teaching=0.0, solved=0.0) for _ in range(200)) is None


def test_the_best_interval_is_the_one_before_the_fall():
    detector = Detector(Collapse(window=10))
    generator = np.random.default_rng(0)
    rates = [0.3] * 20 + [0.8] * 20 + [0.1] * 20
    alarm = next(
        number for number, rate in enumerate(rates, 1) if detector.add(sign(generator, rate))
    )
    assert detector.best in (20, 30)
    assert 40 < alarm <= 50


def test_after_the_weights_were_put_back_only_new_rollouts_count():
    detector = Detector(Collapse(window=10))
    generator = np.random.default_rng(0)
    for rate in [0.8] * 20 + [0.1] * 12:
        wrong = detector.add(sign(generator, rate))
    assert wrong
    detector.put_back()
    assert not any(detector.add(sign(generator, 0.8)) for _ in range(40))
    assert any(detector.add(sign(generator, 0.1)) for _ in range(10))


def test_the_detector_sees_penalties_of_the_first_update(tmp_path: Path):
    """Every response answers where the context has no answer: 10 - 10 x 0.5, then 10 - 10."""
    anneal = {"start": 0.5, "end": 1.0, "from_step": 2, "to_step": 2}
    asked = {"context": "Ben bakes.", "grounding": "unanswerable"}
    prompts = [one.model_copy(update=asked) for one in PROMPTS]
    table = config(rewards=[{"name": "dipg", "penalties": anneal}])
    batches = batches_of(tmp_path, table, FakeScorer(alternate), prompts)
    batches.scorer = Scorer(batches.rewards, Resources({}, None))
    said = trace("Oslo", "I know this.")
    batches.sampler.completion_of = lambda tokens, _: Completion(
        list(tokens), said, True, np.full(len(tokens), -1.5, np.float32)
    )
    signs = []
    for step in range(2):
        batches.batch_at(step)
        row = {"step": step + 1, "entropy": 1.0, "kl": 0.0}
        signs.append(sign_of(batches, batches.metrics[step + 1] | row))
    batches.close()
    assert [batches.metrics[step]["reward"] for step in (1, 2)] == [5.0, 0.0]
    assert [one.rewards for one in signs] == [{"math 1": (8, 5.0)}] * 2


@pytest.mark.parametrize(("end", "totals", "seen"), [(3.0, [0.5, 0.25], 0.5), (0.0, [0.5, 1], 1.0)])
def test_the_detector_sees_rewards_with_the_weights_of_the_first_update(
    tmp_path: Path, end: float, totals: list[float], seen: float
):
    """format 1 and length 0, weights 1 and 1, then 1 and 3: the total falls from .5 to .25, and the
    policy is what it was. A weight that ends at 0 makes it rise, or fall, for then nobody asks."""
    rewards = [
        {"name": "format"},
        {"name": "length", "maximum": 9, "weight": {"start": 1.0, "end": end, "to_step": 2}},
    ]
    batches = batches_of(tmp_path, config(rewards=rewards), FakeScorer(alternate))

    class Two(FakeScorer):
        def answer(self, number: int) -> None:
            ones, weight = np.ones(8), (1, end)[number]
            length = np.full(8, 0.0 if weight else np.nan)
            self.futures[number].set_result(
                Rewards({"format": ones, "length": length}, ones / (1 + weight))
            )

    batches.scorer = Two(alternate)
    signs = []
    for step in range(2):
        batches.batch_at(step)
        row = {"step": step + 1, "entropy": 1.0, "kl": 0.0}
        signs.append(sign_of(batches, batches.metrics[step + 1] | row))
    assert [batches.metrics[step]["reward"] for step in (1, 2)] == totals
    assert [one.rewards for one in signs] == [{"math 1": (8, seen)}] * 2
