"""Group-relative policy optimization and its variants, in one loss.

    rho = pi / pi_old of a token, or (importance "sequence") exp of its logarithm's mean over the
          response
    l_t = min(C, pi_old / pi_sampler) max(-rho A, -clip(rho, 1 - eps, 1 + eps_high) A)
          + beta (e^d - d - 1),   d = log pi_ref - log pi
    L   = sum over responses of weight x sum over tokens of l_t

The papers, and the presets of a stage:

    grpo     2402.03300   A = (r - mean) / std   weight 1 / (N |o|)   eps = eps_high = .2   beta .04
    dr_grpo  2503.20783   A = r - mean           weight 1 / (N L)     eps = eps_high = .2   beta 0
    dapo     2503.14476   A = (r - mean) / std   weight 1 / sum |o|   .2, eps_high .28      beta 0
    gspo     2507.18071   A = (r - mean) / std   weight 1 / (N |o|)   3e-4, eps_high 4e-4   beta 0

(Shao et al.; Liu et al.; Yu et al.; Zheng et al., with importance "sequence")
over the N responses that count, of |o| tokens each and at most L. The host, which sees the whole
batch, computes the weights (`tasks.reinforcement.rollout.row_weights`). So every aggregation is
exact however the batch is cut into micro-batches, and what does not count (a group with equal
rewards, a response without a reward) contributes nothing, not even its KL.

The KL term is GRPO's estimator (k3): Tunix calls it `low_var_kl` and defaults to k1, which as a
loss has zero expected gradient. The first factor is truncated importance sampling (Yao et al. 2025,
"Your efficient RL framework secretly brings you off-policy RL training"), since the sampling and
the training program disagree about probabilities.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from tasks.reinforcement.rollout import PolicyBatch
from tasks.training.packed_logps import row_logps

Importance = Literal["token", "sequence"]

MAX_LOG_RATIO = 20.0
"""Log-ratios are clipped to this, as in Tunix, so that no ratio overflows."""


def grpo_loss_fn(
    *,
    beta: float,
    epsilon: float,
    epsilon_high: float,
    temperature: float = 1.0,
    importance: Importance = "token",
    truncation: float | None = None,
) -> Callable[[Any, PolicyBatch], tuple[jax.Array, dict[str, jax.Array]]]:
    """The loss of a trainer: `with_loss_fn(grpo_loss_fn(...), has_aux=True)`; it takes (model,
    train_example: PolicyBatch).

    With "token", and weights for "sequence", it is Tunix's registered "grpo" loss with `low_var_kl`
    and the aggregation "sequence-mean-token-mean", computed without a (B, T, V) array and without
    the prompt's logits.

    Args:
        beta: weight of the KL; above 0 it needs `ref_per_token_logps`.
        epsilon, epsilon_high: the ratio is clipped to 1 - epsilon .. 1 + epsilon_high.
        temperature: scales the logits of every log-probability, as in sampling.
        importance: the ratio is each token's, or the geometric mean over its response.
        truncation: C, the largest importance weight of the training program's probability over the
            sampler's; needs `sampler_per_token_logps`. None: no correction.

    Returns:
        a function of a Gemma and a batch, giving the loss and metrics, means over the tokens that
            count: `kl` (k3; with a reference), `pg_clipfrac`, `clip_low` and `clip_high` (fraction
            whose ratio was clipped, and at which bound), `entropy` of the next-token distribution
            in nats, `is_weight` (truncated importance weight; with `truncation`).
    """

    def loss_fn(model: Any, train_example: PolicyBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        batch, mask = train_example, train_example.predicts
        rows = (batch.tokens, batch.positions, batch.segments, mask)
        logps, entropies = row_logps(model, *rows, temperature=temperature, entropy=True)
        current = jax.lax.stop_gradient(logps)
        old = current if batch.old_per_token_logps is None else batch.old_per_token_logps
        difference = logps - old
        if importance == "sequence":
            difference = _over_response(difference, mask, batch.segments)
        ratio = _ratio(difference)
        clip = jnp.clip(ratio, 1 - epsilon, 1 + epsilon_high)
        free, clipped = -ratio * batch.advantages, -clip * batch.advantages
        losses = jnp.maximum(free, clipped)
        measured = {
            "pg_clipfrac": clipped > free,
            "clip_low": (clipped > free) & (ratio < 1),
            "clip_high": (clipped > free) & (ratio > 1),
            "entropy": entropies,
        }
        if truncation is not None:
            weight = jnp.minimum(_ratio(old - batch.sampler_per_token_logps), truncation)
            losses, measured["is_weight"] = losses * weight, weight
        if beta:
            d = batch.ref_per_token_logps - logps
            kl = jnp.exp(d) - d - 1  # Schulman's k3: unbiased and never negative
            losses, measured["kl"] = losses + beta * kl, kl
        metrics = {
            name: _weighted(values, mask, batch.token_weights) for name, values in measured.items()
        }
        return _weighted(losses, mask, batch.weights), metrics

    return loss_fn


def _ratio(log_ratio: jax.Array) -> jax.Array:
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def _over_response(log_ratios: jax.Array, mask: jax.Array, segments: jax.Array) -> jax.Array:
    """(N, L) -> (N, L): each token gets the mean over its response."""
    same = (segments[:, :, None] == segments[:, None, :]) & mask[:, None, :]
    sums = jnp.einsum("nlm,nm->nl", same.astype(log_ratios.dtype), log_ratios * mask)
    return sums / jnp.maximum(same.sum(axis=2), 1)


def _weighted(values: jax.Array, mask: jax.Array, weights: jax.Array) -> jax.Array:
    """The weighted sum of (N, L) values over the tokens of the mask."""
    return jnp.sum(jnp.where(mask, weights * values, 0))
