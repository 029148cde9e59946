"""Columns of the cache of `tasks.sampling.slot_programs`, moved and brought to other widths."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Slots = dict[str, Any]
"""k, v and segments of a cache of W columns (`Gemma.init_cache`), and by row (B, ...): the `length`
of the prompt, the `number` of tokens drawn, what was `GIVEN` with the prompt, and what was `DRAWN`
last."""

CACHE = ("k", "v", "segments")
"""The names of a cache's arrays."""


def turned(cache: Slots, columns: jax.Array | int) -> Slots:
    """Columns of a cache so far to the right, those at the end at the beginning."""
    return _by_columns(cache, lambda array, axis: jnp.roll(array, columns, axis))


def fitted(cache: Slots, width: int) -> Slots:
    """Columns of a cache whose index is 0 at another width. It adds and removes the oldest ones, on
    the left, where no row has any."""

    def part(array: jax.Array, axis: int) -> jax.Array:
        missing = width - array.shape[axis]
        if missing <= 0:
            return jax.lax.slice_in_dim(array, -missing, None, axis=axis)
        return jnp.pad(array, [(missing if each == axis else 0, 0) for each in range(array.ndim)])

    return _by_columns(cache, part)


def _by_columns(cache: Slots, change: Callable[[jax.Array, int], jax.Array]) -> Slots:
    """What `change` makes of keys, values and segments, given each array and its axis W."""
    changed = {
        name: jax.tree.map(lambda array: change(array, array.ndim - 2), cache[name])
        for name in ("k", "v")
    }
    return changed | {"segments": change(cache["segments"], 1)}
