"""`Bigram`: a model whose logits for the next token are a row of a table, so that every
log-probability can be computed by hand."""

import jax
import numpy as np
from flax import nnx

from tasks.data.packing import Shape
from tasks.models.decoder import SIZES
from tasks.training.pair_batches import PairBatch, pair_batch

PAD, EOS, VOCABULARY = 0, 1, 6


class Bigram(nnx.Module):
    """Hidden states are the tokens, one-hot: row v of the embedding holds the logits of v after
    each token."""

    def __init__(self, seed: int = 0):
        self.config = SIZES["gemma3-tiny"]
        self.embedding = nnx.Param(
            jax.random.normal(jax.random.key(seed), (VOCABULARY, VOCABULARY))
        )

    def __call__(self, tokens, positions, segments):
        return jax.nn.one_hot(tokens, VOCABULARY), None

    def table(self) -> jax.Array:
        """(V, V) logits of the token after each token."""
        return self.embedding.get_value().T


def logp(model: Bigram, before: int, token: int, temperature: float = 1.0) -> float:
    """Of one token after another."""
    row = np.asarray(model.table()[before], np.float64) / temperature
    return float(row[token] - np.log(np.exp(row).sum()))


def completion_logps(
    model: Bigram, prompts: np.ndarray, completions: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """(B, R) log-probabilities of completions; 0 at padding."""
    out = np.zeros(completions.shape)
    for row, tokens in enumerate(completions):
        for index, (before, token) in enumerate(
            zip([prompts[row, -1], *tokens[:-1]], tokens, strict=True)
        ):
            out[row, index] = 0.0 if token == PAD else logp(model, before, token, temperature)
    return out


def pairs(chosen, rejected, shape=None, ref_logps=None) -> PairBatch:
    """Pairs of responses to the prompt 2 3, in rows of this shape; without it in a row of 7 tokens
    each."""
    both = [(([2, 3], one), ([2, 3], other)) for one, other in zip(chosen, rejected, strict=True)]
    return pair_batch(
        [both], shape or Shape(2 * len(both), 7), 5, PAD, None if ref_logps is None else [ref_logps]
    )
