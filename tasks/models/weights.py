"""Makes models without a checkpoint (random weights, or shapes alone), and widens weights for
training."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tasks.models.decoder import Gemma, GemmaConfig, weight_shapes
from tasks.models.decoder_layer import PROJECTIONS


def initialise(config: GemmaConfig, seed: int) -> Gemma:
    """A model with random weights: a pure function of (config, seed).

    Embeddings are N(0, 1/D) (the model multiplies them by sqrt(D)), projections N(0, 1/fan_in),
    norm scales 0 (Gemma's scale is 1 + w), except those of queries and keys: 0.4, so that a head of
    32 dimensions can already prefer one token among a hundred.
    """
    generator = np.random.Generator(np.random.Philox(seed))
    weights = {}
    for name, shape in weight_shapes(config).items():
        leaf = name.rpartition(".")[2]
        if "norm" in leaf:
            value = np.full(shape, 0.4 if leaf in ("q_norm", "k_norm") else 0.0, np.float32)
        else:
            inside = shape[1 : 1 + len(PROJECTIONS[leaf][0])] if leaf in PROJECTIONS else shape[1:]
            fan_in = int(np.prod(inside))
            value = generator.standard_normal(shape, np.float32) / np.sqrt(fan_in, dtype=np.float32)
        weights[name] = jnp.asarray(value, config.dtype)
    return Gemma(config, weights)


def widen(model: Gemma) -> None:
    """Make all weights float32: a bfloat16 weight would lose most of an optimizer's updates to
    rounding."""
    for root in (model, model.layers):
        for node in vars(root).values():
            if isinstance(node, nnx.Param):
                value = node.get_value()
                if isinstance(value, jax.ShapeDtypeStruct):
                    wide = jax.ShapeDtypeStruct(value.shape, jnp.float32, sharding=value.sharding)
                else:
                    wide = value.astype(jnp.float32)
                node.set_value(wide)


def abstract(config: GemmaConfig) -> Gemma:
    """A model of shapes and dtypes without values, to compile programs without running them."""
    dtype = jnp.dtype(config.dtype)
    return Gemma(
        config,
        {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in weight_shapes(config).items()},
    )
