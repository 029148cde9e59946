"""Low-rank adapters through qwix: add them before training, fold them into the weights after it."""

from typing import Any

import jax.numpy as jnp
import qwix
from flax import nnx

from schemas.training import LoraConfig
from tasks.hosts import place
from tasks.models.gemma3 import Gemma3
from tasks.models.loading import LoadedModel

PROJECTIONS = ".*(q_einsum|kv_einsum|qkv_einsum|attn_vec_einsum|gate_proj|up_proj|down_proj)"


def add_lora(loaded: LoadedModel, lora: LoraConfig, seed: int) -> None:
    """Replace `loaded.model` by one with adapters on every projection. A is He-uniform from `seed`, B is 0: the function is unchanged."""
    provider = qwix.LoraProvider(module_path=PROJECTIONS, rank=lora.rank, alpha=lora.alpha)
    inputs = loaded.model.get_model_input()
    loaded.model = qwix.apply_lora_to_model(loaded.model, provider, rngs=nnx.Rngs(seed), **inputs)
    place(loaded.model, loaded.mesh)


def merge_lora(loaded: LoadedModel, lora: LoraConfig) -> None:
    """Replace `loaded.model` by a plain one whose weights are W + alpha / rank * A B."""
    plain = Gemma3(loaded.config, rngs=nnx.Rngs(0))
    weights = dict(nnx.to_flat_state(nnx.state(loaded.model, nnx.Param)))
    modules = dict(nnx.iter_modules(loaded.model))
    merged = []
    for path, variable in nnx.to_flat_state(nnx.state(plain, nnx.Param)):
        value = weights[path].get_value()
        module, name = modules[path[:-1]], path[-1]
        if hasattr(module, f"{name}_lora_a"):
            a, b = getattr(module, f"{name}_lora_a").get_value(), getattr(module, f"{name}_lora_b").get_value()
            value = value + (lora.alpha / lora.rank) * jnp.einsum(_product(module, str(name)), a, b).astype(value.dtype)
        merged.append((path, variable.replace(value)))
    nnx.update(plain, nnx.from_flat_state(merged))
    loaded.model = plain


def _product(module: Any, name: str) -> str:
    """The einsum that multiplies A and B into the shape of the weight."""
    if not hasattr(module, f"{name}_lora_einsum_str"):  # nnx.Linear: (in, r), (r, out)
        return "ir,ro->io"
    operands = getattr(module, f"{name}_lora_einsum_str").split("->")[0].split(",")
    weight = module.einsum_str.split("->")[0].split(",")[1]
    return f"{operands[1]},{operands[2]}->{weight}"
