"""Attention by JAX's splash kernel, for `tasks.models.attention.attend`. Importing the kernel takes
a fifth as long as JAX itself, so only programs that use it do."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks
from jax.sharding import PartitionSpec

from tasks.devices.hosts import BATCH, TENSOR
from tasks.models.products import LANES

BLOCK = 512
"""The most queries, and keys, in a block of the kernel: its float32 scores take 1 MiB of a core's
memory."""


def attend_by_kernel(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array,
    is_global: jax.Array,
    window: int,
    softcap: float | None,
) -> jax.Array:
    """Attend in blocks whose scores never leave the core, without those outside the window
    (FlashAttention, 2205.14135).

    Rows, and heads where the mesh spreads them, run on the device that holds them. A block has a
    multiple of `LANES` queries and keys.
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
    block = max(size for size in range(LANES, BLOCK + 1, LANES) if length % size == 0)
    sizes = splash.BlockSizes(block, block, block, block, block, block, use_fused_bwd_kernel=True)
    mask = masks.LocalMask((length, length), (window - 1, 0), offset=0)
    heads_masks = masks.MultiHeadMask([mask] * heads)
    return splash.make_splash_mha(
        heads_masks, block_sizes=sizes, head_shards=1, q_seq_shards=1, attn_logits_soft_cap=softcap
    )
