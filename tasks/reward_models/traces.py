"""Traces in a compiled step: the scores of tokens and of whole traces."""

from typing import Any

import jax
import jax.numpy as jnp

from tasks.devices.hosts import by_rows
from tasks.models.scalar_head import token_scores
from tasks.models.vocabulary import positions_of


def response_scores(
    model: Any, prompt_ids: jax.Array, response_ids: jax.Array, pad_id: int
) -> jax.Array:
    """(N, R) scores of the tokens of right-padded responses (N, R) to left-padded prompts (N,
    P)."""
    tokens = jnp.concatenate([prompt_ids, response_ids], axis=1)
    real = tokens != pad_id
    segments = by_rows(real.astype(jnp.int32))
    length = response_ids.shape[1]
    return token_scores(model, by_rows(tokens), by_rows(positions_of(real)), segments, length)


def soft_minimum(scores: jax.Array, ends: jax.Array) -> jax.Array:
    """(N, R) scores of tokens and (N, R) bool, at least one in each row -> (N,) scores of
    traces."""
    weights = jax.nn.softmax(jnp.where(ends, -scores, -jnp.inf), axis=-1)
    return jnp.sum(weights * scores, axis=-1)
