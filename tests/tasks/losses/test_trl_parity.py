"""Our losses are TRL's on the same tensors: advantages, losses, metrics and gradients.

trl_losses.json has the tensors (`given`) and what the trainers of the TRL that it names made of
them, their models a table of logits; `trl_losses.py` in this folder's history recorded it.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from tasks.data.packing import Shape
from tasks.losses.dpo import dpo_loss_fn
from tasks.losses.grpo import grpo_loss_fn
from tasks.losses.orpo import orpo_loss_fn
from tasks.losses.simpo import simpo_loss_fn
from tasks.reinforcement.rollout import group_advantages, policy_batch, row_weights
from tasks.training.pair_batches import mean_over_pairs, pair_batch
from tests.tasks.losses.bigram import PAD, Bigram

THEIRS = json.loads(Path(__file__).with_name("trl_losses.json").read_text(encoding="utf-8"))
GIVEN = THEIRS["given"]
TOLERANCE = 1e-5


def assert_equal(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def stepped(loss_fn: Any, batch: Any, theirs: dict[str, Any]) -> dict[str, float]:
    """Compares loss and gradient on the table; returns the metrics."""
    model = Bigram()
    model.embedding.set_value(jax.numpy.asarray(GIVEN["table"], np.float32).T)
    (loss, metrics), gradient = nnx.jit(nnx.value_and_grad(loss_fn, has_aux=True))(model, batch)
    assert_equal(loss, theirs["loss"])
    assert_equal(np.asarray(gradient["embedding"].get_value()).T, theirs["gradient"])
    return metrics


@pytest.mark.parametrize("name", GIVEN["variants"])
def test_grpo_and_its_kin_are_trls(name: str):
    """TRL divides by std + 1e-4, and averages the clip fractions of "sequence" over responses and
    not over tokens."""
    knobs = {"beta": 0.0, "epsilon": 0.2, "epsilon_high": 0.2, **GIVEN["variants"][name]}
    aggregation = {"dr_grpo": "fixed", "dapo": "token"}.get(knobs.pop("loss_type", ""), "sequence")
    scale = knobs.pop("scale_rewards", "group")
    importance = knobs.pop("importance_sampling_level", "token")
    drawn, theirs = GIVEN["rollout"], THEIRS["grpo"][name]
    rewards = np.asarray(drawn["rewards"], np.float32)
    advantages = group_advantages(rewards, GIVEN["group"], scale, epsilon=1e-4)
    assert_equal(advantages, theirs["advantages"])

    prompts, completions = (np.asarray(drawn[key], np.int32) for key in ("prompts", "completions"))
    mask, length = np.asarray(drawn["mask"]), GIVEN["length"]
    everything = np.ones(len(mask), bool)
    weights = (row_weights(mask, everything, one, length) for one in (aggregation, "token"))
    logps = (np.asarray(drawn[key], np.float32) for key in ("ref", "old", "sampler"))
    texts = [
        (prompt[prompt != PAD].tolist(), response[there].tolist())
        for prompt, response, there in zip(prompts, completions, mask, strict=True)
    ]
    numbers = (advantages.astype(np.float32), *weights, *logps)
    length = 2 * (prompts.shape[1] + completions.shape[1])
    batch = policy_batch(texts, numbers, length=length, pad_id=PAD)
    metrics = stepped(grpo_loss_fn(importance=importance, **knobs), batch, theirs)
    for metric, value in theirs["metrics"].items():
        if importance == "token" or not metric.startswith("clip"):
            assert_equal(metrics[metric], value)


LOSSES = {
    "simpo": simpo_loss_fn(beta=2.0, gamma_beta_ratio=0.4, sft_weight=0.0),
    "dpo": dpo_loss_fn(beta=0.3, label_smoothing=0.0),
    "orpo": orpo_loss_fn(lambda_orpo=0.25),
}


@pytest.mark.parametrize("name", LOSSES)
def test_preference_losses_are_trls(name: str):
    """TRL's supervised term of ORPO is the mean over all tokens of prompts and chosen responses:
    here prompts have one token, which is not predicted, and chosen responses one length."""
    tokens, theirs = GIVEN["pairs"][name], THEIRS[name]
    prompts, *responses = (
        [[token for token in row if token != PAD] for row in tokens[side]]
        for side in ("prompt", "chosen", "rejected")
    )
    pairs = [
        tuple((prompt, list(response)) for response in both)
        for prompt, *both in zip(prompts, *responses, strict=True)
    ]
    reference = [tokens["ref_chosen_logps"], tokens["ref_rejected_logps"]]
    lengths = [len(prompt) + len(response) for pair in pairs for prompt, response in pair]
    shape = Shape(len(lengths), 2 * max(lengths))
    batch = pair_batch([pairs], shape, max(lengths), PAD, [np.array(reference, np.float32).T])
    metrics = stepped(mean_over_pairs(LOSSES[name]), batch, theirs)
    for metric, value in theirs["metrics"].items():
        assert_equal(metrics[metric], value)
