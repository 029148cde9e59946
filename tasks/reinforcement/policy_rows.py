"""Responses to train on, in packed rows, as the compiled step takes them.

How many rows a batch fills depends on what was sampled. Its shape does not: it has a row for each
response, the filled ones first, and a step leaves out the micro-batches in which nothing is
predicted. So one program costs what the tokens cost that there are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.data.packing import Shape, Text, pack_responses


class PolicyBatch(NamedTuple):
    """N rows of L tokens. What is said of a token of a response stands where it is predicted, at
    the token before it; elsewhere there are zeros.

    Attributes:
        tokens, positions, segments: (N, L) int32, what the model takes; a segment is a prompt with
            its response.
        predicts: (N, L) bool: the next token is one of a response.
        advantages: (N, L) float32.
        weights: (N, L) float32, of a token's loss (`tasks.reinforcement.rollout.row_weights`): the
            loss is their weighted sum over a micro-batch, and its mean over the micro-batches.
        token_weights: (N, L) float32, the same for "token": what metrics are averaged with.
        ref_per_token_logps: (N, L) float32 of the reference; None without a KL term.
        old_per_token_logps: (N, L) float32 of the policy that sampled, by the program that trains,
            at the sampling temperature. None: it is the policy that is trained now.
        sampler_per_token_logps: (N, L) float32, what the sampler said at the sampling temperature;
            None: nothing is corrected.
    """

    tokens: Any
    positions: Any
    segments: Any
    predicts: Any
    advantages: Any
    weights: Any
    token_weights: Any
    ref_per_token_logps: Any = None
    old_per_token_logps: Any = None
    sampler_per_token_logps: Any = None


def policy_batch(
    texts: Sequence[Text],
    numbers: Sequence[np.ndarray | None],
    *,
    length: int,
    pad_id: int,
    micro_batches: int = 1,
) -> PolicyBatch:
    """Pack B responses, each behind its prompt; those of weight 0 are left out.

    Args:
        numbers: `advantages`, `weights`, `token_weights` and, if need be, the log-probabilities of
            a PolicyBatch, in this order: (B,) of each response, or (B, R) of each of its tokens.
        length: tokens of a row.
        micro_batches: how many the batch is cut into.
    """
    advantages, weights, token_weights, *logps = numbers
    assert weights is not None
    assert token_weights is not None
    counted = np.flatnonzero(weights).tolist()
    width = max((len(texts[row][1]) for row in counted), default=1)
    shape = Shape(len(texts), length)
    packed = pack_responses([texts[row] for row in counted], shape, width, pad_id)

    def at_tokens(values: np.ndarray | None) -> np.ndarray | None:
        if values is None:
            return None
        of_rows = values[counted] if values.ndim == 2 else values[counted, None]
        flat = np.zeros(packed.tokens.size + 1, np.float32)  # what is behind an end goes last
        flat[packed.places] = np.broadcast_to(of_rows[:, :width], packed.places.shape)
        return flat[:-1].reshape(shape)

    share = micro_batches / len(texts)
    found = (advantages, weights * share, token_weights * share, *logps)
    return PolicyBatch(*packed[:4], *map(at_tokens, found))


def empty_batch(responses: int, length: int, *, logps: tuple[bool, bool, bool]) -> PolicyBatch:
    """A batch of zeros, with those log-probabilities that are wanted, in their order."""
    tokens = np.zeros((responses, length), np.int32)
    number = tokens.astype(np.float32)
    wanted = [number if one else None for one in logps]
    return PolicyBatch(tokens, tokens, tokens, tokens > 0, number, number, number, *wanted)


def tokens_there(texts: Sequence[Text], response_length: int) -> np.ndarray:
    """(B, R) bool: which tokens each response has."""
    lengths = np.array([len(response) for _, response in texts])
    return np.arange(response_length) < lengths[:, None]
