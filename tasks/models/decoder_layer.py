"""One layer of the decoder (`tasks.models.decoder`), whose backward pass keeps little."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from tasks.devices.hosts import BATCH, TENSOR, constrained
from tasks.models.products import adapted, product

PROJECTIONS: dict[str, tuple[str, str]] = {
    "q_proj": ("d", "nh"),
    "k_proj": ("d", "kh"),
    "v_proj": ("d", "kh"),
    "o_proj": ("nh", "d"),
    "gate_proj": ("d", "f"),
    "up_proj": ("d", "f"),
    "down_proj": ("f", "d"),
}
"""The matrices of a layer, by their Hugging Face names: axes in, axes out."""

CHUNK = 64
"""Positions of each row that the feed-forward part takes at a time with remat = "chunks"."""


def matrices(stacks: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The stacked weights of all layers, with every projection and its adapters as (L, K, N): a
    product with more axes takes three times as long to differentiate on a CPU, and a TPU would
    bring a layer's heads into another layout in every step that reads them."""

    def flat(name: str, stack: jax.Array) -> jax.Array:
        base, _, factor = name.partition("_lora_")
        if base not in PROJECTIONS:
            return stack
        split = 2 if factor == "b" else 1 + len(PROJECTIONS[base][0])
        return stack.reshape(stack.shape[0], math.prod(stack.shape[1:split]), -1)

    return {name: flat(name, stack) for name, stack in stacks.items()}


@jax.checkpoint
def rms_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    """x / rms(x) * (1 + scale) along the last axis, in float32; the result has x's dtype."""
    wide = x.astype(jnp.float32)
    normed = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + 1e-6)
    return (normed * (1 + scale.astype(jnp.float32))).astype(x.dtype)


def decoder_layer(
    query_scale: float,
    lora_scale: float,
    weights: dict[str, jax.Array],
    x: jax.Array,
    rotate: tuple[jax.Array, ...],
    attention: Callable[[jax.Array, jax.Array, jax.Array], jax.Array],
    *,
    head_dim: int,
    chunked: bool,
    gathered: bool,
) -> jax.Array:
    """One layer on (B, T, D).

    Args:
        query_scale: factor of the queries.
        lora_scale: factor of the adapters' product, where there are adapters.
        weights: of this layer, by their names, the projections as `matrices` gives them; with
            `q_norm` queries and keys are normalised.
        rotate: cos and sin of the positions, each (B, T, 1, H/2).
        attention: function of queries, keys and values, such as `attend`.
        head_dim: dimensions of a head.
        chunked: the feed-forward part takes some positions at a time, and keeps nothing of them.
        gathered: weights that are spread over the devices are gathered before they are multiplied.
            A backward pass keeps them so, unless it computes the layer again.
    """
    if gathered:
        weights = {  # the gradients of chunks add up in the dtype of the weights
            name: _gathered(name, one, one.dtype if chunked else x.dtype)
            for name, one in weights.items()
        }

    def project(name: str, x: jax.Array) -> jax.Array:
        weight = weights[name].astype(x.dtype)
        rows = x.reshape(-1, weight.shape[0])
        if f"{name}_lora_a" in weights:
            down, up = (weights[f"{name}_lora_{one}"].astype(x.dtype) for one in "ab")
            out = adapted(rows, weight, down, up, lora_scale)
        else:
            out = product(rows, weight)
        return out.reshape(*x.shape[:2], -1)

    def heads(array: jax.Array) -> jax.Array:
        return _heads(array.reshape(*array.shape[:2], -1, head_dim))

    normed = rms_norm(x, weights["input_layernorm"])
    q, k, v = (heads(project(name, normed)) for name in ("q_proj", "k_proj", "v_proj"))
    if "q_norm" in weights:
        q, k = rms_norm(q, weights["q_norm"]), rms_norm(k, weights["k_norm"])
    q, k = _rotate(q, rotate), _rotate(k, rotate)
    attended = attention(q * jnp.asarray(query_scale, q.dtype), k, v)
    attended = project("o_proj", _heads(attended))
    x = constrained(x + rms_norm(attended, weights["post_attention_layernorm"]), BATCH)

    def feed_forward(x: jax.Array) -> jax.Array:
        normed = rms_norm(x, weights["pre_feedforward_layernorm"])
        gate, up = (
            constrained(project(name, normed), BATCH, None, TENSOR)
            for name in ("gate_proj", "up_proj")
        )
        down = project("down_proj", _gated(gate, up))
        return rms_norm(down, weights["post_feedforward_layernorm"])

    out = _in_chunks(jax.checkpoint(feed_forward), x) if chunked else feed_forward(x)
    return constrained(x + out, BATCH)


def _gathered(name: str, weight: jax.Array, dtype: Any) -> jax.Array:
    """A matrix, or its adapter's factor, whole along the axis that `tasks.models.sharding` spreads
    over the batch's devices. The compiler would multiply by the pieces as they come: 144 of 1,152
    rows at a time, which takes 1.8 times as long (docs/performance.md)."""
    base, _, factor = name.partition("_lora_")
    if base not in PROJECTIONS:
        return weight
    inside, outside = PROJECTIONS[base]
    sides = {"": (inside, outside), "a": (inside, "r"), "b": ("r", outside)}[factor]
    return _whole(tuple(side == "d" for side in sides), weight.astype(dtype))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _whole(along: tuple[bool, ...], matrix: jax.Array) -> jax.Array:
    """The matrix, whole along some of its axes. Its gradient may be in parts."""
    axes = (None if whole else PartitionSpec.UNCONSTRAINED for whole in along)
    return constrained(matrix, *axes)


_whole.defvjp(lambda along, matrix: (_whole(along, matrix), None), lambda _, __, slope: (slope,))


def _in_chunks(function: Callable[[jax.Array], jax.Array], x: jax.Array) -> jax.Array:
    """A function of tokens on (B, T, D), at most CHUNK positions at a time."""
    batch, length, width = x.shape
    positions = max(size for size in range(1, CHUNK + 1) if length % size == 0)
    chunks = x.reshape(batch, -1, positions, width).swapaxes(0, 1)
    done = jax.lax.map(
        lambda chunk: constrained(function(constrained(chunk, BATCH)), BATCH),
        constrained(chunks, None, BATCH),
    )
    return done.swapaxes(0, 1).reshape(x.shape)


@jax.checkpoint
def _gated(gate: jax.Array, up: jax.Array) -> jax.Array:
    """gelu(gate) * up, of which the backward pass keeps the two arguments and nothing in
    float32."""
    wide = jax.nn.gelu(gate.astype(jnp.float32), approximate=True) * up.astype(jnp.float32)
    return wide.astype(gate.dtype)


def _heads(array: jax.Array) -> jax.Array:
    """(B, T, heads, H) spread over the heads where their number allows."""
    return constrained(array, BATCH, None, TENSOR if divides(TENSOR, array.shape[2]) else None)


def divides(axis: str, size: int) -> bool:
    return size % int(jax.sharding.get_abstract_mesh().shape.get(axis, 1)) == 0


def _rotate(x: jax.Array, rotate: tuple[jax.Array, ...]) -> jax.Array:
    """(B, T, N, H) turned by its positions."""
    cos, sin = rotate
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)
