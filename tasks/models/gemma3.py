"""Gemma 3 for text on Tunix: the model class, its sizes, and a random initialisation that trains.

`Gemma3` is Tunix's module with two additions: it can return hidden states, so that a loss computes the logits it needs and no (B, T, V)
array exists; and `initialise` gives every weight a useful scale (Tunix starts feed-forward weights at zero: it only loads checkpoints).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tunix.models.gemma3 import model as tunix_gemma3
from tunix.models.gemma3.model import ModelConfig

from schemas.base import InputError, nearest
from tasks.hosts import by_rows


def tiny() -> ModelConfig:
    """0.6M parameters, float32. Fewer than six layers means all are local (Gemma 3's pattern); the window covers the whole context."""
    return ModelConfig(
        num_layers=3,
        num_embed=1536,
        embed_dim=128,
        hidden_dim=256,
        num_heads=4,
        head_dim=32,
        num_kv_heads=1,
        sliding_window_size=1024,
        local_base_frequency=10_000,
        global_base_frequency=1_000_000,
        param_dtype=jnp.float32,
    )


SIZES: dict[str, Callable[[], ModelConfig]] = {
    "gemma3-tiny": tiny,
}


def model_config(name: str) -> ModelConfig:
    """The architecture of a named model. Raises InputError with the valid names."""
    if name not in SIZES:
        raise InputError(f"unknown model {name!r}.{nearest(name, SIZES)}")
    return SIZES[name]()


class Gemma3(tunix_gemma3.Gemma3):
    """Tunix's Gemma 3 that can stop before the unembedding.

    LoRA (qwix) acts only inside `__call__`, so hidden states must come from it and not from calling the layers one by one.
    """

    def __call__(
        self,
        last_tokens: jax.Array,
        positions: jax.Array,
        cache: dict[str, Any] | None = None,
        attention_mask: jax.Array | None = None,
        hidden_states: bool = False,
    ) -> tuple[jax.Array, dict[str, Any] | None]:
        """Run the decoder.

        Args:
            last_tokens: (B, T) token ids.
            positions: (B, T) positions within each row's own text.
            cache: key/value cache of length S, or None (then S = T).
            attention_mask: (B, T, S), True where a token may look.
            hidden_states: return the (B, T, D) input of the unembedding in place of (B, T, V) logits.

        Returns:
            logits or hidden states, and the new cache (None without one).
        """
        x = by_rows(self.embedder.encode(last_tokens))
        new_cache: dict[str, Any] | None = None if cache is None else {}
        for index, layer in enumerate(self.layers):
            name = f"layer_{index}"
            layer_cache, x = layer(x, positions, None if cache is None else cache[name], attention_mask)
            x = by_rows(x)
            if new_cache is not None:
                new_cache[name] = layer_cache
        x = self.final_norm(x)
        return (x if hidden_states else self.unembed(x)), new_cache

    def unembed(self, hidden: jax.Array) -> jax.Array:
        """Logits (..., V) of hidden states (..., D)."""
        return self.embedder.decode(hidden)

    def init_cache(self, batch_size: int, length: int) -> dict[str, dict[str, jax.Array]]:
        """An empty key/value cache for `batch_size` rows of `length` tokens."""
        shape = (batch_size, length, self.config.num_kv_heads, self.config.head_dim)
        zeros = by_rows(jnp.zeros(shape, self.config.param_dtype))
        return {
            f"layer_{index}": {"k": zeros, "v": zeros, "end_index": by_rows(jnp.zeros((batch_size,), jnp.int32))}
            for index in range(self.config.num_layers)
        }


def initialise(config: ModelConfig, seed: int) -> Gemma3:
    """A model with random weights: a pure function of (config, seed).

    Embeddings are N(0, 1/D) (the model multiplies them by sqrt(D)), projections N(0, 1/fan_in), norm scales 0 (Gemma's scale is 1 + w),
    except those of queries and keys: 0.4, so that a head of 32 dimensions can already prefer one token among a hundred.
    """
    model = nnx.eval_shape(lambda: Gemma3(config, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(model)
    generator = np.random.Generator(np.random.Philox(seed))
    flat = nnx.to_flat_state(state)
    weights = []
    for path, variable in flat:
        shape, name = variable.shape, ".".join(str(part) for part in path)
        if name.endswith("scale"):
            value = np.full(shape, 0.4 if "_query_norm" in name or "_key_norm" in name else 0.0, np.float32)
        else:
            value = generator.standard_normal(shape, np.float32) / np.sqrt(_fan_in(name, shape), dtype=np.float32)
        weights.append((path, variable.replace(jnp.asarray(value, config.param_dtype))))
    return nnx.merge(graph, nnx.from_flat_state(weights))


def _fan_in(name: str, shape: tuple[int, ...]) -> int:
    """Inputs summed over by each output of the weight called `name`."""
    if "input_embedding" in name:
        return shape[-1]
    if "attn_vec_einsum" in name:  # (N, H, D): BTNH,NHD->BTD
        return shape[0] * shape[1]
    if "qkv_einsum" in name or "q_einsum" in name or "kv_einsum" in name:  # (..., D, H)
        return shape[-2]
    return shape[0]  # Linear kernel (in, out)
