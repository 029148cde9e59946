"""Attention of one layer over segments, causal by index, within a window of positions: plain, or
with the splash kernel where the target has it.

The target is the mesh that a program is lowered for (`jax.set_mesh`), so that `lyceum plan`, on a
machine without a TPU, compiles what a stage runs on one. The kernel's savings for a step, measured
with the TPU compiler (libtpu 0.0.42.1, v5e-8; LoRA SFT of 12 layers of Gemma 3 1B; per chip, plain
-> kernel):

    rows x tokens, remat    bytes moved      FLOPs              temporaries
    2 x 1,024, none         16.7 -> 15.4 GB  4.93 -> 4.84 T     2.70 -> 2.75 GB
    2 x 2,048, none         49.4 -> 34.9 GB  8.72 -> 8.18 T     4.30 -> 4.40 GB
    8 x 2,048, layer        233 -> 148 GB    41.7 -> 38.9 T     2.21 -> 2.08 GB

Without remat the program keeps the kernel's output in two layouts; plain attention keeps no scores
and computes them twice.

On a GPU attention is plain, compiled by XLA. cuDNN's (`jax.nn.dot_product_attention`, jax 0.10.2)
has no soft cap, and before Hopper takes heads of at most 128 numbers; Gemma's have 256.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tasks.data.packing import BRANCHES
from tasks.models.moving import checkpointed, named, platform, read
from tasks.models.products import LANES, product, product_by_columns, product_of_rows

ATTENDED = "attended"
"""The name of attention's result in a policy of `jax.checkpoint`."""

_MASKED = -2.3819763e38
"""A score that softmax turns into 0, and that float32 and bfloat16 hold."""

BLOCKS, SHORTEST = 4, 256
"""Plain attention takes the queries in at most so many blocks, of so many at least, and reads no
key behind a block: with four 62.5 % of all scores. On a GPU, where it was not timed, one block."""

Where = tuple[jax.Array, jax.Array, jax.Array]
"""Segments (B, T), positions (B, T) and whether the layer is global ()."""

WINDOWS = "windows"
"""The scope of the choice between a local layer's window, and the whole cache of a global one."""

_NO_KERNEL = ("TPU v2", "TPU v3")
"""Their kernel compiler has no bfloat16 products ("Unsupported matmul RHS type on target", libtpu
0.0.42)."""


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    positions: jax.Array,
    is_global: jax.Array,
    window: int,
    softcap: float | None,
) -> jax.Array:
    """Attend: the weighted sum of values for each query.

    Args:
        q: (B, T, N, H) scaled queries.
        k, v: (B, T, K, H); N is a multiple of K, and query head n reads key head n // (N / K).
        segments: (B, T), 0 where there is no token. A query sees keys of its own segment, and of
            the prefix of that (`tasks.data.packing.PackedResponses`) where `sees_prefixes`.
        positions: (B, T) within each text.
        is_global: () bool; if not, the key at position j is seen from i only when i - window < j.
        softcap: scores x become softcap * tanh(x / softcap); None for no cap.

    Returns:
        (B, T, N, H); meaningless where a query's segment is 0.
    """
    if has_kernel(q):
        from tasks.models.splash import attend_by_kernel

        out = attend_by_kernel(q, k, v, segments, is_global, window, softcap)
        return checkpointed(out, ATTENDED)
    length = q.shape[1]
    blocks = 1 if platform() == "gpu" else BLOCKS
    size = max(SHORTEST, LANES * -(-length // (blocks * LANES)))
    parts = []
    for start in range(0, length, size):
        keys = slice(start + size)
        where = segments[:, keys], positions[:, keys], is_global
        queries = q[:, start : start + size]
        parts.append(_dense(queries, k[:, keys], v[:, keys], where, window, softcap))
    return jnp.concatenate(parts, axis=1)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _dense(
    q: jax.Array, k: jax.Array, v: jax.Array, where: Where, window: int, softcap: float | None
) -> jax.Array:
    """Plain attention, the reference: of the queries (B, Q, N, H) of the last Q of T keys.

    Its backward pass computes the scores again, since keeping them takes (B, N, Q, T) for every
    layer, and takes the sum over a row's gradient from the result, as FlashAttention does
    (2205.14135, B.4)."""
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    *_, shares = _scored(q, k, where, window, softcap)
    return _by_tokens(product(shares.astype(v.dtype), v), q.shape)


def _keep(
    q: jax.Array, k: jax.Array, v: jax.Array, where: Where, window: int, softcap: float | None
) -> tuple[jax.Array, Any]:
    out = named(_dense(q, k, v, where, window, softcap), ATTENDED)
    return out, (q, k, v, where, out)


def _backward(window: int, softcap: float | None, kept: Any, slope: jax.Array) -> tuple[Any, ...]:
    q, k, v, where, out = kept
    kv_heads = k.shape[2]
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    grouped, scores, shares = _scored(q, k, where, window, softcap)
    total = (slope.astype(jnp.float32) * out.astype(jnp.float32)).sum(axis=-1, keepdims=True)
    slope, total = _by_heads(slope, kv_heads), _by_heads(total, kv_heads)
    of_scores = shares * (product_of_rows(slope, v) - total)
    if softcap is not None:
        of_scores *= 1 - jnp.square(scores / softcap)
    of_scores = of_scores.astype(q.dtype)
    of_q = _by_tokens(product(of_scores, k), q.shape)
    of_k = product_by_columns(of_scores, grouped).swapaxes(1, 2)
    of_v = product_by_columns(shares.astype(v.dtype), slope).swapaxes(1, 2)
    return of_q, of_k, of_v, None


_dense.defvjp(_keep, _backward)


def _scored(
    q: jax.Array, k: jax.Array, where: Where, window: int, softcap: float | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The queries of each key head (`_by_heads`), their scores (B, K, N / K x Q, T) with keys (B,
    K, T, H), and the softmax of these over the visible keys."""
    grouped = _by_heads(q, k.shape[1])
    scores = capped(product_of_rows(grouped, k), softcap)
    segments, positions, is_global = where
    queries, length = q.shape[1], segments.shape[1]
    i, j = jnp.arange(length - queries, length)[:, None], jnp.arange(length)[None, :]
    since = positions[:, -queries:, None] - positions[:, None, :]
    near = (j <= i) & (is_global | (since < window))
    own, keys = segments[:, -queries:, None], segments[:, None, :]
    visible = near & ((keys == own) | (keys == own - own % BRANCHES)) & (keys > 0)
    by_head = scores.reshape(*scores.shape[:2], -1, queries, length)
    masked = jnp.where(visible[:, None, None], by_head, _MASKED)
    return grouped, scores, jax.nn.softmax(masked, axis=-1).reshape(scores.shape)


def _by_heads(array: jax.Array, kv_heads: int) -> jax.Array:
    """(B, Q, N, H) -> (B, K, N / K x Q, H): the queries of each key head."""
    batch, length, heads, width = array.shape
    grouped = array.reshape(batch, length, kv_heads, heads // kv_heads, width)
    return grouped.transpose(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, width)


def _by_tokens(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`_by_heads` turned around, to (B, Q, N, H)."""
    batch, length, heads, width = shape
    kv_heads = array.shape[1]
    grouped = array.reshape(batch, kv_heads, heads // kv_heads, length, width)
    return grouped.transpose(0, 3, 1, 2, 4).reshape(shape)


def attend_step(
    q: jax.Array,
    caches: tuple[jax.Array, jax.Array],
    layer: jax.Array | None,
    own: tuple[jax.Array, jax.Array] | None,
    segments: jax.Array,
    seen: jax.Array,
    index: jax.Array,
    is_global: jax.Array,
    window: int,
    softcap: float | None,
) -> jax.Array:
    """Attend from one token a row to those before it, which are in a cache, and to itself.

    A local layer reads no more than its window of a cache that is longer (docs/performance.md);
    on a GPU all, since there the host chooses between branches, and the device waits for it.

    Args:
        q: (B, 1, N, H) scaled queries, at `index`.
        caches: keys and values, each (B, K, S, H), as `moving.as_bits` has them, or those of all
            layers (L, B, K, S, H). Where the cache is read whole, it may be a ring, whose oldest
            column lies behind `index`.
        layer: () int32, whose cache to read; None of a layer's own.
        own: keys and values of the tokens themselves, each (B, 1, K, H), where the cache does not
            have them yet; None where it has.
        segments: (B, 1) of the queries.
        seen: (B, S) segments of the cache, at `index` those of the queries; 0 where nothing was
            written yet.
        index: () int32.
        is_global, window, softcap: see `attend`.

    Returns:
        (B, 1, N, H); meaningless where a query's segment is 0.
    """
    length = seen.shape[1]
    age = (index - jnp.arange(length)) % length

    def among(start: jax.Array | int, size: int, is_global: jax.Array | bool) -> jax.Array:
        cached = tuple(read(_columns(cache, layer, start, size)) for cache in caches)
        near = jax.lax.dynamic_slice_in_dim(seen, start, size, axis=1)
        since = jax.lax.dynamic_slice_in_dim(age, start, size)
        return _step(q, cached, own, segments, near, since, is_global, window, softcap)

    if not reads_windows(length, window):
        return among(0, length, is_global)
    start = jnp.clip(index + 1 - window, 0, length - window)
    # Of an unrolled layer XLA knows which branch it is, and would write its token into the cache
    # while it reads the window, element by element: three times the work of a step on a CPU.
    kind = jax.lax.optimization_barrier(is_global) if layer is None else is_global
    with jax.named_scope(WINDOWS):
        return jax.lax.cond(
            kind, lambda: among(0, length, True), lambda: among(start, window, False)
        )


def reads_windows(length: int, window: int) -> bool:
    """Whether a local layer reads its window alone of a cache of this length."""
    return length >= window + LANES and platform() != "gpu"


def _columns(
    cache: jax.Array, layer: jax.Array | None, start: jax.Array | int, size: int
) -> jax.Array:
    """Some columns of a layer's keys or values: (B, K, size, H). One slice, which the compiler can
    read within a product."""
    at, sizes = [0, 0, start, 0], [*cache.shape[-4:-2], size, cache.shape[-1]]
    if layer is None:
        return jax.lax.dynamic_slice(cache, at, sizes)
    return jax.lax.dynamic_slice(cache, [layer, *at], [1, *sizes])[0]


def _step(
    q: jax.Array,
    cached: tuple[jax.Array, ...],
    own: tuple[jax.Array, jax.Array] | None,
    segments: jax.Array,
    seen: jax.Array,
    age: jax.Array,
    is_global: jax.Array | bool,
    window: int,
    softcap: float | None,
) -> jax.Array:
    """`attend_step` with the keys and values (B, K, S, H) that it reads, their segments, and how
    many tokens ago they were written (S,): 0 at the queries' own column."""
    keys, values = cached
    batch, kv_heads, _, width = keys.shape
    grouped = q.reshape(batch, kv_heads, -1, width)
    near = (is_global | (age < window)) & (age >= (0 if own is None else 1))
    visible = near & (segments == seen) & (seen > 0)
    scores = capped(product_of_rows(grouped, keys), softcap)
    scores = jnp.where(visible[:, None, None], scores, _MASKED)
    if own is None:
        probabilities = jax.nn.softmax(scores, axis=-1)
        return product(probabilities.astype(values.dtype), values).reshape(q.shape)
    key, value = (one.swapaxes(1, 2) for one in own)
    wide = grouped.astype(jnp.float32) * key.astype(jnp.float32)
    itself = capped(wide.sum(axis=-1, keepdims=True), softcap)
    highest = jnp.maximum(scores.max(axis=-1, keepdims=True), itself)
    scores, itself = jnp.exp(scores - highest), jnp.exp(itself - highest)
    total = scores.sum(axis=-1, keepdims=True) + itself
    out = product((scores / total).astype(values.dtype), values)
    return (out + (itself / total).astype(out.dtype) * value).reshape(q.shape)


def capped(scores: jax.Array, softcap: float | None) -> jax.Array:
    """softcap * tanh(scores / softcap); None: the scores as they are."""
    return scores if softcap is None else softcap * jnp.tanh(scores / softcap)


def has_kernel(q: jax.Array) -> bool:
    """Whether there is a kernel for (B, T, N, H) queries on the devices that this program is
    lowered for."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    # the kernel works on blocks of a multiple of so many queries, keys and dimensions of a head
    fits = q.shape[1] % LANES == 0 and q.shape[3] % LANES == 0
    return (
        device is not None
        and device.platform == "tpu"
        and device.device_kind not in _NO_KERNEL
        and fits
    )


def sees_prefixes(mesh: jax.sharding.Mesh) -> bool:
    """Whether a segment sees the prefix that it goes on from on these devices: the kernel of a TPU
    knows equal segments alone."""
    return bool(mesh.devices.flat[0].platform != "tpu")
