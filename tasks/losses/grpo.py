"""GRPO: group-relative policy optimization (Shao et al., 2402.03300) with Tunix's registered loss and advantage estimator.

    A_i = (r_i - mean(r)) / (std(r) + 1e-6)                        std with ddof = 1, over the G completions of one prompt
    L = mean_i mean_t [ -min(rho A, clip(rho, 1 - eps, 1 + eps) A) + beta (e^d - d - 1) ],   rho = pi / pi_old,  d = log pi_ref - log pi

The KL term is the paper's estimator (k3): Tunix calls it `low_var_kl` and defaults to k1, which as a loss has zero expected gradient.

What we add: completions without a reward. They are left out of their group's mean and std and of the loss, and a group with fewer than two
rewards has no advantages.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from tunix.rl import common, function_registry
from tunix.rl.grpo.grpo_learner import GRPOConfig  # importing it registers Tunix's functions

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
    estimate = function_registry.get_advantage_estimator("grpo")
    advantages = np.zeros(len(rewards), np.float64)
    for start in range(0, len(rewards), group_size):
        rewarded = start + np.flatnonzero(~np.isnan(rewards[start : start + group_size]))
        group = rewards[rewarded].astype(np.float64)
        if len(group) >= 2 and np.ptp(group) > SAME_REWARD:
            advantages[rewarded] = estimate(group, num_generations=len(group))
    return advantages


def grpo_config(*, group_size: int, num_iterations: int, beta: float, epsilon: float, temperature: float) -> GRPOConfig:
    """Tunix's config with the paper's KL. `temperature` scales the logits of every log-probability, as it does in sampling."""
    config = GRPOConfig(num_generations=group_size, num_iterations=num_iterations, beta=beta, epsilon=epsilon, kl_loss_mode="low_var_kl")
    config.temperature = temperature  # no field of GRPOConfig: Tunix's GRPOLearner sets it like this, and grpo_loss_fn reads it
    return config


def grpo_loss_fn(config: GRPOConfig, pad_id: int, eos_id: int) -> Callable[..., tuple[jax.Array, dict[str, Any]]]:
    """The loss for Tunix's rl.Trainer: `with_loss_fn(grpo_loss_fn(...), has_aux=True)`; it takes (model, train_example).

    Besides the loss it returns Tunix's metrics; `kl` is k3 averaged over tokens, `pg_clipfrac` the fraction of tokens whose ratio was
    clipped, `entropy` the mean entropy of the next-token distribution in nats.
    """
    registered = function_registry.get_policy_loss_fn(config.policy_loss_fn)

    def loss_fn(model: nnx.Module, train_example: common.TrainExample) -> tuple[jax.Array, dict[str, Any]]:
        return registered(model, train_example, algo_config=config, pad_id=pad_id, eos_id=eos_id)

    return loss_fn


def token_logps_fn(model: nnx.Module, pad_id: int, eos_id: int) -> Callable[..., jax.Array]:
    """The compiled function (state, prompt_ids (B, P), completion_ids (B, R), temperature) -> (B, R) log-probabilities of the completions.

    It takes the weights as an argument: one program serves the reference, the policy of the last rollout and the current policy. There is
    one program per temperature. At padding the value is meaningless; the completion mask leaves it out.
    """
    graph, _ = nnx.split(model)

    def token_logps(state: nnx.State, prompt_ids: jax.Array, completion_ids: jax.Array, temperature: float) -> jax.Array:
        return common.compute_per_token_logps(graph, state, prompt_ids, completion_ids, pad_id, eos_id, temperature=temperature)

    return jax.jit(token_logps, static_argnums=3)
