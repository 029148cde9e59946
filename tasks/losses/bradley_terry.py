"""Bradley-Terry loss on traces that are scored step by step.

    P(chosen over rejected) = sigma(s_w - s_l)
    L = -log sigma(s_w - s_l) + centering (s_w + s_l)^2

(Bradley & Terry 1952; for reward models, 2009.01325). Pairs do not determine a constant added to
all scores; the second term keeps it near 0 (2312.09244, equation 10, whose eta is `centering`;
TRL's `center_rewards_coefficient`).

A trace's score s is the mean of the scores of its steps and of its answer (as its last step) with
weights softmax(-scores), a soft minimum: a trace is as good as its weakest step. Let's Verify Step
by Step (2305.20050) multiplies the steps' probabilities, Math-Shepherd (2312.08935) takes the
minimum, and PURE (2504.15275) shows that a policy trained on the sum pads its traces with good
steps, and uses this soft minimum.

Pairs tell which trace is better, not which step is wrong. Where that is known
(`tasks.reward_models.steps`), each step's score is also the logit of its being right, as in Let's
Verify Step by Step. Known are the steps of a verified trace, and those of a damaged one up to its
damage.

    L += step_weight x mean over the pair's known steps of -log sigma(+-s_step)
"""

from typing import Any

import jax
import jax.numpy as jnp

from tasks.reward_models.traces import response_scores, soft_minimum


def bradley_terry_loss(chosen: jax.Array, rejected: jax.Array, centering: float) -> jax.Array:
    """(B,) scores of the chosen and of the rejected traces -> (B,) losses."""
    return -jax.nn.log_sigmoid(chosen - rejected) + centering * jnp.square(chosen + rejected)


def step_loss(scores: jax.Array, labels: jax.Array) -> jax.Array:
    """(B, T) scores and labels (1: the step is known to be right, -1: wrong, 0: unknown) -> (B,)
    means over the known steps, or 0."""
    losses = -jax.nn.log_sigmoid(labels * scores) * jnp.abs(labels)
    return losses.sum(axis=-1) / jnp.maximum(1, jnp.abs(labels).sum(axis=-1))


def bradley_terry_loss_fn(
    model: Any, pairs: dict[str, jax.Array], pad_id: int, centering: float, step_weight: float
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The mean loss over B pairs, and the curve's values: scores, margin, and the fraction of pairs
    whose chosen trace scores higher.

    Args:
        model: a Gemma with a scalar head.
        pairs: prompt_ids (B, P); of `chosen` and `rejected` each _ids (B, R), _ends (B, R) bool,
            _labels (B, R) int8: see `step_loss`.
    """
    ids, ends = (
        jnp.concatenate([pairs[f"chosen_{name}"], pairs[f"rejected_{name}"]])
        for name in ("ids", "ends")
    )
    scores = response_scores(model, jnp.tile(pairs["prompt_ids"], (2, 1)), ids, pad_id)
    chosen, rejected = jnp.split(soft_minimum(scores, ends), 2)
    losses = bradley_terry_loss(chosen, rejected, centering)
    if step_weight:
        labels = jnp.concatenate([pairs["chosen_labels"], pairs["rejected_labels"]], axis=1).astype(
            jnp.float32
        )
        losses += step_weight * step_loss(jnp.concatenate(jnp.split(scores, 2), axis=1), labels)
    metrics = {
        "rewards/chosen": chosen.mean(),
        "rewards/rejected": rejected.mean(),
        "rewards/margin": (chosen - rejected).mean(),
        "rewards/accuracy": (chosen > rejected).mean(),
    }
    return losses.mean(), metrics
