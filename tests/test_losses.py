"""SFT, SimPO and GRPO losses against numbers worked from their formulas, and against Tunix's own functions.

`Bigram` is a model whose logits for the next token are a row of a table, so that every log-probability can be computed by hand.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tunix.rl import algo_core, common
from tunix.rl.grpo.grpo_learner import GRPOConfig
from tunix.sft.dpo import dpo_trainer
from tunix.sft.peft_trainer import _default_loss_fn

from tasks.losses.cross_entropy import cross_entropy
from tasks.losses.grpo import group_advantages, grpo_loss_fn, token_logps_fn
from tasks.losses.simpo import simpo_loss, simpo_loss_fn, stack_pairs
from tasks.models.gemma import SIZES

PAD, EOS, VOCABULARY = 0, 1, 6


class Bigram(nnx.Module):
    """Hidden states are the tokens, one-hot: row v of the embedding holds the logits of v after each token."""

    def __init__(self, seed: int = 0):
        self.config = SIZES["gemma3-tiny"]
        self.embedding = nnx.Param(jax.random.normal(jax.random.key(seed), (VOCABULARY, VOCABULARY)))

    def __call__(self, tokens, positions, segments):
        return jax.nn.one_hot(tokens, VOCABULARY), None

    def table(self) -> jax.Array:
        return self.embedding.get_value().T


class TunixBigram(Bigram):
    """The same, called as Tunix calls its models."""

    def __call__(self, tokens, positions, cache, attention_mask):
        return self.table()[tokens], None


def logp(model: Bigram, before: int, token: int, temperature: float = 1.0) -> float:
    row = np.asarray(model.table()[before], np.float64) / temperature
    return float(row[token] - np.log(np.exp(row).sum()))


# SFT -----------------------------------------------------------------------------------------------------------------------------


def test_cross_entropy_and_its_gradient_are_tunixs():
    """The first token has no prediction, whatever its weight; the last row has no target."""
    generator = np.random.Generator(np.random.Philox(0))
    tokens = generator.integers(0, VOCABULARY, (3, 5)).astype(np.int32)
    mask = np.array([[1, 0, 0, 1, 1], [1, 1, 0, 0, 1], [1, 0, 0, 0, 0]], np.float32)
    places = np.zeros_like(tokens)
    stock = nnx.jit(nnx.value_and_grad(lambda model: _default_loss_fn(model, tokens, mask, places, places)))
    own = nnx.jit(nnx.value_and_grad(lambda model: cross_entropy(model, tokens, mask / mask[:, 1:].sum(), places, places)))
    (their_loss, theirs), (loss, gradient) = stock(TunixBigram()), own(Bigram())
    np.testing.assert_allclose(loss, their_loss, rtol=1e-6)
    np.testing.assert_allclose(gradient["embedding"].get_value(), theirs["embedding"].get_value(), rtol=1e-5, atol=1e-7)


# SimPO ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "rejected", "beta", "ratio", "expected"),
    [
        (-0.5, -1.0, 2.0, 0.5, 0.693147),
        (-0.5, -1.0, 2.5, 0.3, 0.474077),
        (-1.2, -0.9, 10.0, 0.5, 8.000335),
        (-0.8, -1.6, 2.0, 0.25, 0.287335),
    ],
)
def test_simpo_equals_the_formula(chosen: float, rejected: float, beta: float, ratio: float, expected: float):
    """(-.5, -1; beta 2, gamma/beta .5): 2 x .5 - 1 = 0, and -log sigma(0) = log 2."""
    assert simpo_loss(jnp.float32(chosen), jnp.float32(rejected), beta, ratio) == pytest.approx(expected, rel=1e-5)


def simpo(model: Bigram, batch: dpo_trainer.TrainingInput, ratio: float, sft_weight: float = 0.0) -> tuple[jax.Array, dict[str, jax.Array]]:
    """At beta 2."""
    return compiled_simpo(model, batch, ratio, sft_weight)


@nnx.jit
def compiled_simpo(model: Bigram, batch: dpo_trainer.TrainingInput, ratio: jax.Array, sft_weight: jax.Array):
    return simpo_loss_fn(model, stack_pairs(batch), 2.0, ratio, sft_weight)


def pairs(chosen: list[list[int]], rejected: list[list[int]], length: int = 4) -> dpo_trainer.TrainingInput:
    def padded(rows: list[list[int]]) -> np.ndarray:
        return np.array([row + [PAD] * (length - len(row)) for row in rows], np.int32)

    prompts = np.array([[PAD, 2, 3]] * len(chosen), np.int32)
    arrays = {"prompt": prompts, "chosen": padded(chosen), "rejected": padded(rejected)}
    return dpo_trainer.TrainingInput(
        **{f"{name}_ids": array for name, array in arrays.items()}, **{f"{name}_mask": array != PAD for name, array in arrays.items()}
    )


def test_simpo_divides_by_each_response_length():
    """Chosen 4 1 after 3: (logp(4|3) + logp(1|4)) / 2. Rejected 5 5 5 1: the mean of four."""
    model = Bigram()
    loss, metrics = simpo(model, pairs([[4, EOS]], [[5, 5, 5, EOS]]), ratio=0.3)
    chosen = (logp(model, 3, 4) + logp(model, 4, EOS)) / 2
    rejected = (logp(model, 3, 5) + 2 * logp(model, 5, 5) + logp(model, 5, EOS)) / 4
    assert loss == pytest.approx(np.log1p(np.exp(-(2 * (chosen - rejected) - 0.6))), rel=1e-5)
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(
        {
            "rewards/chosen": 2 * chosen,
            "rewards/rejected": 2 * rejected,
            "rewards/margin": 2 * (chosen - rejected),
            "rewards/accuracy": float(chosen > rejected),
            "log_probs/chosen": chosen,
            "log_probs/rejected": rejected,
        },
        rel=1e-5,
    )


def test_the_supervised_term_is_the_negative_log_likelihood_of_the_chosen_response():
    batch = pairs([[4, EOS], [2, 5, EOS]], [[5, 5, 5, EOS], [3, EOS]])
    without, metrics = simpo(Bigram(), batch, ratio=0.5)
    with_term, _ = simpo(Bigram(), batch, ratio=0.5, sft_weight=0.3)
    assert with_term - without == pytest.approx(-0.3 * float(metrics["log_probs/chosen"]), rel=1e-4)


def test_padding_does_not_change_simpo():
    model, chosen, rejected = Bigram(), [[4, EOS], [2, 5, EOS]], [[5, 5, 5, EOS], [3, EOS]]
    short, _ = simpo(model, pairs(chosen, rejected, 4), ratio=0.5)
    long, _ = simpo(model, pairs(chosen, rejected, 9), ratio=0.5)
    assert short == pytest.approx(float(long), rel=1e-6)


def test_pairs_are_stacked_for_one_forward_pass():
    rows = stack_pairs(pairs([[4, EOS], [2, 5, EOS]], [[5, 5, 5, EOS], [3, EOS]]))
    assert rows.tokens.tolist() == [[0, 2, 3, 4, 1, 0, 0], [0, 2, 3, 2, 5, 1, 0], [0, 2, 3, 5, 5, 5, 1], [0, 2, 3, 3, 1, 0, 0]]
    assert rows.segments.tolist() == [[0, 1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1, 0], [0, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 0, 0]]
    assert rows.positions.tolist() == [[0, 0, 1, 2, 3, 3, 3], [0, 0, 1, 2, 3, 4, 4], [0, 0, 1, 2, 3, 4, 5], [0, 0, 1, 2, 3, 3, 3]]
    np.testing.assert_array_equal(rows.completion_mask, rows.segments[:, 3:] > 0)


def test_simpo_gradient_raises_the_chosen_and_lowers_the_rejected_response():
    """One token each: dL/d(chosen mean) = -beta sigma(-(beta m - gamma)); at m = 0, beta 2, gamma 1 that is -2 sigma(1)."""
    gradient = jax.grad(lambda c, r: simpo_loss(c, r, 2.0, 0.5), argnums=(0, 1))(-1.0, -1.0)
    assert gradient == pytest.approx((-2 / (1 + np.exp(-1)), 2 / (1 + np.exp(-1))), rel=1e-5)
    table = nnx.jit(nnx.grad(lambda model, batch: simpo(model, batch, ratio=0.5)[0]))(Bigram(), pairs([[4, EOS]], [[5, EOS]]))["embedding"]
    assert table[4, 3] < 0 < table[5, 3]  # after the prompt's last token: more of 4, less of 5


# GRPO ----------------------------------------------------------------------------------------------------------------------------


def test_advantages_equal_the_worked_numbers():
    """[1,0,1,0]: mean .5, std (ddof 1) sqrt(1/3) = .5773503: +-.5 / .5773513. [1,0,0,0]: mean .25, std .5."""
    np.testing.assert_allclose(group_advantages(np.array([1.0, 0, 1, 0]), 4), [0.8660239, -0.8660239, 0.8660239, -0.8660239], atol=1e-7)
    np.testing.assert_allclose(group_advantages(np.array([1.0, 0, 0, 0]), 4), [1.499997, -0.499999, -0.499999, -0.499999], atol=1e-6)


def test_advantages_equal_tunix_on_groups_without_abstentions():
    rewards = np.random.Generator(np.random.Philox(0)).normal(size=40)
    np.testing.assert_allclose(group_advantages(rewards, 8), algo_core.compute_advantages(rewards, 8), rtol=1e-12)


def test_equal_rewards_have_no_advantage_even_when_rounding_differs():
    """.1 + .2 is not .3 in floating point; in float32 Tunix's estimator would turn such a difference into advantages of about .05."""
    rewards = np.array([0.3, 0.1 + 0.2, 0.3, 0.3, 1.0, 1.0, 1.0, 1.0])
    assert group_advantages(rewards, 4).tolist() == [0.0] * 8


def test_a_completion_without_a_reward_is_left_out_of_its_group():
    """[1, 0, nan, 0] is the group [1, 0, 0]: mean 1/3, std .5773503. A group with one reward has nothing to compare with."""
    advantages = group_advantages(np.array([1.0, 0, np.nan, 0, np.nan, np.nan, 1, np.nan]), 4)
    np.testing.assert_allclose(advantages, [1.154699, -0.577349, 0, -0.577349, 0, 0, 0, 0], atol=1e-6)


def test_rewards_that_fill_no_group_are_refused():
    with pytest.raises(ValueError, match="no groups of 4"):
        group_advantages(np.ones(6), 4)


LOSS: dict[str, Any] = {"pad_id": PAD, "beta": 0.0, "epsilon": 0.2, "temperature": 1.0}


PROMPTS = np.array([[PAD, 2, 3], [4, 2, 3]], np.int32)
COMPLETIONS = np.array([[4, EOS, PAD, PAD], [5, 5, 5, EOS]], np.int32)


def example(advantages: list[float], ref: np.ndarray | None = None, old: np.ndarray | None = None, rewarded=(True, True)):
    return common.TrainExample(
        prompt_ids=PROMPTS,
        prompt_mask=PROMPTS != PAD,
        completion_ids=COMPLETIONS,
        completion_mask=(COMPLETIONS != PAD) & np.array(rewarded)[:, None],
        advantages=np.array(advantages, np.float32),
        ref_per_token_logps=ref,
        old_per_token_logps=old,
    )


def grpo(model: Bigram, batch: common.TrainExample, **changes: float) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Compiled."""
    return nnx.jit(grpo_loss_fn(**LOSS | changes))(model, batch)


def hand_logps(model: Bigram, temperature: float = 1.0) -> np.ndarray:
    """(2, 4) log-probabilities of COMPLETIONS, whose prompts both end in 3; 0 at padding."""
    out = np.zeros(COMPLETIONS.shape)
    for row, tokens in enumerate(COMPLETIONS):
        for index, (before, token) in enumerate(zip([3, *tokens[:-1]], tokens, strict=True)):
            out[row, index] = 0.0 if token == PAD else logp(model, before, token, temperature)
    return out


def test_token_logps_are_those_of_the_completions_at_the_temperature_by_one_program():
    model = Bigram()
    program = token_logps_fn(model, PAD)
    for temperature in (1.0, 0.7):
        got = program(nnx.state(model), PROMPTS, COMPLETIONS, np.float32(temperature))
        np.testing.assert_allclose(got, hand_logps(model, temperature), rtol=1e-5)
    other = program(nnx.state(Bigram(1)), PROMPTS, COMPLETIONS, np.float32(1))
    np.testing.assert_allclose(other, hand_logps(Bigram(1)), rtol=1e-5)
    assert program._cache_size() == 1


@pytest.mark.parametrize(
    ("old", "ref", "rewarded"), [(True, True, (True, True)), (True, True, (True, False)), (False, False, (True, True))]
)
def test_loss_metrics_and_gradients_are_those_of_tunixs_registered_loss(old: bool, ref: bool, rewarded: tuple[bool, bool]):
    """With ratios on both sides of the clip, and at a temperature that is not 1."""
    theirs, ours = TunixBigram(), Bigram()
    reference = hand_logps(ours, 0.7) + np.random.Generator(np.random.Philox(3)).normal(0, 0.4, COMPLETIONS.shape)
    batch = example([1.3, -0.6], reference if ref else None, hand_logps(ours, 0.7) - [0.5, -0.5, 0.1, 0] if old else None, rewarded)
    config = GRPOConfig(beta=0.3, epsilon=0.2, kl_loss_mode="low_var_kl")
    config.temperature = 0.7  # no field of GRPOConfig: Tunix's learner sets it like this
    stock = nnx.jit(nnx.value_and_grad(lambda model, batch: algo_core.grpo_loss_fn(model, batch, config, PAD, EOS), has_aux=True))
    own = nnx.jit(nnx.value_and_grad(grpo_loss_fn(pad_id=PAD, beta=0.3, epsilon=0.2, temperature=0.7), has_aux=True))
    (their_loss, their_metrics), their_gradient = stock(theirs, batch)
    (loss, metrics), gradient = own(ours, batch)
    np.testing.assert_allclose(loss, their_loss, rtol=1e-5)
    assert metrics == {name: pytest.approx(float(their_metrics[name]), rel=1e-5, abs=1e-7) for name in ("kl", "pg_clipfrac", "entropy")}
    assert not old or 0 < metrics["pg_clipfrac"] < 1
    np.testing.assert_allclose(gradient["embedding"].get_value(), their_gradient["embedding"].get_value(), rtol=1e-4, atol=1e-6)


def test_on_policy_the_gradient_is_that_of_the_advantage_weighted_log_likelihood():
    """rho = 1, so L = -mean_i A_i and dL = -mean_i A_i mean_t dlogp: sequences count equally, whatever their length."""
    model = Bigram()
    step = nnx.jit(nnx.value_and_grad(grpo_loss_fn(**LOSS), has_aux=True))
    (loss, metrics), gradient = step(model, example([1.0, -0.5]))
    assert loss == pytest.approx(-0.25)
    assert metrics["pg_clipfrac"] == 0

    def surrogate(table: jax.Array) -> jax.Array:
        logps = jax.nn.log_softmax(table)
        first = (logps[3, 4] + logps[4, EOS]) / 2
        second = (logps[3, 5] + 2 * logps[5, 5] + logps[5, EOS]) / 4
        return -(1.0 * first - 0.5 * second) / 2

    np.testing.assert_allclose(gradient["embedding"].get_value().T, jax.grad(surrogate)(model.table()), atol=1e-6)


def test_the_ratio_is_clipped_on_the_side_that_would_gain():
    """Old log-probabilities lower by log 1.5 make rho 1.5 everywhere: with A = 1 the clipped 1.2 counts, with A = -1 the full 1.5."""
    model = Bigram()
    loss, metrics = grpo(model, example([1.0, -1.0], old=hand_logps(model) - np.log(1.5)))
    assert loss == pytest.approx((-1.2 + 1.5) / 2, rel=1e-5)
    assert metrics["pg_clipfrac"] == pytest.approx(2 / 6)  # the two tokens of the first sequence, of six


def test_the_kl_is_the_papers_estimator():
    """ref = policy + .3 gives e^.3 - .3 - 1 = .0498588 at every token; Tunix's default (k1) would give -.3."""
    model = Bigram()
    loss, metrics = grpo(model, example([0.0, 0.0], ref=hand_logps(model) + 0.3), beta=0.5)
    assert metrics["kl"] == pytest.approx(0.0498588, rel=1e-4)
    assert loss == pytest.approx(0.5 * 0.0498588, rel=1e-4)


def test_a_completion_without_a_reward_is_left_out_of_the_loss():
    """Of two sequences one counts: the mean over sequences is that one's, for the policy term and for the KL."""
    model = Bigram()
    ref = hand_logps(model) + np.array([[0.3], [2.0]])
    loss, _ = grpo(model, example([1.0, 0.0], ref=ref, rewarded=(True, False)), beta=1.0)
    assert loss == pytest.approx(-1.0 + 0.0498588, rel=1e-4)


def test_losses_average_over_tokens_then_over_sequences():
    """KLs of [1, 2] and [3, 3, 3, 7], from references that far off: the loss is (1.5 + 4) / 2, the logged KL the mean of the six."""
    model, wanted = Bigram(), np.array([[1.0, 2, 0, 0], [3, 3, 3, 7]])
    d = np.linspace(0, 5, 100_001)
    ref = hand_logps(model) + np.interp(wanted, np.exp(d) - d - 1, d)
    loss, metrics = grpo(model, example([0.0, 0.0], ref=ref), beta=1.0)
    assert loss == pytest.approx(((1 + 2) / 2 + (3 + 3 + 3 + 7) / 4) / 2, rel=1e-4)
    assert metrics["kl"] == pytest.approx((1 + 2 + 3 + 3 + 3 + 7) / 6, rel=1e-4)
