"""GRPO: group-relative policy optimization (Shao et al., 2402.03300), equal to Tunix's registered loss and advantage estimator.

    A_i = (r_i - mean(r)) / (std(r) + 1e-6)                        std with ddof = 1, over the G completions of one prompt
    L = mean_i mean_t [ -min(rho A, clip(rho, 1 - eps, 1 + eps) A) + beta (e^d - d - 1) ],   rho = pi / pi_old,  d = log pi_ref - log pi

The KL term is the paper's estimator (k3): Tunix calls it `low_var_kl` and defaults to k1, which as a loss has zero expected gradient.

What we add: completions without a reward. They are left out of their group's mean and std and of the loss, and a group with fewer than two
rewards has no advantages.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tunix.rl import algo_core
from tunix.rl.common import TrainExample

from tasks.losses.vocabulary import completion_logps, positions_of

MAX_LOG_RATIO = 20.0
"""Logarithms of ratios are clipped here, as Tunix does, so that no ratio overflows."""

SAME_REWARD = 1e-9
"""Rewards of one group that differ by no more than this are equal: rounding must not be blown up by the division by a tiny std."""


def group_advantages(rewards: np.ndarray, group_size: int) -> np.ndarray:
    """Advantages within each group of completions of one prompt.

    Args:
        rewards: (N * group_size,) rewards, the completions of one prompt side by side; NaN where a completion has no reward.

    Returns:
        (N * group_size,) float64; 0 for completions without a reward, and throughout a group whose rewards are all equal.

    Raises:
        ValueError: the number of rewards is no multiple of the group size.
    """
    if rewards.ndim != 1 or len(rewards) % group_size:
        raise ValueError(f"rewards of shape {rewards.shape} are no groups of {group_size}")
    advantages = np.zeros(len(rewards), np.float64)
    for start in range(0, len(rewards), group_size):
        rewarded = start + np.flatnonzero(~np.isnan(rewards[start : start + group_size]))
        group = rewards[rewarded].astype(np.float64)
        if len(group) >= 2 and np.ptp(group) > SAME_REWARD:
            advantages[rewarded] = algo_core.compute_advantages(group, num_generations=len(group))
    return advantages


def grpo_loss_fn(*, pad_id: int, beta: float, epsilon: float, temperature: float) -> Callable[..., tuple[jax.Array, dict[str, jax.Array]]]:
    """The loss for Tunix's rl.Trainer: `with_loss_fn(grpo_loss_fn(...), has_aux=True)`; it takes (model, train_example).

    It is Tunix's registered "grpo" loss with `low_var_kl` and the aggregation "sequence-mean-token-mean", on log-probabilities for which no
    (B, T, V) array is made, and none of the prompt's logits.

    Args:
        pad_id: of padding in the token arrays.
        beta: weight of the KL; it needs `ref_per_token_logps`.
        epsilon: the ratio is clipped to 1 - epsilon .. 1 + epsilon.
        temperature: scales the logits of every log-probability, as it does in sampling.

    Returns:
        a function of a Gemma and B responses as Tunix's TrainExample, giving the loss and metrics: `kl` is k3 averaged over tokens (0
        without a reference), `pg_clipfrac` the fraction of tokens whose ratio was clipped, `entropy` the mean entropy of the next-token
        distribution in nats, as the loss is averaged.
    """

    def loss_fn(model: Any, train_example: TrainExample) -> tuple[jax.Array, dict[str, jax.Array]]:
        mask, old, ref = train_example.completion_mask, train_example.old_per_token_logps, train_example.ref_per_token_logps
        prompt_ids, completion_ids = train_example.prompt_ids, train_example.completion_ids
        logps, entropies = _completion_logps(model, prompt_ids, completion_ids, mask, pad_id, temperature=temperature, entropy=True)
        log_ratio = logps - (jax.lax.stop_gradient(logps) if old is None else old)
        ratio = jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))
        advantages = train_example.advantages[:, None]
        free, clipped = -ratio * advantages, -jnp.clip(ratio, 1 - epsilon, 1 + epsilon) * advantages
        losses, kl = jnp.maximum(free, clipped), jnp.zeros_like(logps)
        if ref is not None:
            difference = ref - logps
            kl = jnp.exp(difference) - difference - 1
            losses = losses + beta * kl
        metrics = {
            "kl": _token_mean(kl, mask),
            "pg_clipfrac": _token_mean(clipped > free, mask),
            "entropy": _sequence_mean(entropies, mask),
        }
        return _sequence_mean(losses, mask), metrics

    return loss_fn


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


def _token_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean of (B, R) values over the tokens of the mask."""
    return jnp.sum(values * mask) / jnp.maximum(mask.sum(), 1)


def _sequence_mean(values: jax.Array, mask: jax.Array) -> jax.Array:
    """The mean over sequences, of those with tokens in the mask, of the mean of (B, R) values over their tokens."""
    lengths = mask.sum(axis=-1)
    return jnp.sum(jnp.sum(values * mask, axis=-1) / jnp.maximum(lengths, 1)) / jnp.maximum((lengths > 0).sum(), 1)
