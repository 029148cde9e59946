"""Attention of one layer over segments, causal by index, within a window: plain, or with the splash
kernel where the target has it.

The target is that of the mesh a program is lowered for (`jax.set_mesh`), so that what `lyceum plan`
compiles on a machine without a TPU is what a stage runs on one. What the kernel saves of a step,
measured with the TPU compiler (libtpu 0.0.42.1, v5e-8; LoRA SFT of 12 layers of Gemma 3 1B; per
chip, plain -> kernel):

    rows x tokens, remat    bytes moved      FLOPs              temporaries
    2 x 1,024, none         16.7 -> 15.4 GB  4.93 -> 4.84 T     2.70 -> 2.75 GB
    2 x 2,048, none         49.4 -> 34.9 GB  8.72 -> 8.18 T     4.30 -> 4.40 GB
    8 x 2,048, layer        233 -> 148 GB    41.7 -> 38.9 T     2.21 -> 2.08 GB

Without remat the kernel's output is kept in two layouts; plain attention keeps nothing of the
scores and computes them twice.

On a GPU attention is plain, compiled by XLA. cuDNN's (`jax.nn.dot_product_attention`, jax 0.10.2)
has no soft cap, and before Hopper takes heads of at most 128 numbers; Gemma's have 256.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec

from tasks.devices.hosts import BATCH, TENSOR
from tasks.models.products import product, product_of_rows

_MASKED = -2.3819763e38
"""A score that softmax turns into 0, and that float32 and bfloat16 hold."""

_LANES = 128
"""The kernel works on blocks of a multiple of so many queries, keys and dimensions of a head."""

BLOCK = 512
"""Queries, and keys, to a block of the kernel at most: the scores of one, float32, take 1 MiB of
the memory of a core."""

_NO_KERNEL = ("TPU v2", "TPU v3")
"""Their kernel compiler has no bfloat16 products ("Unsupported matmul RHS type on target", libtpu
0.0.42)."""


def attend(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    seen: jax.Array,
    index: jax.Array,
    is_global: jax.Array,
    window: int,
    softcap: float | None,
) -> jax.Array:
    """What each query reads from the values.

    Args:
        q: (B, T, N, H) scaled queries, at indices `index`, `index` + 1, ...
        k, v: (B, S, K, H); N is a multiple of K, and query head n reads key head n // (N / K). S =
            T means that index is 0.
        segments: (B, T) of the queries. A query sees keys of its own segment only.
        seen: (B, S) segments of the keys, 0 where there is none.
        index: () int32.
        is_global: () bool; if not, the key at index j is seen from i only when i - window < j.
        softcap: scores x become softcap * tanh(x / softcap); None for no cap.

    Returns:
        (B, T, N, H); meaningless where a query's segment is 0.
    """
    if q.shape[1] == k.shape[1] and has_kernel(q):  # no cache is read
        return _splash(q, k, v, segments, is_global, window, softcap)
    return _dense(q, k, v, segments, seen, index, is_global, window, softcap)


@partial(jax.checkpoint, static_argnums=(7, 8))
def _dense(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    seen: jax.Array,
    index: jax.Array,
    is_global: jax.Array,
    window: int,
    softcap: float | None,
) -> jax.Array:
    """The reference. The backward pass computes the scores again: keeping them takes (B, N, T, S)
    for every layer."""
    batch, length, heads, width = q.shape
    kv_heads = k.shape[2]
    groups = heads // kv_heads
    grouped = (
        q.reshape(batch, length, kv_heads, groups, width)
        .transpose(0, 2, 3, 1, 4)
        .reshape(batch, kv_heads, groups * length, width)
    )
    k, v = k.swapaxes(1, 2), v.swapaxes(1, 2)
    scores = product_of_rows(grouped, k)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    i, j = index + jnp.arange(length)[:, None], jnp.arange(k.shape[2])[None, :]
    near = (j <= i) & (is_global | (j > i - window))
    visible = near & (segments[:, :, None] == seen[:, None, :]) & (seen > 0)[:, None, :]
    scores = jnp.where(
        visible[:, None, None], scores.reshape(batch, kv_heads, groups, length, -1), _MASKED
    )
    probabilities = (
        jax.nn.softmax(scores, axis=-1)
        .astype(v.dtype)
        .reshape(batch, kv_heads, groups * length, -1)
    )
    out = product(probabilities, v).reshape(batch, kv_heads, groups, length, width)
    return out.transpose(0, 3, 1, 2, 4).reshape(q.shape)


def has_kernel(q: jax.Array) -> bool:
    """Whether there is a kernel for (B, T, N, H) queries on the devices that this program is
    lowered for."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    fits = q.shape[1] % _LANES == 0 and q.shape[3] % _LANES == 0
    return (
        device is not None
        and device.platform == "tpu"
        and device.device_kind not in _NO_KERNEL
        and fits
    )


def _splash(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    is_global: jax.Array,
    window: int,
    softcap: float | None,
) -> jax.Array:
    """Scores in blocks that never leave the core, those outside the window left out
    (FlashAttention, 2205.14135).

    Rows run on the device that holds them, and heads, too, where the mesh spreads them.
    """
    mesh = jax.sharding.get_abstract_mesh()
    length, heads, kv_heads = q.shape[1], q.shape[2], k.shape[2]
    parts = mesh.shape[TENSOR] if heads % mesh.shape[TENSOR] == 0 else 1
    if kv_heads % parts:
        k, v = (jnp.repeat(array, heads // kv_heads, axis=2) for array in (k, v))
    local, everything = (
        jax.vmap(_kernel(heads // parts, length, reach, softcap)) for reach in (window, length)
    )

    def of_device(
        q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array, is_global: jax.Array
    ) -> jax.Array:
        own = *(array.swapaxes(1, 2) for array in (q, k, v)), splash.SegmentIds(segments, segments)
        out: jax.Array = (
            everything(*own)
            if window >= length
            else jax.lax.cond(is_global, everything, local, *own)
        )
        return out.swapaxes(1, 2)

    if mesh.size == 1:
        return of_device(q, k, v, segments, is_global)
    rows, by_head = PartitionSpec(BATCH), PartitionSpec(BATCH, None, TENSOR if parts > 1 else None)
    specs = (by_head, by_head, by_head, rows, PartitionSpec())
    return jax.shard_map(of_device, in_specs=specs, out_specs=by_head, check_vma=False)(
        q, k, v, segments, is_global
    )


def _kernel(heads: int, length: int, window: int, softcap: float | None) -> Any:
    """The kernel for one row: q (heads, T, H), k and v (K, T, H), segments (T,) -> (heads, T,
    H)."""
    block = max(size for size in range(_LANES, BLOCK + 1, _LANES) if length % size == 0)
    sizes = splash.BlockSizes(block, block, block, block, block, block, use_fused_bwd_kernel=True)
    mask = masks.LocalMask((length, length), (window - 1, 0), offset=0)
    heads_masks = masks.MultiHeadMask([mask] * heads)
    return splash.make_splash_mha(
        heads_masks, block_sizes=sizes, head_shards=1, q_seq_shards=1, attn_logits_soft_cap=softcap
    )
