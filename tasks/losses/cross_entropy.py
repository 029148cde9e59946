"""Cross entropy over a large vocabulary without a (B, T, V) array.

Hidden states are unembedded a fixed number of tokens at a time, each device its own, and each chunk's logits are recomputed in the backward
pass.
"""

from typing import Any

import jax
import jax.numpy as jnp

from tasks.hosts import batch_parts, by_rows

CHUNK = 2048
"""Tokens whose logits exist at one time on one device."""


def token_logps(model: Any, hidden: jax.Array, targets: jax.Array) -> jax.Array:
    """Log-probability of each target token.

    Args:
        model: has `unembed`, (N, D) -> (N, V).
        hidden: (B, T, D) hidden states; position t predicts targets[:, t].
        targets: (B, T) token ids.

    Returns:
        (B, T) float32.
    """
    batch, length = targets.shape
    parts = batch_parts()
    each = batch * length // parts
    chunks = -(-each // CHUNK)

    @jax.checkpoint
    def of_chunk(chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
        hidden, targets = chunk
        logits = model.unembed(hidden.reshape(-1, hidden.shape[-1])).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, targets.reshape(-1)[:, None], axis=-1)[:, 0]
        return (chosen - jax.nn.logsumexp(logits, axis=-1)).reshape(targets.shape)

    def chunked(tokens: jax.Array) -> jax.Array:
        """(B, T, ...) -> (chunks, parts, CHUNK, ...): chunk i has the i-th tokens of every device, so that none asks another for its."""
        own = tokens.reshape(parts, each, *tokens.shape[2:])
        own = jnp.pad(own, ((0, 0), (0, chunks * CHUNK - each), *[(0, 0)] * (own.ndim - 2)))
        return by_rows(own.reshape(parts, chunks, CHUNK, *own.shape[2:]).swapaxes(0, 1), axis=1)

    if chunks == 1:
        return of_chunk((hidden, targets))
    logps = jax.lax.map(of_chunk, (chunked(hidden), chunked(targets)))
    return logps.swapaxes(0, 1).reshape(parts, -1)[:, :each].reshape(batch, length)


def cross_entropy(model: Any, tokens: jax.Array, weights: jax.Array, positions: jax.Array, attention_mask: jax.Array) -> jax.Array:
    """Weighted negative log-likelihood of next tokens: sum over t of weights[:, t] * -log p(tokens[:, t] | tokens[:, :t]).

    Args:
        model: a Gemma 3 that can return hidden states.
        tokens: (B, T) ids.
        weights: (B, T) float32, 0 on the prompt and the padding; weights[:, 0] is ignored. Dividing the mask by the number of supervised
            tokens of the whole batch makes the sum a token mean that gradient accumulation does not change.
        positions: (B, T).
        attention_mask: (B, T, T).
    """
    hidden, _ = model(tokens, positions, None, attention_mask, hidden_states=True)
    return -jnp.sum(token_logps(model, hidden[:, :-1], tokens[:, 1:]) * weights[:, 1:])
