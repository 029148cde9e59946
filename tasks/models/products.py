"""Products of matrices with bfloat16 factors and float32 sums, on every backend.

XLA for the CPU has bfloat16 kernels (AMX, AVX-512) where both factors are bfloat16, the left one
has its rows in memory order, and the result is float32. For every other form (a bfloat16 result, a
left factor read by its columns, as in the backward pass, float32 with bfloat16) it makes float32
copies of both factors, which takes two to four times as long. So on a CPU we ask for a float32
result and round it, and copy a left factor that is read by columns to rows first (`_turned`). A
single row has no kernel either and gets a second one (`_paired`); its product with the rows of the
vocabulary is a sum that reads them once.

Factors of float32, and those on other backends, are multiplied as they are; only a left one that is
read by columns is turned on a CPU in float32, too.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from tasks.models.moving import checkpointed, platform

PRODUCT = "product"
"""The name of `product`'s results in a policy of `jax.checkpoint`."""


LANES = 128
"""Columns of a tile on a TPU."""


def product(left: jax.Array, right: jax.Array) -> jax.Array:
    """(..., M, K) and (..., K, N) -> (..., M, N), of left's dtype. Leading axes are equal."""
    if not _is_narrow(left):
        return checkpointed(left @ right, PRODUCT)
    out = _narrow(False, _paired(left), right)[..., : left.shape[-2], :]
    return checkpointed(out.astype(left.dtype), PRODUCT)


def _is_narrow(factor: jax.Array) -> bool:
    """Whether products of this factor are to be asked for as this module says."""
    return factor.dtype == jnp.bfloat16 and platform() == "cpu"


def adapted(
    left: jax.Array, weight: jax.Array, down: jax.Array, up: jax.Array, scale: float
) -> jax.Array:
    """left @ weight + scale * (left @ down) @ up, a matrix with its low-rank adapter (Hu et al.,
    2106.09685).

    Where there are many rows, the adapter rides along in the weight's own product, in both
    directions: as `rank` further columns of the factors or of the result, whichever side is the
    narrow one. A product of its own would write and read the wide side once more for a thousandth
    of the arithmetic: on a TPU as long as the weight's own (docs/performance.md).

    Args:
        left: (M, K).
        weight: (K, N), which is not trained.
        down, up: (K, rank) and (rank, N), of left's dtype.

    Returns:
        (M, N), of left's dtype.
    """
    factor = jnp.asarray(scale, left.dtype)
    rows, rank = left.shape[0], up.shape[0]
    narrow, wide = sorted(weight.shape)
    if rows < 2 * narrow or wide < 2 * narrow or narrow < 16 * rank:
        return product(left, weight) + factor * product(product(left, down), up)
    if weight.shape[1] == wide:
        low = factor * product(left, down)
        return checkpointed(_deep(left, low, weight, up), PRODUCT)
    out, low = (checkpointed(part, PRODUCT) for part in _wide(left, weight, down))
    return out + factor * product(low, up)


@jax.custom_vjp
def _deep(left: jax.Array, low: jax.Array, weight: jax.Array, up: jax.Array) -> jax.Array:
    """left @ weight + low @ up as one product, of which `weight` gets no gradient."""
    return _plain(jnp.concatenate([left, low], axis=1), jnp.concatenate([weight, up]))


def _deep_backward(kept: tuple[jax.Array, ...], slope: jax.Array) -> tuple[Any, ...]:
    low, weight, up = kept
    both, end = _by_rows(slope, _joined(weight, up, 0)), weight.shape[0]
    return both[:, :end], both[:, end : end + up.shape[0]], None, product_by_columns(low, slope)


_deep.defvjp(lambda *factors: (_deep(*factors), factors[1:]), _deep_backward)


@jax.custom_vjp
def _wide(left: jax.Array, weight: jax.Array, down: jax.Array) -> tuple[jax.Array, jax.Array]:
    """left @ weight and left @ down as one product, of which `weight` gets no gradient."""
    both, end = _plain(left, _joined(weight, down, 1)), weight.shape[1]
    return both[:, :end], both[:, end : end + down.shape[1]]


def _wide_backward(kept: tuple[jax.Array, ...], slopes: tuple[Any, Any]) -> tuple[Any, ...]:
    left, weight, down = kept
    of_left = _by_rows(jnp.concatenate(slopes, axis=1), jnp.concatenate([weight, down], axis=1))
    return of_left, None, product_by_columns(left, slopes[1])


_wide.defvjp(lambda *factors: (_wide(*factors), factors), _wide_backward)


def _joined(weight: jax.Array, factor: jax.Array, axis: int) -> jax.Array:
    """The weight with an adapter's factor behind it along an axis of the result, in whole tiles on
    a TPU, whose compiler would turn the result around otherwise."""
    spare = [(0, 0), (0, 0)]
    spare[axis] = (0, 0 if platform() == "cpu" else -factor.shape[axis] % LANES)
    return jnp.concatenate([weight, jnp.pad(factor, spare)], axis=axis)


def _plain(left: jax.Array, right: jax.Array) -> jax.Array:
    """(M, K) and (K, N) -> (M, N), of left's dtype."""
    return _dot(left, right).astype(left.dtype) if _is_narrow(left) else left @ right


def _by_rows(left: jax.Array, right: jax.Array) -> jax.Array:
    """(M, K) and (N, K) -> (M, N), of left's dtype."""
    if not _is_narrow(left):
        return left @ right.T
    return _dot(left, right, turned=True).astype(left.dtype)


def product_by_columns(left: jax.Array, right: jax.Array) -> jax.Array:
    """(..., M, K) and (..., M, N) -> (..., K, N), of left's dtype."""
    if platform() != "cpu":
        return left.swapaxes(-1, -2) @ right
    (rows, width), others = left.shape[-2:], right.shape[-1]
    if others * (rows + width) < rows * width:  # turn what is smaller
        return _turned(_dot(_turned(right), left).astype(left.dtype))
    return _dot(_turned(left), right).astype(left.dtype)


def product_of_rows(left: jax.Array, right: jax.Array) -> jax.Array:
    """(..., M, K) and (..., N, K) -> (..., M, N), float32. Leading axes are equal."""
    if not _is_narrow(left):
        return _dot(left, right, turned=True)
    if left.shape[-2] == 1:
        # else a loop over tokens would begin with a copy of the rows in float32
        left, right = jax.lax.optimization_barrier((left, right))
        return left.astype(jnp.float32) @ right.astype(jnp.float32).swapaxes(-1, -2)
    return _narrow(True, left, right)


def _paired(left: jax.Array) -> jax.Array:
    """The rows; a single one gets a second of zeros."""
    if left.shape[-2] != 1:
        return left
    return jnp.concatenate([left, jnp.zeros_like(left)], axis=-2)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _narrow(turned: bool, left: jax.Array, right: jax.Array) -> jax.Array:
    """The product of bfloat16 factors in float32; `turned`: by the rows of the right one."""
    return _dot(left, right, turned=turned)


def _keep(turned: bool, left: Any, right: Any) -> tuple[jax.Array, Any]:
    """Keep only what the wanted gradients need."""
    out = _narrow(turned, left.value, right.value)
    return out, (right.value if left.perturbed else None, left.value if right.perturbed else None)


def _backward(turned: bool, checkpointed: Any, cotangent: Any) -> tuple[Any, Any]:
    right, left = checkpointed
    if isinstance(cotangent, jax.custom_derivatives.SymbolicZero):
        return None, None
    slope = cotangent.astype(jnp.bfloat16)
    of_left = of_right = None
    if right is not None:
        of_left = _dot(slope, right, turned=not turned).astype(slope.dtype)
    if left is not None:
        first, second = (slope, left) if turned else (left, slope)
        of_right = product_by_columns(first, second)
    return of_left, of_right


_narrow.defvjp(_keep, _backward, symbolic_zeros=True)


def _dot(left: jax.Array, right: jax.Array, *, turned: bool = False) -> jax.Array:
    last, leading = left.ndim - 1, tuple(range(left.ndim - 2))
    axes = (((last,), (last if turned else last - 1,)), (leading, leading))
    return jax.lax.dot_general(left, right, axes, preferred_element_type=jnp.float32)


def _turned(matrix: jax.Array) -> jax.Array:
    """(..., M, N) -> (..., N, M), also in memory. It moves the last axis in two halves: XLA would
    fuse a plain transpose into the product, which then has no kernel."""
    *leading, rows, columns = matrix.shape
    if 1 in (rows, columns):
        return matrix.reshape(*leading, columns, rows)
    if columns % 2:
        return matrix.swapaxes(-1, -2)
    halves = jnp.moveaxis(matrix.reshape(*leading, rows, 2, columns // 2), -3, -1)
    return halves.reshape(*leading, columns, rows)
