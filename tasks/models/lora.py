"""Low-rank adapters (Hu et al., 2106.09685): add them before training, fold them into the weights
after it."""

import zlib
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from schemas.trainer_config import LoraConfig
from tasks.models.decoder import Gemma
from tasks.models.decoder_layer import PROJECTIONS


def add_lora(model: Gemma, lora: LoraConfig, seed: int) -> None:
    """Give the matrices `lora.targets` adapters, float32. A is uniform in +-1/sqrt(fan in) from
    `seed`, B is 0: the function stays."""
    for name in lora.targets:
        weight = getattr(model.layers, name).get_value()
        layers, *shape = weight.shape
        inputs = len(PROJECTIONS[name][0])
        down, up = (layers, *shape[:inputs], lora.rank), (layers, lora.rank, *shape[inputs:])
        a: jax.Array | jax.ShapeDtypeStruct
        b: jax.Array | jax.ShapeDtypeStruct
        if isinstance(weight, jax.ShapeDtypeStruct):
            a, b = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (down, up))
        else:
            bound = float(np.prod(shape[:inputs])) ** -0.5
            key = jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))
            a = jax.random.uniform(key, down, jnp.float32, -bound, bound)
            b = jnp.zeros(up, jnp.float32)
        setattr(model.layers, f"{name}_lora_a", nnx.LoRAParam(a))
        setattr(model.layers, f"{name}_lora_b", nnx.LoRAParam(b))
    model.lora_scale = lora.alpha / lora.rank


def merge_lora(model: Gemma) -> None:
    """Replace each adapted matrix by W + lora_scale * A B, and remove the adapters."""
    for name, (inside, outside) in PROJECTIONS.items():
        if hasattr(model.layers, f"{name}_lora_a"):
            weight, a, b = (
                getattr(model.layers, f"{name}{part}") for part in ("", "_lora_a", "_lora_b")
            )
            product = f"L{inside}r,Lr{outside}->L{inside}{outside}"
            three = (one.get_value() for one in (weight, a, b))
            weight.set_value(_merged(product, *three, model.lora_scale))
            delattr(model.layers, f"{name}_lora_a")
            delattr(model.layers, f"{name}_lora_b")
    model.lora_scale = 0.0


@partial(jax.jit, static_argnums=0)
def _merged(product: str, weight: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    """The merged matrix, computed in float32 and rounded once."""
    return (weight.astype(jnp.float32) + scale * jnp.einsum(product, a, b)).astype(weight.dtype)
