"""Group-relative policy optimization and its kin, one loss for all of them.

    rho = pi / pi_old of a token, or (importance "sequence") exp of its logarithm's mean over the response
    l_t = min(C, pi_old / pi_sampler) max(-rho A, -clip(rho, 1 - eps, 1 + eps_high) A) + beta (e^d - d - 1),   d = log pi_ref - log pi
    L   = sum over responses of weight x sum over tokens of l_t

What the papers say, and what a stage's presets are:

    grpo     Shao et al., 2402.03300   A = (r - mean) / std     weight 1 / (N |o|)     eps = eps_high = .2            beta .04
    dr_grpo  Liu et al., 2503.20783    A = r - mean             weight 1 / (N L)       eps = eps_high = .2            beta 0
    dapo     Yu et al., 2503.14476     A = (r - mean) / std     weight 1 / sum |o|     eps .2, eps_high .28           beta 0
    gspo     Zheng et al., 2507.18071  A = (r - mean) / std     weight 1 / (N |o|)     eps 3e-4, eps_high 4e-4, "sequence"   beta 0

over the N responses that count, of |o| tokens each and at most L. The weights are the host's, who sees the whole batch (`row_weights`): so
every aggregation is exact, however the batch is cut into micro-batches, and what does not count (a group that teaches nothing, a response
without a reward) weighs nothing, its KL included.

The KL term is GRPO's estimator (k3): Tunix calls it `low_var_kl` and defaults to k1, which as a loss has zero expected gradient. The first
factor is truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"): tokens
are sampled by another program than the one that trains, and the two disagree.
"""

from collections.abc import Callable
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tasks.losses.vocabulary import completion_logps, positions_of

Scale = Literal["group", "none", "batch"]
"""What the rewards' distances from their group's mean are divided by: the group's std, nothing, or the batch's std (2508.08221)."""

Aggregation = Literal["sequence", "token", "fixed"]
"""What is the same for all: a response's share of the loss, a token's share, or a token's share as if all responses were full-length."""

Importance = Literal["token", "sequence"]

MAX_LOG_RATIO = 20.0
"""Logarithms of ratios are clipped here, as Tunix does, so that no ratio overflows."""

SAME_REWARD = 1e-9
"""Rewards of one group that differ by no more than this are equal: rounding must not be blown up by the division by a tiny std."""


@flax.struct.dataclass(frozen=True)
class PolicyBatch:
    """B responses to train on; every array has them as its first axis.

    Attributes:
        prompt_ids, prompt_mask: (B, P) int32 and bool, left-padded.
        completion_ids, completion_mask: (B, R) int32 and bool, right-padded.
        advantages: (B,) float32, or (B, R) of each token.
        weights: (B,) float32, of one token's loss (`row_weights`); rows of weight 0 cost and contribute nothing.
        token_weights: (B,) float32, the same for "token": what metrics are averaged with.
        ref_per_token_logps: (B, R) float32 of the reference; None without a KL term.
        old_per_token_logps: (B, R) float32 of the policy that sampled, by the program that trains, at the sampling temperature. None: it is
            the policy that is trained now.
        sampler_per_token_logps: (B, R) float32, what the sampler said at the sampling temperature; None: nothing is corrected.
    """

    prompt_ids: Any
    prompt_mask: Any
    completion_ids: Any
    completion_mask: Any
    advantages: Any
    weights: Any
    token_weights: Any
    ref_per_token_logps: Any = None
    old_per_token_logps: Any = None
    sampler_per_token_logps: Any = None


def group_advantages(rewards: np.ndarray, group_size: int, scale: Scale = "group", *, epsilon: float = 1e-6) -> np.ndarray:
    """Advantages within each group of completions of one prompt: r - mean, divided by what `scale` says plus epsilon; std with ddof = 1.

    A completion without a reward is left out of its group's mean and of every std; with fewer than two rewards a group has no advantages.

    Args:
        rewards: (N * group_size,) rewards, the completions of one prompt side by side; NaN where a completion has no reward.
        epsilon: 1e-6 is Tunix's; TRL's is 1e-4.

    Returns:
        (N * group_size,) float64; 0 for completions without a reward, and throughout a group whose rewards are all equal.

    Raises:
        ValueError: the number of rewards is no multiple of the group size.
    """
    if rewards.ndim != 1 or len(rewards) % group_size:
        raise ValueError(f"rewards of shape {rewards.shape} are no groups of {group_size}")
    advantages = np.zeros(len(rewards), np.float64)
    given = rewards[~np.isnan(rewards)].astype(np.float64)
    for start in range(0, len(rewards), group_size):
        rewarded = start + np.flatnonzero(~np.isnan(rewards[start : start + group_size]))
        group = rewards[rewarded].astype(np.float64)
        if len(group) < 2 or np.ptp(group) <= SAME_REWARD:
            continue
        advantages[rewarded] = group - group.mean()
        if scale != "none":
            advantages[rewarded] /= np.std(group if scale == "group" else given, ddof=1) + epsilon
    return advantages


def row_weights(mask: np.ndarray, counted: np.ndarray, aggregation: Aggregation, length: int) -> np.ndarray:
    """Of each response, the weight of one of its tokens' loss, on the host.

    The loss is the mean over rows of weight x sum over tokens, so all weights have the factor B: then it is the same for any number of
    micro-batches, over which a trainer takes the mean.

    Args:
        mask: (B, R) bool: the tokens of the whole batch's responses.
        counted: (B,) bool: the responses that count.
        aggregation: "sequence" gives B / (N |o|), "token" B / sum of |o|, "fixed" B / (N length), over the N that count.
        length: L of "fixed", in tokens: the most a response has.

    Returns:
        (B,) float32, 0 where a response does not count or has no token.
    """
    lengths = mask.sum(axis=1) * counted
    rows = np.maximum((lengths > 0).sum(), 1)
    parts = {"sequence": rows * np.maximum(lengths, 1), "token": np.maximum(lengths.sum(), 1), "fixed": rows * length}[aggregation]
    weights: np.ndarray = np.where(lengths > 0, len(mask) / parts, 0).astype(np.float32)
    return weights


def grpo_loss_fn(
    *,
    pad_id: int,
    beta: float,
    epsilon: float,
    epsilon_high: float | None = None,
    temperature: float = 1.0,
    importance: Importance = "token",
    truncation: float | None = None,
) -> Callable[[Any, PolicyBatch], tuple[jax.Array, dict[str, jax.Array]]]:
    """The loss for Tunix's rl.Trainer: `with_loss_fn(grpo_loss_fn(...), has_aux=True)`; it takes (model, train_example: PolicyBatch).

    With "token", and weights for "sequence", it is Tunix's registered "grpo" loss with `low_var_kl` and the aggregation
    "sequence-mean-token-mean", on log-probabilities for which no (B, T, V) array is made, and none of the prompt's logits.

    Args:
        pad_id: of padding in the token arrays.
        beta: weight of the KL; above 0 it needs `ref_per_token_logps`.
        epsilon, epsilon_high: the ratio is clipped to 1 - epsilon .. 1 + epsilon_high; None: epsilon on both sides.
        temperature: scales the logits of every log-probability, as it does in sampling.
        importance: the ratio is each token's, or the geometric mean over its response.
        truncation: C, the most that a token weighs for being likelier here than at the sampler; it needs `sampler_per_token_logps`. None
            corrects nothing.

    Returns:
        a function of a Gemma and a batch, giving the loss and metrics, means over the tokens that count: `kl` (k3; with a reference),
        `pg_clipfrac`, `clip_low` and `clip_high` (fraction whose ratio was clipped, and at which bound), `entropy` of the next-token
        distribution in nats, `is_weight` (truncated importance weight; with `truncation`).
    """
    high = epsilon if epsilon_high is None else epsilon_high

    def loss_fn(model: Any, train_example: PolicyBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        batch = train_example
        mask = batch.completion_mask & (batch.weights != 0)[:, None]
        logps, entropies = _completion_logps(
            model, batch.prompt_ids, batch.completion_ids, mask, pad_id, temperature=temperature, entropy=True
        )
        current = jax.lax.stop_gradient(logps)
        old = current if batch.old_per_token_logps is None else batch.old_per_token_logps
        ratio = _ratio(_over_response(logps - old, mask) if importance == "sequence" else logps - old)
        advantages = batch.advantages if batch.advantages.ndim == 2 else batch.advantages[:, None]
        free, clipped = -ratio * advantages, -jnp.clip(ratio, 1 - epsilon, 1 + high) * advantages
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
            kl = k3(batch.ref_per_token_logps - logps)
            losses, measured["kl"] = losses + beta * kl, kl
        metrics = {name: _weighted(values, mask, batch.token_weights) for name, values in measured.items()}
        return _weighted(losses, mask, batch.weights), metrics

    return loss_fn


def k3(difference: jax.Array) -> jax.Array:
    """Schulman's estimate of KL(pi || ref) at a sampled token from d = log ref - log pi: e^d - d - 1, unbiased and never negative."""
    return jnp.exp(difference) - difference - 1


def token_logps_fn(model: Any, pad_id: int) -> Any:
    """The compiled function (state, prompt_ids (B, P), completion_ids (B, R), temperature) -> (B, R) log-probabilities of the completions.

    It takes the weights and the temperature as arguments: one program serves the reference, the policy of the last rollout and the current
    policy. 0 at padding.
    """
    graph, _ = nnx.split(model)

    def token_logps(state: nnx.State, prompt_ids: jax.Array, completion_ids: jax.Array, temperature: jax.Array) -> Any:
        model = nnx.merge(graph, state)
        return _completion_logps(model, prompt_ids, completion_ids, completion_ids != pad_id, pad_id, temperature=temperature)

    return jax.jit(token_logps)


def _completion_logps(model: Any, prompt_ids: jax.Array, completion_ids: jax.Array, mask: jax.Array, pad_id: int, **options: Any) -> Any:
    """`completion_logps` of prompts (B, P), left-padded, and completions (B, R), right-padded."""
    tokens = jnp.concatenate([prompt_ids, completion_ids], axis=1)
    real = tokens != pad_id
    return completion_logps(model, tokens, positions_of(real), real.astype(jnp.int32), mask, **options)


def _ratio(log_ratio: jax.Array) -> jax.Array:
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def _over_response(log_ratios: jax.Array, mask: jax.Array) -> jax.Array:
    """(B, R) -> (B, 1) means over the tokens of each response."""
    return jnp.sum(log_ratios * mask, axis=1, keepdims=True) / jnp.maximum(mask.sum(axis=1, keepdims=True), 1)


def _weighted(values: jax.Array, mask: jax.Array, weights: jax.Array) -> jax.Array:
    """The mean over rows of weight (B,) x sum of the (B, R) or (B, 1) values over tokens of the mask."""
    return jnp.mean(weights * jnp.sum(jnp.where(mask, values, 0), axis=1))
