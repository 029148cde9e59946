"""Preference pairs in a compiled step: what SimPO, DPO and ORPO share.

A loss is a function of the log-probabilities of the chosen and of the rejected response. The
terminator counts as a token of its response. Responses, each behind its prompt, lie side by side in
packed rows: what is computed has little padding, however much their lengths differ.
"""

from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import numpy as np

from tasks.data.packing import Shape, Text, pack_responses, tightest
from tasks.devices.hosts import BATCH
from tasks.models.loading import LoadedModel
from tasks.training.loop import rows_of_step
from tasks.training.packed_logps import row_logps, work_of_token

Pair = tuple[Text, Text]
"""The prompt with the chosen response, and with the rejected one."""


@flax.struct.dataclass(frozen=True)
class PairBatch:
    """B pairs in N rows of L tokens. Of several micro-batches each has its part of the pairs, and
    these lie in its part of the rows.

    Attributes:
        tokens, positions, segments: (N, L) int32, what the model takes.
        predicts: (N, L) bool: the next token is one of a response.
        places: (B, 2, R) int32: `tasks.data.packing.PackedResponses.places` of the chosen and the
            rejected response, in the rows of their micro-batch.
        ref_logps: (B, 2) float32, of the whole responses by the reference; None for a loss without
            one.
    """

    tokens: Any
    positions: Any
    segments: Any
    predicts: Any
    places: Any
    ref_logps: Any = None


def pair_batch(
    micro_batches: Sequence[Sequence[Pair]],
    shape: Shape,
    response_length: int,
    pad_id: int,
    ref_logps: np.ndarray | None = None,
) -> PairBatch:
    """Pack the pairs of each micro-batch into rows of this shape.

    Args:
        response_length: R, tokens that a response has at most.
        ref_logps: see `PairBatch`.
    """
    parts = [
        pack_responses([text for pair in micro for text in pair], shape, response_length, pad_id)
        for micro in micro_batches
    ]
    tokens, positions, segments, predicts, places = (
        np.concatenate(arrays) for arrays in zip(*parts, strict=True)
    )
    each = places.reshape(-1, 2, response_length)
    return PairBatch(tokens, positions, segments, predicts, each, ref_logps)


class PairBatches:
    """The batches of a stage, all of one shape, the tightest in which each fits, and every pair:
    which ones a step takes is known before the first.

    Attributes:
        shape: of the rows of a micro-batch.
        padding: the fraction of the tokens of all steps that is padding.
        ref_logps: (pairs, 2) of the reference, once they are known; None for a loss without one.
    """

    ref_logps: np.ndarray | None = None

    def __init__(self, pairs: Sequence[Pair], config: Any, loaded: LoadedModel) -> None:
        """Args: pairs: all of them; config: a `tasks.training.preferences.PreferenceConfig`;
        loaded: the model that will be trained, on its mesh."""
        self._pairs, self._config, self._pad_id = pairs, config, loaded.tokenizer.pad_id
        lengths = np.array([[len(text[0]) + len(text[1]) for text in pair] for pair in pairs])
        taken = [
            lengths[rows].ravel().tolist()
            for step in range(config.steps)
            for rows in self._rows(step)
        ]
        longest = config.prompt_length + config.response_length
        every = [int(lengths.max())]
        work = work_of_token(loaded.config)
        self.shape = tightest([*taken, every], longest, loaded.mesh.shape[BATCH], work)
        self.padding = 1 - sum(map(sum, taken)) / (len(taken) * self.shape.rows * self.shape.length)

    def at(self, step: int) -> PairBatch:
        """The training input of a step (from 0)."""
        rows = self._rows(step)
        return pair_batch(
            [[self._pairs[row] for row in micro] for micro in rows],
            self.shape,
            self._config.response_length,
            self._pad_id,
            None if self.ref_logps is None else self.ref_logps[rows.ravel()],
        )

    def _rows(self, step: int) -> np.ndarray:
        """(micro-batches, size) indices of pairs."""
        config = self._config
        rows = rows_of_step(config.seed, step, config.batch_size, len(self._pairs))
        return rows.reshape(config.accumulation, -1)


def widest(config: Any, pairs: int, *, reference: bool) -> PairBatch:
    """A batch of so many pairs of full length, of zeros: no response shares its row."""
    tokens = np.zeros((2 * pairs, config.prompt_length + config.response_length), np.int32)
    places = np.zeros((pairs, 2, config.response_length), np.int32)
    known = np.zeros((pairs, 2), np.float32) if reference else None
    return PairBatch(tokens, tokens, tokens, tokens > 0, places, known)


def response_logps(model: Any, pairs: PairBatch) -> tuple[jax.Array, jax.Array]:
    """(2, B) log-probabilities of the whole chosen and rejected responses, and (2, B) their lengths
    in tokens."""
    rows = (pairs.tokens, pairs.positions, pairs.segments, pairs.predicts)
    logps = row_logps(model, *rows).reshape(-1)
    of_tokens = logps.at[pairs.places].get(mode="fill", fill_value=0)
    lengths = (pairs.places < logps.size).sum(axis=-1)
    return of_tokens.sum(axis=-1).T, lengths.T


def pair_metrics(
    rewards: tuple[jax.Array, jax.Array], logps: tuple[jax.Array, jax.Array]
) -> dict[str, jax.Array]:
    """What Tunix's DPOTrainer logs, of (B,) implicit rewards and log-probabilities of chosen and
    rejected responses.

    `rewards/accuracy` is the fraction of pairs whose chosen response has the higher reward.
    """
    chosen, rejected = rewards
    return {
        "rewards/chosen": chosen.mean(),
        "rewards/rejected": rejected.mean(),
        "rewards/margin": (chosen - rejected).mean(),
        "rewards/accuracy": (chosen > rejected).mean(),
        "log_probs/chosen": logps[0].mean(),
        "log_probs/rejected": logps[1].mean(),
    }
