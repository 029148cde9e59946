"""Responses to train a policy on, and what the host sees of a whole batch of them: advantages and
weights.

`tasks.losses.grpo` has the formulas and papers.
"""

from typing import Any, Literal

import flax.struct
import numpy as np

Scale = Literal["group", "none", "batch"]
"""What the rewards' distances from their group's mean are divided by: the group's std, nothing, or
the batch's std (2508.08221)."""

Aggregation = Literal["sequence", "token", "fixed"]
"""What is the same for all: a response's share of the loss, a token's share, or a token's share as
if all responses were full-length."""

SAME_REWARD = 1e-9
"""Rewards of one group that differ by no more than this are equal: rounding must not be blown up by
the division by a tiny std."""


@flax.struct.dataclass(frozen=True)
class PolicyBatch:
    """B responses to train on; every array has them as its first axis.

    Attributes:
        prompt_ids, prompt_mask: (B, P) int32 and bool, left-padded.
        completion_ids, completion_mask: (B, R) int32 and bool, right-padded.
        advantages: (B,) float32, or (B, R) of each token.
        weights: (B,) float32, of one token's loss (`row_weights`); rows of weight 0 cost and
            contribute nothing.
        token_weights: (B,) float32, the same for "token": what metrics are averaged with.
        ref_per_token_logps: (B, R) float32 of the reference; None without a KL term.
        old_per_token_logps: (B, R) float32 of the policy that sampled, by the program that trains,
            at the sampling temperature. None: it is the policy that is trained now.
        sampler_per_token_logps: (B, R) float32, what the sampler said at the sampling temperature;
            None: nothing is corrected.
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


def group_advantages(
    rewards: np.ndarray, group_size: int, scale: Scale = "group", *, epsilon: float = 1e-6
) -> np.ndarray:
    """Advantages within each group of completions of one prompt: r - mean, divided by what `scale`
    says plus epsilon; std with ddof = 1.

    A completion without a reward is left out of its group's mean and of every std; with fewer than
    two rewards a group has no advantages.

    Args:
        rewards: (N * group_size,) rewards, the completions of one prompt side by side; NaN where a
            completion has no reward.
        epsilon: 1e-6 is Tunix's; TRL's is 1e-4.

    Returns:
        (N * group_size,) float64; 0 for completions without a reward, and throughout a group whose
        rewards are all equal.

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


def row_weights(
    mask: np.ndarray, counted: np.ndarray, aggregation: Aggregation, length: int
) -> np.ndarray:
    """Of each response, the weight of one of its tokens' loss, on the host.

    The loss is the mean over rows of weight x sum over tokens, so all weights have the factor B:
    then it is the same for any number of micro-batches, over which a trainer takes the mean.

    Args:
        mask: (B, R) bool: the tokens of the whole batch's responses.
        counted: (B,) bool: the responses that count.
        aggregation: "sequence" gives B / (N |o|), "token" B / sum of |o|, "fixed" B / (N length),
            over the N that count.
        length: L of "fixed", in tokens: the most a response has.

    Returns:
        (B,) float32, 0 where a response does not count or has no token.
    """
    lengths = mask.sum(axis=1) * counted
    rows = np.maximum((lengths > 0).sum(), 1)
    parts = {
        "sequence": rows * np.maximum(lengths, 1),
        "token": np.maximum(lengths.sum(), 1),
        "fixed": rows * length,
    }[aggregation]
    weights: np.ndarray = np.where(lengths > 0, len(mask) / parts, 0).astype(np.float32)
    return weights
