"""Cross entropy over a large vocabulary without a (B, T, V) array.

Hidden states are unembedded a fixed number of tokens at a time, and each chunk's logits are recomputed in the backward pass.
"""

from typing import Any

import jax
import jax.numpy as jnp

CHUNK = 2048
"""Tokens whose logits exist at one time."""


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
    flat_hidden, flat_targets = hidden.reshape(batch * length, -1), targets.reshape(-1)
    chunks = -(-batch * length // CHUNK)
    padding = chunks * CHUNK - batch * length if chunks > 1 else 0
    flat_hidden = jnp.pad(flat_hidden, ((0, padding), (0, 0)))
    flat_targets = jnp.pad(flat_targets, (0, padding))

    @jax.checkpoint
    def of_chunk(chunk: tuple[jax.Array, jax.Array]) -> jax.Array:
        hidden, targets = chunk
        logits = model.unembed(hidden).astype(jnp.float32)
        chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
        return chosen - jax.nn.logsumexp(logits, axis=-1)

    if chunks == 1:
        return of_chunk((flat_hidden, flat_targets)).reshape(batch, length)
    stacked = (flat_hidden.reshape(chunks, CHUNK, -1), flat_targets.reshape(chunks, CHUNK))
    return jax.lax.map(of_chunk, stacked).reshape(-1)[: batch * length].reshape(batch, length)


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
