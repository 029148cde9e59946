"""Gemma 2 and Gemma 3 (text): one decoder for both families, its layers stacked and run by one
`lax.scan`.

Sources: Gemma 2 (2408.00118), Gemma 3 (2503.19786), and `transformers`, with whose logits these
agree (tests/end_to_end/tasks/models/test_parity.py). Tunix's own modules unroll the layers, which
takes the TPU compiler minutes for each program of the 1B; they end in logits for every position,
(B, T, 262144); and their adapters act only inside `__call__`. Here a program is one layer long, the
model ends in hidden states, adapters are part of the layer, and segment ids instead of a (B, T, T)
array say which tokens attend to which.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from schemas.trainer_config import Remat
from tasks.devices.hosts import BATCH, TENSOR, constrained
from tasks.models.attention import ATTENDED, attend, attend_step, capped
from tasks.models.decoder_layer import (
    PROJECTIONS,
    decoder_layer,
    divides,
    matrices,
    rms_norm,
)
from tasks.models.moving import as_bits, bits_dtype, checkpointed, layer_of, platform, rows_of
from tasks.models.products import PRODUCT, product_of_rows

Cache = dict[str, Any]


@dataclass(frozen=True)
class GemmaConfig:
    """An architecture.

    Attributes:
        window: key j is seen from i, in a local layer, when i - window < j <= i.
        global_every: layer i (from 0) is global when (i + 1) % global_every == 0; all others are
            local.
        local_rope, global_rope: base frequencies of the rotary embedding; global_rope_scale divides
            the positions of global layers.
        query_scale: factor of the queries.
        attention_softcap, final_softcap: x -> cap * tanh(x / cap) on attention scores and on
            logits; None for no cap.
        dtype: of frozen weights, activations and caches. Softmax, norms, logits and trained weights
            are float32.
    """

    family: Literal["gemma2", "gemma3"]
    num_layers: int
    vocab_size: int
    embed_dim: int
    hidden_dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int
    global_every: int
    local_rope: float
    global_rope: float
    global_rope_scale: float
    query_scale: float
    attention_softcap: float | None
    final_softcap: float | None
    dtype: str

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised."""
        return self.family == "gemma3"

    def is_global(self) -> np.ndarray:
        """(L,) bool: which layers see all earlier tokens."""
        return (np.arange(self.num_layers) + 1) % self.global_every == 0


_GEMMA3 = GemmaConfig(
    family="gemma3",
    num_layers=26,
    vocab_size=262144,
    embed_dim=1152,
    hidden_dim=6912,
    num_heads=4,
    num_kv_heads=1,
    head_dim=256,
    window=512,
    global_every=6,
    local_rope=10_000.0,
    global_rope=1_000_000.0,
    global_rope_scale=1.0,
    query_scale=256**-0.5,
    attention_softcap=None,
    final_softcap=None,
    dtype="bfloat16",
)
_GEMMA3_LARGE = replace(_GEMMA3, window=1024, global_rope_scale=8.0, vocab_size=262208)
_GEMMA2 = replace(
    _GEMMA3,
    family="gemma2",
    vocab_size=256000,
    window=4096,
    global_every=2,
    global_rope=10_000.0,
    attention_softcap=50.0,
    final_softcap=30.0,
)


def _sized(
    base: GemmaConfig, layers: int, embed: int, hidden: int, heads: int, kv_heads: int
) -> GemmaConfig:
    return replace(
        base,
        num_layers=layers,
        embed_dim=embed,
        hidden_dim=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
    )


_PUBLISHED = {
    "gemma3-270m": _sized(_GEMMA3, 18, 640, 2048, 4, 1),
    "gemma3-1b": _GEMMA3,
    "gemma3-4b": _sized(_GEMMA3_LARGE, 34, 2560, 10240, 8, 4),
    "gemma3-12b": _sized(_GEMMA3_LARGE, 48, 3840, 15360, 16, 8),
    "gemma2-2b": _sized(_GEMMA2, 26, 2304, 9216, 8, 4),
    "gemma2-9b": _sized(_GEMMA2, 42, 3584, 14336, 16, 8),
}
_TINY = replace(_GEMMA3, window=1024, vocab_size=1536, head_dim=32, query_scale=32**-0.5)

SIZES: dict[str, GemmaConfig] = {
    # 0.7M parameters. Fewer than six layers means that all are local; the window covers the whole
    # context.
    "gemma3-tiny": replace(_sized(_TINY, 3, 128, 256, 4, 4), dtype="float32"),
    **{f"{name}-{tuned}": config for name, config in _PUBLISHED.items() for tuned in ("it", "pt")},
}
"""Model name -> architecture. `it` is instruction-tuned, `pt` pretrained."""

LAYER = "layer"
"""The name of a layer's input in a policy of `jax.checkpoint`."""

UNROLLED_LAYERS = 8
"""A model of at most this many layers runs without a loop over them: the compiler can then fuse
across layers, and compiling stays short."""


def weight_shapes(config: GemmaConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight; weights named `layers.*` have the layers as their first
    axis."""
    sizes = {
        "d": config.embed_dim,
        "f": config.hidden_dim,
        "n": config.num_heads,
        "k": config.num_kv_heads,
        "h": config.head_dim,
    }
    layer = {
        name: tuple(sizes[axis] for axis in inside + outside)
        for name, (inside, outside) in PROJECTIONS.items()
    }
    norms = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    )
    layer |= dict.fromkeys(norms, (config.embed_dim,))
    if config.qk_norm:
        layer |= dict.fromkeys(("q_norm", "k_norm"), (config.head_dim,))
    return {
        "embedding": (config.vocab_size, config.embed_dim),
        **{f"layers.{name}": (config.num_layers, *shape) for name, shape in layer.items()},
        "final_norm": (config.embed_dim,),
    }


class _Layers(nnx.Module):
    """The weights of all layers, each stacked over the layers."""


class Gemma(nnx.Module):
    """The decoder.

    Attributes:
        remat: which values the backward pass computes again instead of keeping them: see
            `schemas.trainer_config.Remat`.
        lora_scale: factor of the adapters' product, when there are adapters.
    """

    embedding: nnx.Param[Any]
    final_norm: nnx.Param[Any]

    def __init__(self, config: GemmaConfig, weights: Mapping[str, Any]):
        """Args: weights: name (see `weight_shapes`) -> array, or jax.ShapeDtypeStruct for an
        abstract model."""
        self.config = config
        self.remat: Remat = "none"
        self.lora_scale = 0.0
        self.layers = _Layers()
        for name, value in weights.items():
            owner, _, leaf = name.rpartition(".")
            setattr(self.layers if owner else self, leaf, nnx.Param(value))

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array,
        segments: jax.Array,
        cache: Cache | None = None,
    ) -> tuple[jax.Array, Cache | None]:
        """Run the decoder.

        Args:
            tokens: (B, T) ids.
            positions: (B, T) positions within each text, from 0.
            segments: (B, T) int32, 0 on padding. A token sees those before it, by index, of its
                segment and of that one's prefix (`tasks.models.attention.attend`).
            cache: what `init_cache` made, or a call returned. A call with T > 1 begins a cache
                anew; one with T = 1 goes on.

        Returns:
            (B, T, D) hidden states, the input of `unembed`, and the new cache (None without one).
        """
        config = self.config
        dtype = jnp.dtype(config.dtype)
        x = rows_of(self.embedding.get_value(), tokens).astype(dtype) * jnp.asarray(
            config.embed_dim**0.5, dtype
        )
        x = constrained(x, BATCH)
        rope = _rotations(config, positions)
        stacks = vars(self.layers).items()
        weights = matrices(
            {name: node.get_value() for name, node in stacks if isinstance(node, nnx.Variable)}
        )
        # a list: a set's order differs from process to process, and no cache knew the program again
        moved = [name for name, stack in weights.items() if bits_dtype(stack.dtype) != stack.dtype]
        per_layer = {
            "weights": {name: stack for name, stack in weights.items() if name not in moved},
            "global": jnp.asarray(config.is_global()),
            "layer": jnp.arange(config.num_layers),
        }
        step = cache is not None and tokens.shape[1] == 1
        index = cache["index"] if step and cache else jnp.int32(0)
        seen = segments
        all_layers: Any = ()
        if cache is not None:
            all_layers = cache["k"], cache["v"]
            seen = jax.lax.dynamic_update_slice(cache["segments"], segments, (0, index))
        # Who writes a step's token into the cache, each layer before it reads, or the step behind
        # its layers? XLA for TPUs would copy the layer's cache in the first case, and for CPUs the
        # cache of all layers in the second (docs/performance.md).
        behind = platform() == "tpu" or not step
        unrolled = config.num_layers <= UNROLLED_LAYERS
        apart = cache is not None and _has_own_caches(config)

        def layer(carry: Any, own: Any) -> tuple[Any, Any]:
            x, *caches = carry
            written: Any = None
            if moved:
                x = checkpointed(x, LAYER)  # elsewhere `jax.checkpoint` keeps it as it is
            of_layer = {name: layer_of(weights[name], own["layer"]) for name in moved}

            def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
                nonlocal caches, written
                where = own["global"], config.window, config.attention_softcap
                new = as_bits(k.swapaxes(1, 2)), as_bits(v.swapaxes(1, 2))
                if cache is not None and behind:
                    written = new
                if not step:
                    return attend(q, k, v, segments, positions, *where)
                if behind:
                    stored = own["cache"] if apart else all_layers
                elif apart:
                    stored = written = _with(own["cache"], new, (0, 0, index, 0))
                else:
                    at = (own["layer"], 0, 0, index, 0)
                    stored = caches = _with(caches, [one[None] for one in new], at)
                number, unread = None if apart else own["layer"], (k, v) if behind else None
                return attend_step(q, stored, number, unread, segments, seen, index, *where)

            rotate = tuple(
                jax.lax.dynamic_index_in_dim(table, own["global"].astype(jnp.int32), keepdims=False)
                for table in rope
            )
            x = decoder_layer(
                config.query_scale,
                self.lora_scale,
                of_layer | own["weights"],
                x,
                rotate,
                attention,
                head_dim=config.head_dim,
                chunked=self.remat == "chunks",
                gathered=self.remat != "none" and not step,
            )
            return (x, *caches), written

        saved = {"none": (PRODUCT, ATTENDED), "dots": (PRODUCT,)}.get(self.remat, ())
        if self.remat != "none" or moved:
            layer = jax.checkpoint(
                layer,
                policy=jax.checkpoint_policies.save_only_these_names(LAYER, *saved),
                prevent_cse=unrolled,
            )
        with jax.named_scope("layers"):
            if apart and (step or unrolled):
                done = []
                for number, cached in enumerate(zip(*all_layers, strict=True)):
                    own = jax.tree.map(lambda stack, number=number: stack[number], per_layer)
                    (x,), written = layer((x,), own | {"cache": cached})
                    done.append(_with(cached, written, (0, 0, index, 0)) if behind else written)
                all_layers = tuple(zip(*done, strict=True))
            else:
                first: Any = (x,) if behind else (x, *all_layers)
                (x, *carried), written = jax.lax.scan(layer, first, per_layer, unroll=unrolled)
                if apart:
                    pairs = zip(all_layers, written, strict=True)
                    all_layers = tuple(_with(own, stack, (0, 0, 0, 0)) for own, stack in pairs)
                elif cache is not None:
                    at = (0, 0, 0, index, 0)
                    all_layers = _with(all_layers, written, at) if behind else carried
        x = rms_norm(x, self.final_norm.get_value())
        if cache is None:
            return x, None
        index = (index + tokens.shape[1]) % seen.shape[1]
        keys, values = all_layers
        return x, {"k": keys, "v": values, "segments": seen, "index": index}

    def unembed(self, hidden: jax.Array) -> jax.Array:
        """Logits (..., V), float32, of hidden states (..., D)."""
        return unembed(self.config, self.embedding.get_value(), hidden)

    def init_cache(self, batch_size: int, length: int) -> Cache:
        """An empty key/value cache for `batch_size` rows of `length` tokens: k and v, each (L, B,
        K, S, H), or a tuple of (B, K, S, H), where each layer reads its own where it lies; segments
        (B, S), 0 where there is no token; and index (), the column that is written next: behind the
        last one the first."""
        config, dtype = self.config, bits_dtype(self.config.dtype)
        shape, axes = (batch_size, config.num_kv_heads, length, config.head_dim), cache_axes(config)
        layers = config.num_layers

        def empty() -> Any:
            if _has_own_caches(config):
                return tuple(constrained(jnp.zeros(shape, dtype), *axes) for _ in range(layers))
            return constrained(jnp.zeros((layers, *shape), dtype), *axes)

        return {
            "k": empty(),
            "v": empty(),
            "segments": constrained(jnp.zeros((batch_size, length), jnp.int32), BATCH),
            "index": jnp.int32(0),
        }


def cache_axes(config: GemmaConfig) -> tuple[str | None, ...]:
    """The axes of the mesh that a cache's keys and values are spread over."""
    by_row = BATCH, TENSOR if divides(TENSOR, config.num_kv_heads) else None
    return by_row if _has_own_caches(config) else (None, *by_row)


def _has_own_caches(config: GemmaConfig) -> bool:
    """Whether each layer has a cache of its own, and a token passes no loop over layers: XLA for
    the CPU would copy each layer's cache and weights out of their stacks."""
    return config.num_layers <= UNROLLED_LAYERS or platform() == "cpu"


def _with(caches: Any, new: Any, at: tuple[Any, ...]) -> tuple[jax.Array, ...]:
    """Keys and values with new ones at these indices."""
    pairs = zip(caches, new, strict=True)
    return tuple(jax.lax.dynamic_update_slice(cache, one, at) for cache, one in pairs)


def unembed(config: GemmaConfig, embedding: jax.Array, hidden: jax.Array) -> jax.Array:
    """Logits (..., V), float32, of hidden states (..., D) with the tied embedding (V, D)."""
    dtype = jnp.dtype(config.dtype)
    rows = hidden.astype(dtype).reshape(-1, hidden.shape[-1])
    logits = product_of_rows(rows, embedding.astype(dtype)).reshape(*hidden.shape[:-1], -1)
    return capped(logits, config.final_softcap)


def _rotations(config: GemmaConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    """cos and sin, each (2, B, T, 1, H/2) float32: of local layers, then of global ones (RoPE,
    2104.09864)."""
    exponent = jnp.arange(0, config.head_dim, 2, dtype=jnp.float32) / config.head_dim
    bases = ((config.local_rope, 1.0), (config.global_rope, config.global_rope_scale))
    frequencies = jnp.stack([1.0 / (base**exponent) / scale for base, scale in bases])
    angles = (
        positions[None, :, :, None, None].astype(jnp.float32) * frequencies[:, None, None, None, :]
    )
    return jnp.cos(angles), jnp.sin(angles)
