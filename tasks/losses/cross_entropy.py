"""Cross entropy of next tokens, the loss of supervised fine-tuning."""

from typing import Any

import jax
import jax.numpy as jnp

from tasks.models.vocabulary import token_logps


def cross_entropy(
    model: Any, tokens: jax.Array, weights: jax.Array, positions: jax.Array, segments: jax.Array
) -> jax.Array:
    """Weighted negative log-likelihood of next tokens: sum over t of weights[:, t] * -log
    p(tokens[:, t] | tokens[:, :t]).

    Args:
        model: a Gemma.
        tokens: (B, T) ids.
        weights: (B, T) float32, 0 on the prompt and the padding, where nothing is computed;
            weights[:, 0] is ignored. With the mask divided by the number of supervised tokens of
            the whole batch, the sum is a token mean that gradient accumulation does not change.
        positions, segments: (B, T), as the model takes them.
    """
    hidden, _ = model(tokens, positions, segments)
    # keep T, a size that the compiler need not pad
    following = jnp.roll(weights, -1, axis=1).at[:, -1].set(0)
    return -jnp.sum(
        token_logps(model, hidden, jnp.roll(tokens, -1, axis=1), following != 0) * following
    )
