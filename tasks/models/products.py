"""Products of matrices: narrow factors, sums in float32, whatever the backend.

XLA for the CPU has bfloat16 kernels (AMX, AVX-512) for one form alone: bfloat16 factors, both with
their rows in memory order, and a float32 result. Every other form it turns into float32 copies of
both factors and a float32 product, which takes two to four times as long: a result of bfloat16, a
factor read by its columns, as the backward pass reads both, and float32 with bfloat16. So on a CPU
the result is asked for in float32 and rounded afterwards, and a factor that is read by columns is
copied to rows first (`_turned`). A single row has no kernel either, and its product with the
vocabulary would widen the whole of that, for every token of an answer; so it gets a second one
(`_paired`).

Factors of float32, and those of other backends, are multiplied as they are.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tasks.models.moving import checkpointed, on_cpu

PRODUCT = "product"
"""What results of `product` are called: for a policy of `jax.checkpoint`."""


def product(left: jax.Array, right: jax.Array) -> jax.Array:
    """(..., M, K) and (..., K, N) -> (..., M, N), of left's dtype. Leading axes are equal."""
    narrow = left.dtype == jnp.bfloat16 and on_cpu()
    if not narrow:
        return checkpointed(left @ right, PRODUCT)
    out = _narrow(False, _paired(left), right)[..., : left.shape[-2], :]
    return checkpointed(out.astype(left.dtype), PRODUCT)


def product_of_rows(left: jax.Array, right: jax.Array) -> jax.Array:
    """(..., M, K) and (..., N, K) -> (..., M, N), float32. Leading axes are equal."""
    if left.dtype != jnp.bfloat16 or not on_cpu():
        return _dot(left, right, turned=True)
    alone, left = left.shape[-2] == 1, _paired(left)
    (rows, width), others = left.shape[-2:], right.shape[-2]
    few = rows % 2 == 0 and others * width > rows * (width + 2 * others)
    # of few rows it is less to turn the result, of twice the bytes
    out = _turned(_narrow(True, right, left)) if few else _narrow(True, left, right)
    return out[..., :1, :] if alone else out


def _paired(left: jax.Array) -> jax.Array:
    """The rows; of a single one two, the other of zeros."""
    if left.shape[-2] != 1:
        return left
    return jnp.concatenate([left, jnp.zeros_like(left)], axis=-2)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _narrow(turned: bool, left: jax.Array, right: jax.Array) -> jax.Array:
    """The product of bfloat16 factors in float32; `turned`: by the rows of the right one."""
    return _dot(left, _turned(right) if turned else right)


def _keep(turned: bool, left: Any, right: Any) -> tuple[jax.Array, Any]:
    """Kept is what the gradients that are wanted take."""
    out = _narrow(turned, left.value, right.value)
    return out, (
        right.value if left.perturbed else None,
        left.value if right.perturbed else None,
    )


def _backward(turned: bool, checkpointed: Any, cotangent: Any) -> tuple[Any, Any]:
    right, left = checkpointed
    if isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
        return None, None
    slope = cotangent.astype(jnp.bfloat16)
    of_left = of_right = None
    if right is not None:
        of_left = _dot(slope, right if turned else _turned(right)).astype(slope.dtype)
    if left is not None:
        first, second = (slope, left) if turned else (left, slope)
        of_right = _dot(_turned(first), second).astype(slope.dtype)
    return of_left, of_right


_narrow.defvjp(_keep, _backward, symbolic_zeros=True)


def _dot(left: jax.Array, right: jax.Array, *, turned: bool = False) -> jax.Array:
    last, leading = left.ndim - 1, tuple(range(left.ndim - 2))
    axes = (((last,), (last if turned else last - 1,)), (leading, leading))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)


def _turned(matrix: jax.Array) -> jax.Array:
    """(..., M, N) -> (..., N, M), in memory, too: the last axis is moved in two halves, since a
    plain transpose would become part of the product, which would then be none of the form that has
    a kernel."""
    *leading, rows, columns = matrix.shape
    if 1 in (rows, columns):
        return matrix.reshape(*leading, columns, rows)
    if columns % 2:
        return matrix.swapaxes(-1, -2)
    halves = jnp.moveaxis(matrix.reshape(*leading, rows, 2, columns // 2), -3, -1)
    return halves.reshape(*leading, columns, rows)
