"""Chooses the next token of each row from its logits: the likeliest one, or one that is drawn at a
temperature, of all tokens or of a nucleus."""

from math import gcd

import jax
import jax.numpy as jnp

BLOCK = 512
"""Tokens of the vocabulary that are looked at together. A row is read once, and then again the one
block in which its token is."""


def drawn(
    logits: jax.Array, temperature: jax.Array, keys: jax.Array, numbers: jax.Array
) -> jax.Array:
    """Draw a token of each row from softmax(logits / temperature).

    It inverts the cumulative distribution at one random number a row. The Gumbel trick needs one
    for each token of the vocabulary: ten times as long on a CPU.

    Args:
        logits: (B, V), -inf where a token may not be drawn.
        temperature: (B, 1) or (); 0 takes the likeliest.
        keys: (B,) of randomness, a row's own.
        numbers: (B,) the index of the token in the row's response.

    Returns:
        (B,) int32.
    """
    blocks, scale = _blocks(logits), jnp.where(temperature > 0, temperature, 1.0)
    top = blocks.max(axis=-1).max(axis=-1, keepdims=True)
    totals = jnp.exp((blocks - top[..., None]) / scale[..., None]).sum(axis=-1)
    shares = jax.vmap(lambda key, number: jax.random.uniform(jax.random.fold_in(key, number)))(
        keys, numbers
    )
    block, rest = _place(totals, shares * totals.sum(axis=-1))
    inside, _ = _place(jnp.exp((_of_block(blocks, block) - top) / scale), rest)
    token = block * blocks.shape[-1] + inside
    return jnp.where((temperature > 0).reshape(-1), token, first_best(logits))


def _place(weights: jax.Array, share: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(B, N) weights, (B,) a share of their sum -> (B,) the index in which it lies, and how much of
    it lies there. Never one of weight 0, though sums are rounded."""
    ends = jnp.cumsum(weights, axis=-1)
    ids = jnp.arange(weights.shape[-1], dtype=jnp.int32)
    last = jnp.where(weights > 0, ids, 0).max(axis=-1, keepdims=True)
    before = (ends <= jnp.maximum(share, 0)[:, None]).sum(axis=-1, keepdims=True, dtype=jnp.int32)
    # sums in another order may grow, or shrink, where nothing is added
    index = jnp.where((weights > 0) & (ids >= before), ids, last).min(axis=-1, keepdims=True)
    begin = jnp.take_along_axis(ends - weights, index, axis=-1)
    return index[:, 0], share - begin[:, 0]


def first_best(logits: jax.Array) -> jax.Array:
    """(..., V) -> (...) int32: the index of the largest, the first of equals. `argmax` takes twice
    as long on a CPU."""
    blocks = _blocks(logits)
    block = _first_best(blocks.max(axis=-1))
    return block * blocks.shape[-1] + _first_best(_of_block(blocks, block))


def _blocks(values: jax.Array) -> jax.Array:
    """(..., V) -> (..., V / S, S)."""
    return values.reshape(*values.shape[:-1], -1, gcd(values.shape[-1], BLOCK))


def _of_block(blocks: jax.Array, index: jax.Array) -> jax.Array:
    """(..., N, S) and (...) which -> (..., S)."""
    return jnp.take_along_axis(blocks, index[..., None, None], axis=-2)[..., 0, :]


def _first_best(values: jax.Array) -> jax.Array:
    ids = jnp.arange(values.shape[-1], dtype=jnp.int32)
    return jnp.where(values == values.max(axis=-1, keepdims=True), ids, ids[-1]).min(axis=-1)


def truncated(
    logits: jax.Array, temperature: jax.Array, top_k: int | None, top_p: float | jax.Array | None
) -> jax.Array:
    """(B, V) logits -> the same, -inf where `schemas.trainer_config.Nucleus` lets no token be drawn
    at a temperature above 0. The likeliest always may; of tokens as likely as the least of those
    that may, all may."""
    if top_k is None:
        if top_p is None:
            return logits
        share = jax.nn.softmax(logits / temperature, axis=-1)
        return jnp.where(_in_nucleus(logits, share, top_p), logits, -jnp.inf)
    best, _ = jax.lax.top_k(logits, min(top_k, logits.shape[-1]))
    if top_p is not None:
        share = jax.nn.softmax(best / temperature, axis=-1)
        likelier = jnp.cumsum(share, axis=-1) - share
        best = jnp.where(likelier < top_p, best, jnp.inf)
    return jnp.where(logits >= best.min(axis=-1, keepdims=True), logits, -jnp.inf)


def _in_nucleus(logits: jax.Array, share: jax.Array, top_p: float | jax.Array) -> jax.Array:
    """(B, V) whether the likelier tokens have less than `top_p` of the probability. Bisection over
    integers in the order of floats finds the least such logit, exactly after 32 steps; the TPU's
    compiler takes minutes to sort a vocabulary."""
    bits = jax.lax.bitcast_convert_type(logits.astype(jnp.float32), jnp.int32)
    order = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    highest = order.max(axis=-1, keepdims=True)

    def halve(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)
        likelier = jnp.where(order > middle, share, 0.0).sum(axis=-1, keepdims=True)
        return jnp.where(likelier < top_p, low, middle), jnp.where(likelier < top_p, middle, high)

    lowest = jnp.full_like(highest, jnp.iinfo(jnp.int32).min)
    _, edge = jax.lax.fori_loop(0, 32, halve, (lowest, highest))
    return order >= edge
