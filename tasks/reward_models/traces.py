"""Traces in a compiled step: rows for one forward pass, and the scores of tokens and of whole
traces."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tasks.models.scalar_head import token_scores
from tasks.models.vocabulary import positions_of


class TraceRows(NamedTuple):
    """N traces for one forward pass.

    Attributes:
        tokens, positions, segments: (N, P + R), the model's input.
        ends: (N, R) bool: the tokens at which a step, or the answer, ends.
    """

    tokens: jax.Array
    positions: jax.Array
    segments: jax.Array
    ends: jax.Array


def trace_rows(
    prompt_ids: jax.Array, response_ids: jax.Array, ends: jax.Array, pad_id: int
) -> TraceRows:
    """Rows of (N, P) left-padded prompts and (N, R) right-padded responses."""
    tokens = jnp.concatenate([prompt_ids, response_ids], axis=1)
    real = tokens != pad_id
    return TraceRows(tokens, positions_of(real), real.astype(jnp.int32), ends)


def row_scores(model: Any, rows: TraceRows) -> jax.Array:
    """(N, R) scores of the tokens of the responses."""
    return token_scores(model, rows.tokens, rows.positions, rows.segments, rows.ends.shape[1])


def soft_minimum(scores: jax.Array, ends: jax.Array) -> jax.Array:
    """(N, R) scores of tokens and (N, R) bool, at least one in each row -> (N,) scores of
    traces."""
    weights = jax.nn.softmax(jnp.where(ends, -scores, -jnp.inf), axis=-1)
    return jnp.sum(weights * scores, axis=-1)
