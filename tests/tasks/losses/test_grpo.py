"""GRPO and its kin against numbers worked from their formulas; test_trl_parity.py compares them
with another author's."""

from functools import cache, partial
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from tasks.data.packing import Text
from tasks.devices.hosts import make_mesh
from tasks.losses.grpo import grpo_loss_fn
from tasks.reinforcement.rollout import (
    Aggregation,
    PolicyBatch,
    group_advantages,
    policy_batch,
    row_weights,
)
from tasks.training.trainer import Trainer
from tests.tasks.losses.bigram import EOS, PAD, VOCABULARY, Bigram, completion_logps


def test_advantages_scaled_by_the_batch_share_one_std():
    """Groups [0, 1] and [0, 3]: means .5 and 1.5, std of all four (mean 1, squares 1 0 1 4)
    sqrt(2). An abstention is in no std."""
    expected = np.array([-0.5, 0.5, -1.5, 1.5]) / (2**0.5 + 1e-6)
    found = group_advantages(np.array([0.0, 1, np.nan, 0, 3, np.nan]), 3, "batch")
    np.testing.assert_allclose(found, [*expected[:2], 0, *expected[2:], 0], rtol=1e-12)


def test_equal_rewards_have_no_advantage_even_when_rounding_differs():
    """.1 + .2 is not .3 in floating point; in float32 Tunix's estimator would turn such a
    difference into advantages of about .05."""
    rewards = np.array([0.3, 0.1 + 0.2, 0.3, 0.3, 1.0, 1.0, 1.0, 1.0])
    for scale in ("group", "none", "batch"):
        assert group_advantages(rewards, 4, scale).tolist() == [0.0] * 8


def test_a_completion_without_a_reward_is_left_out_of_its_group():
    """[1, 0, nan, 0] is the group [1, 0, 0]: mean 1/3, std .5773503. A group with one reward has
    nothing to compare with."""
    advantages = group_advantages(np.array([1.0, 0, np.nan, 0, np.nan, np.nan, 1, np.nan]), 4)
    expected = [1.154699, -0.577349, 0, -0.577349, 0, 0, 0, 0]
    np.testing.assert_allclose(advantages, expected, atol=1e-6)
    with pytest.raises(ValueError, match="no groups of 4"):
        group_advantages(np.ones(6), 4)


LOSS: dict[str, Any] = {"beta": 0.0, "epsilon": 0.2, "epsilon_high": 0.2}
PROMPTS = np.array([[PAD, 2, 3], [4, 2, 3]], np.int32)
COMPLETIONS = np.array([[4, EOS, PAD, PAD], [5, 5, 5, EOS]], np.int32)
MASK = COMPLETIONS != PAD


def example(advantages, ref=None, old=None, sampler=None, counted: Any = (True, True)):
    """Two responses, of 2 and of 4 tokens, that share a row."""
    weights = (row_weights(MASK, np.array(counted), one, 4) for one in ("sequence", "token"))
    numbers = (np.array(advantages, np.float32), *weights, ref, old, sampler)
    return policy_batch(texts(PROMPTS, COMPLETIONS), numbers, length=12, pad_id=PAD)


def texts(prompts: np.ndarray, completions: np.ndarray) -> list[Text]:
    """Without their padding."""
    return [
        (one[one != PAD].tolist(), other[other != PAD].tolist())
        for one, other in zip(prompts, completions, strict=True)
    ]


@cache
def compiled(**structure: Any) -> Any:
    """(model, batch, numbers) -> ((loss, metrics), gradients)."""

    def loss(model: Bigram, batch: PolicyBatch, numbers: dict[str, Any]) -> Any:
        return grpo_loss_fn(**LOSS | structure | numbers)(model, batch)

    return nnx.jit(nnx.value_and_grad(loss, has_aux=True))


def stepped(model, batch, *, epsilon_high=0.2, temperature=1.0, **structure) -> Any:
    """((loss, metrics), gradient of the table's transpose)."""
    numbers = {"epsilon_high": np.float32(epsilon_high), "temperature": np.float32(temperature)}
    found, gradient = compiled(**structure)(model, batch, numbers)
    return found, np.asarray(gradient["embedding"].get_value())


def grpo(model: Bigram, batch: PolicyBatch, **knobs: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
    return stepped(model, batch, **knobs)[0]


def hand_logps(model: Bigram, temperature: float = 1.0) -> np.ndarray:
    return completion_logps(model, PROMPTS, COMPLETIONS, temperature)


def test_on_policy_the_gradient_is_that_of_the_advantage_weighted_log_likelihood():
    """rho = 1, so L = -mean_i A_i and dL = -mean_i A_i mean_t dlogp: sequences count equally,
    whatever their length."""
    model = Bigram()
    (loss, metrics), gradient = stepped(model, example([1.0, -0.5]))
    assert loss == pytest.approx(-0.25)
    assert metrics["pg_clipfrac"] == 0

    def surrogate(table: jax.Array) -> jax.Array:
        logps = jax.nn.log_softmax(table)
        first = (logps[3, 4] + logps[4, EOS]) / 2
        second = (logps[3, 5] + 2 * logps[5, 5] + logps[5, EOS]) / 4
        return -(1.0 * first - 0.5 * second) / 2

    np.testing.assert_allclose(gradient.T, jax.grad(surrogate)(model.table()), atol=1e-6)


def test_the_temperature_scales_the_logits_of_the_loss_as_of_its_gradient():
    """At .7 a table T is the table T / .7 at 1, and the gradient that of T / .7 over .7."""
    sharp = Bigram()
    sharp.embedding.set_value(sharp.embedding.get_value() / 0.7)
    old = hand_logps(sharp) - [0.5, -0.5, 0.1, 0]
    batch = example([1.3, -0.6], ref=hand_logps(sharp) + 0.2, old=old)
    (loss, metrics), gradient = stepped(Bigram(), batch, beta=1.0, temperature=0.7)
    (expected, theirs), of_sharp = stepped(sharp, batch, beta=1.0)
    assert loss == pytest.approx(float(expected), rel=1e-5)
    assert 0 < metrics["pg_clipfrac"] < 1
    assert metrics["pg_clipfrac"] == pytest.approx(float(theirs["pg_clipfrac"]))
    np.testing.assert_allclose(gradient, of_sharp / 0.7, rtol=1e-4, atol=1e-6)


def test_a_completion_without_a_reward_is_left_out_of_the_loss_and_of_the_metrics():
    """Of two sequences one counts: the mean over sequences is that one's, for the policy term and
    for the KL."""
    model = Bigram()
    ref = hand_logps(model) + np.array([[0.3], [2.0]])
    loss, metrics = grpo(model, example([1.0, 0.0], ref=ref, counted=(True, False)), beta=1.0)
    assert loss == pytest.approx(-1.0 + 0.0498588, rel=1e-4)
    assert metrics["kl"] == pytest.approx(0.0498588, rel=1e-4)


def test_a_batch_in_which_nothing_counts_moves_nothing():
    model = Bigram()
    batch = example([1.0, -1.0], ref=hand_logps(model) + 1, counted=(False, False))
    (loss, metrics), gradient = stepped(model, batch, beta=1.0)
    assert loss == 0
    assert not gradient.any()
    assert all(value == 0 for value in metrics.values())


@pytest.mark.parametrize("aggregation", ["token", "sequence", "fixed"])
def test_what_does_not_count_weighs_nothing_and_takes_no_share(aggregation: Aggregation):
    """The rows that count have the loss they would have alone; so has a response without a
    token."""
    mask = np.array([[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]], bool)
    alone = row_weights(mask[[0, 2]], np.array([True, True]), aggregation, 4)
    among = row_weights(mask, np.array([True, False, True, True]), aggregation, 4)
    np.testing.assert_allclose(among / 4, [alone[0] / 2, 0, alone[1] / 2, 0], rtol=1e-6)


def ragged(aggregation: Aggregation, micro_batches: int, length: int) -> PolicyBatch:
    """Eight responses of 1 to 6 tokens, a third of them (the first ones among them) without
    weight."""
    generator = np.random.Generator(np.random.Philox(1))
    prompts = generator.integers(2, VOCABULARY, (8, 3)).astype(np.int32)
    lengths = generator.integers(1, 7, 8)
    mask = np.arange(6) < lengths[:, None]
    completions = np.where(mask, generator.integers(1, VOCABULARY, (8, 6)), PAD).astype(np.int32)
    counted = np.array([False, False, *(generator.random(6) > 0.2)])
    logps = completion_logps(Bigram(), prompts, completions)
    ref, old, sampler = (
        np.where(mask, logps + generator.normal(0, 0.3, mask.shape), 0).astype(np.float32)
        for _ in range(3)
    )
    advantages = generator.normal(size=8).astype(np.float32)
    weights = (row_weights(mask, counted, one, 6) for one in (aggregation, "token"))
    return policy_batch(
        texts(prompts, completions),
        (advantages, *weights, ref, old, sampler),
        length=length,
        pad_id=PAD,
        micro_batches=micro_batches,
    )


@pytest.mark.parametrize(
    ("aggregation", "knobs"),
    [
        ("token", {"epsilon_high": 0.28, "truncation": 1.2, "beta": 0.04}),
        ("fixed", {}),
        ("sequence", {"epsilon": 0.05, "epsilon_high": 0.1, "importance": "sequence"}),
    ],
)
def test_loss_metrics_and_gradients_are_the_same_however_responses_share_rows_and_micro_batches(
    aggregation: Aggregation, knobs: dict[str, Any]
):
    """Alone in their rows of 9 tokens, in one micro-batch; in rows of 10 and of 40, four
    micro-batches, the last of which are empty: those are not computed."""
    found = []
    for micro_batches, length in ((1, 9), (4, 10), (4, 40)):
        batch = ragged(aggregation, micro_batches, length)
        trainer = Trainer(Bigram(), optax.sgd(1.0), make_mesh(), micro_batches)
        trainer.is_wanted = lambda micro: micro.predicts.any()
        everywhere = NamedSharding(make_mesh(), PartitionSpec())
        for part in (trainer.model, trainer.optimizer):
            nnx.update(part, jax.device_put(nnx.state(part), everywhere))
        trainer.with_loss_fn(grpo_loss_fn(**LOSS | knobs), has_aux=True)
        trainer.with_gen_model_input_fn(lambda batch: {"train_example": batch})
        before = np.array(trainer.model.embedding.get_value())
        trained, _, loss, metrics, _ = trainer.train_step(*trainer.state(), batch)
        (after,) = jax.tree.leaves(trained)
        found.append((loss, metrics, before - np.asarray(after)))
    assert batch.predicts.any(axis=1).sum() <= 2, "of eight rows"
    assert np.abs(found[0][2]).max() > 0.01
    same = partial(np.testing.assert_allclose, rtol=0, atol=1e-6)
    for other in found[1:]:
        jax.tree.map(same, other, found[0])


def test_tokens_that_the_sampler_found_less_likely_weigh_more_but_no_more_than_the_cap():
    """pi_old / pi_sampler of [1.5, 3] and [.5 four times], cap 2: weights 1.5, 2 and .5; the KL is
    not weighted."""
    model = Bigram()
    gap = np.log(np.array([[1.5, 3, 1, 1], [0.5, 0.5, 0.5, 0.5]]))
    logps = hand_logps(model)
    expected = -(1.0 * (1.5 + 2) / 2 - 0.5 * 0.5) / 2
    for old in (None, logps):  # without those at the time of sampling, they are today's
        batch = example([1.0, -0.5], old=old, sampler=logps - gap)
        loss, metrics = grpo(model, batch, truncation=2.0)
        assert loss == pytest.approx(expected, rel=1e-5)
        assert metrics["is_weight"] == pytest.approx((1.5 + 2 + 4 * 0.5) / 6, rel=1e-5)
    batch = example([1.0, -0.5], ref=logps + 0.3, sampler=logps - gap)
    with_kl, _ = grpo(model, batch, truncation=2.0, beta=1.0)
    assert with_kl == pytest.approx(expected + 0.0498588, rel=1e-4)


def test_the_weights_of_truncated_importance_sampling_have_no_gradient():
    """With today's log-probabilities in the weight the gradient is still weight x A x dlogp."""
    model = Bigram()
    logps = hand_logps(model)
    batch = example([1.0, -0.5], sampler=logps - np.log(1.5))
    (_, plain), (_, weighted) = stepped(model, batch), stepped(model, batch, truncation=2.0)
    np.testing.assert_allclose(weighted, 1.5 * plain, rtol=1e-4, atol=1e-7)
