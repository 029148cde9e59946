"""Optimizers: AdamW, and Muon for the weight matrices, on one warm-up and cosine schedule."""

from typing import Any

import jax
import optax
from optax.contrib import MuonDimensionNumbers, muon

from schemas.trainer_config import OptimizerConfig
from tasks.models.decoder_layer import PROJECTIONS


def learning_rate_schedule(config: OptimizerConfig, steps: int) -> optax.Schedule:
    """Step -> learning rate: linear warm-up, then cosine decay over the rest of `steps`."""
    warmup = max(1, round(steps * config.warmup_fraction))
    start = config.learning_rate / (warmup + 1)  # no wasted first step at 0
    end = config.learning_rate * config.final_fraction
    return optax.warmup_cosine_decay_schedule(
        start, config.learning_rate, warmup, max(steps, warmup + 1), end
    )


def make_optimizer(config: OptimizerConfig, steps: int) -> optax.GradientTransformation:
    """Global-norm clipping, then AdamW, or Muon on matrices and AdamW on the rest, with warm-up and
    cosine decay over `steps`."""
    schedule = learning_rate_schedule(config, steps)
    b1, b2, decay = config.b1, config.b2, config.weight_decay
    update: optax.GradientTransformation
    if config.muon_learning_rate is None:
        update = optax.adamw(schedule, b1=b1, b2=b2, weight_decay=decay)
    else:
        scale = config.muon_learning_rate / config.learning_rate
        update = muon(
            lambda step: scale * schedule(step),
            weight_decay=decay,
            adam_b1=b1,
            adam_b2=b2,
            adam_weight_decay=decay,
            adam_learning_rate=schedule,
            muon_weight_dimension_numbers=_matrices,
        )
    return optax.chain(optax.clip_by_global_norm(config.max_grad_norm), update)


def _matrices(weights: Any) -> Any:
    """The matrix axes of each weight for Muon, or None for AdamW: embeddings and norms are no
    linear maps, adapters only factors of one."""

    def axes(path: Any, weight: Any) -> MuonDimensionNumbers | None:
        name = next((one for key in path if (one := getattr(key, "key", "")) in PROJECTIONS), None)
        if name is None:
            return None
        first_output = 1 + len(PROJECTIONS[name][0])  # axis 0: each layer has a matrix of its own
        return MuonDimensionNumbers(
            tuple(range(1, first_output)), tuple(range(first_output, weight.ndim))
        )

    return jax.tree_util.tree_map_with_path(axes, weights)
