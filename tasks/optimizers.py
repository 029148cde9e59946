"""Optimizers: AdamW, and Muon for the weight matrices, on one warm-up and cosine schedule."""

from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, muon

from schemas.training import OptimizerConfig

_EINSUM_AXES = {
    "attn_vec_einsum": MuonDimensionNumbers((0, 1), (2,)),  # (N, H, D): heads in, features out
    "qkv_einsum": MuonDimensionNumbers((2,), (0, 1, 3)),  # (3, N, D, H)
    "kv_einsum": MuonDimensionNumbers((2,), (0, 1, 3)),  # (2, K, D, H)
    "q_einsum": MuonDimensionNumbers((1,), (0, 2)),  # (N, D, H)
}
"""Which axes of an attention weight are its inputs and its outputs: to Muon it is one matrix."""


def learning_rate_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Step -> learning rate: linear warm-up, then cosine decay over the rest of `steps`."""
    warmup = max(1, round(steps * config.warmup_fraction))
    start = config.learning_rate / (warmup + 1)  # no wasted first step at 0
    end = config.learning_rate * config.final_fraction
    return optax.warmup_cosine_decay_schedule(start, config.learning_rate, warmup, max(steps, warmup + 1), end)


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Global-norm clipping, then AdamW, or Muon on matrices and AdamW on the rest, with warm-up and cosine decay over `steps`."""
    schedule = learning_rate_schedule(config, steps)
    clip = optax.clip_by_global_norm(config.max_grad_norm)
    if config.muon_learning_rate is None:
        return optax.chain(clip, optax.adamw(schedule, b1=config.b1, b2=config.b2, weight_decay=config.weight_decay))
    scale = config.muon_learning_rate / config.learning_rate
    return optax.chain(
        clip,
        muon(
            lambda step: scale * schedule(step),
            weight_decay=config.weight_decay,
            adam_b1=config.b1,
            adam_b2=config.b2,
            adam_weight_decay=config.weight_decay,
            adam_learning_rate=schedule,
            muon_weight_dimension_numbers=_matrices,
        ),
    )


def _matrices(weights: Any) -> Any:
    """For each weight the axes of its matrix, or None for AdamW: embeddings and norms are no linear maps, adapters no whole ones."""

    def axes(path: Any, weight: Any) -> MuonDimensionNumbers | None:
        name = jax.tree_util.keystr(path)
        if "embedding" in name or "lora" in name or weight.ndim < 2:
            return None
        return next((numbers for part, numbers in _EINSUM_AXES.items() if part in name), MuonDimensionNumbers((0,), (1,)))

    return jax.tree_util.tree_map_with_path(axes, weights)
