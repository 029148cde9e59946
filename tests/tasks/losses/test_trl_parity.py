"""Our losses are TRL's on the same tensors: log-probabilities, advantages, importance weights,
losses, metrics and gradients.

What TRL gives is recorded (`tests/tasks/losses/trl_losses.json`, by the version that it names) and
compared everywhere; the record itself is where TRL is installed.
"""

import json
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from tasks.losses.dpo import dpo_loss_fn
from tasks.losses.grpo import grpo_loss_fn
from tasks.losses.orpo import orpo_loss_fn
from tasks.losses.simpo import simpo_loss_fn
from tasks.reinforcement.rollout import PolicyBatch, group_advantages, row_weights
from tasks.training.pair_batches import PairBatch, stack_pairs
from tests.tasks.losses.bigram import Bigram
from tests.tasks.losses.trl_losses import GROUP, GRPO, LENGTH, PAD, PAIRS, RECORDED, rollout, table

THEIRS = json.loads(RECORDED.read_text(encoding="utf-8"))
TOLERANCE = 1e-5


def assert_equal(ours: Any, theirs: Any) -> None:
    """Numbers in trees, within TOLERANCE."""
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE), ours, theirs
    )


def stepped(loss_fn: Any, batch: Any) -> tuple[float, dict[str, float], np.ndarray]:
    """Loss, metrics and gradient on the table."""
    model = Bigram()
    model.embedding.set_value(jax.numpy.asarray(table().T))
    (loss, metrics), gradient = nnx.jit(nnx.value_and_grad(loss_fn, has_aux=True))(model, batch)
    return float(loss), metrics, np.asarray(gradient["embedding"].get_value()).T


@pytest.mark.parametrize("name", GRPO)
def test_grpo_and_its_kin_are_trls(name: str):
    """TRL divides by std + 1e-4, and averages the clip fractions of "sequence" over responses and
    not over tokens."""
    knobs = {"beta": 0.0, "epsilon": 0.2, "epsilon_high": 0.2, "truncation": None, **GRPO[name]}
    aggregation = {"dr_grpo": "fixed", "dapo": "token"}.get(knobs.pop("loss_type", ""), "sequence")
    scale, importance = (
        knobs.pop("scale_rewards", "group"),
        knobs.pop("importance_sampling_level", "token"),
    )
    drawn, theirs = rollout(), THEIRS["grpo"][name]
    advantages = group_advantages(drawn["rewards"], GROUP, scale, epsilon=1e-4)
    assert_equal(advantages, np.array(theirs["advantages"]))

    mask, everything = drawn["mask"], np.ones(len(drawn["mask"]), bool)
    prompts, completions = drawn["prompts"].astype(np.int32), drawn["completions"].astype(np.int32)
    batch = PolicyBatch(
        prompt_ids=prompts,
        prompt_mask=prompts != PAD,
        completion_ids=completions,
        completion_mask=mask,
        advantages=advantages.astype(np.float32),
        weights=row_weights(mask, everything, aggregation, LENGTH),
        token_weights=row_weights(mask, everything, "token", LENGTH),
        ref_per_token_logps=drawn["ref"],
        old_per_token_logps=drawn["old"],
        sampler_per_token_logps=drawn["sampler"],
    )
    loss, metrics, gradient = stepped(
        grpo_loss_fn(pad_id=PAD, importance=importance, **knobs), batch
    )
    assert_equal(loss, theirs["loss"])
    assert_equal(gradient, np.array(theirs["gradient"]))
    compared = {
        metric
        for metric in theirs["metrics"]
        if importance == "token" or not metric.startswith("clip")
    }
    assert_equal(
        {metric: metrics[metric] for metric in compared},
        {metric: theirs["metrics"][metric] for metric in compared},
    )


def test_the_tensors_tell_the_variants_apart():
    """Else parity would say little: ratios are clipped at both bounds, and importance weights
    truncated."""
    losses = [variant["loss"] for variant in THEIRS["grpo"].values()]
    assert (
        min(abs(a - b) for index, a in enumerate(losses) for b in losses[:index]) > 30 * TOLERANCE
    )
    for variant in THEIRS["grpo"].values():
        assert variant["metrics"]["clip_low"] > 0
        assert variant["metrics"]["clip_high"] > 0
    drawn = rollout()
    assert (
        np.exp(drawn["old"] - drawn["sampler"])[drawn["mask"]]
        > GRPO["grpo-corrected"]["truncation"]
    ).any()


LOSSES = {
    "simpo": simpo_loss_fn(beta=2.0, gamma_beta_ratio=0.4, sft_weight=0.0),
    "dpo": dpo_loss_fn(beta=0.3, label_smoothing=0.0),
    "orpo": orpo_loss_fn(lambda_orpo=0.25),
}


@pytest.mark.parametrize("name", LOSSES)
def test_preference_losses_are_trls(name: str):
    tokens, theirs = PAIRS[name], THEIRS[name]
    ids = {side: tokens[side].astype(np.int32) for side in ("prompt", "chosen", "rejected")}
    fields = {f"{side}_ids": array for side, array in ids.items()} | {
        f"{side}_mask": array != PAD for side, array in ids.items()
    }
    references = {side: tokens[side] for side in ("ref_chosen_logps", "ref_rejected_logps")}
    batch = PairBatch(**fields, **references)
    loss, metrics, gradient = stepped(
        lambda model, batch: LOSSES[name](model, stack_pairs(batch)), batch
    )
    assert_equal(loss, theirs["loss"])
    assert_equal(gradient, np.array(theirs["gradient"]))
    assert_equal({metric: metrics[metric] for metric in theirs["metrics"]}, theirs["metrics"])
