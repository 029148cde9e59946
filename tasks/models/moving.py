"""Moves bfloat16 arrays as integers of 16 bits on a CPU.

XLA for the CPU computes in float32, also to read or write one layer of a stack: it converts the
whole stack to float32, takes the slice, and converts back. A lookup of one token copies the
vocabulary so, a loop over layers the weights and, for every layer, all that was written so far:
what the backward pass reads, and the key/value cache. It reads and writes integers in place. Other
targets move bfloat16 as it is.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name


def platform() -> str:
    """What this program is lowered for, "cpu", "gpu" or "tpu": what the mesh (`jax.set_mesh`) is
    of; empty without one."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return "" if device is None else device.platform


def bits_dtype(dtype: Any) -> Any:
    """The dtype that moves arrays of `dtype`."""
    narrow = jnp.dtype(dtype) == jnp.bfloat16 and platform() == "cpu"
    return jnp.uint16 if narrow else jnp.dtype(dtype)


def as_bits(array: jax.Array) -> jax.Array:
    """The array in the dtype that moves it. Not differentiated."""
    dtype = bits_dtype(array.dtype)
    return array if dtype == array.dtype else jax.lax.bitcast_convert_type(array, dtype)


def read(array: jax.Array) -> jax.Array:
    """The array that `as_bits` was given."""
    narrow = array.dtype == jnp.uint16
    return jax.lax.bitcast_convert_type(array, jnp.bfloat16) if narrow else array


def layer_of(stack: jax.Array, index: jax.Array) -> jax.Array:
    """Element `index` of the first axis."""
    return _layer_of(stack.shape, stack, index)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _layer_of(shape: tuple[int, ...], stack: jax.Array, index: jax.Array) -> jax.Array:
    return read(jax.lax.dynamic_index_in_dim(as_bits(stack), index, keepdims=False))


def _layer_backward(
    shape: tuple[int, ...], index: jax.Array, slope: jax.Array
) -> tuple[jax.Array, None]:
    return jnp.zeros(shape, slope.dtype).at[index].set(slope), None


_layer_of.defvjp(lambda *given: (_layer_of(*given), given[-1]), _layer_backward)


def rows_of(table: jax.Array, indices: jax.Array) -> jax.Array:
    """Rows (..., D) of a table (V, D), as `table[indices]`."""
    if bits_dtype(table.dtype) == table.dtype:
        return table[indices]
    return _rows_of(table.shape, table, indices)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows_of(shape: tuple[int, ...], table: jax.Array, indices: jax.Array) -> jax.Array:
    # the table as bits is an array of its own, which is not made before a loop over tokens
    table, indices = jax.lax.optimization_barrier((table, indices))
    return read(as_bits(table)[indices])


def _rows_backward(
    shape: tuple[int, ...], indices: jax.Array, slope: jax.Array
) -> tuple[jax.Array, None]:
    return jnp.zeros(shape, slope.dtype).at[indices].add(slope), None


_rows_of.defvjp(lambda *given: (_rows_of(*given), given[-1]), _rows_backward)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def checkpointed(array: jax.Array, name: str) -> jax.Array:
    """The array with a name for a policy of `jax.checkpoint`, which then keeps it in the dtype that
    moves it."""
    return named(array, name)


@checkpointed.defjvp
def _checkpointed_jvp(name: str, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # not `checkpointed` itself: a policy sees no names within its call
    return named(primals[0], name), tangents[0]


def named(array: jax.Array, name: str) -> jax.Array:
    """`checkpointed` for the forward rule of a gradient, which is not differentiated itself."""
    return read(checkpoint_name(as_bits(array), name))
