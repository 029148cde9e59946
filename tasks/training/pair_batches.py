"""Preference pairs in a compiled step, for SimPO, DPO and ORPO.

A loss is a function of the log-probabilities of the chosen and of the rejected response. The
terminator counts as a token of its response. Pairs share packed rows, and both responses of a pair
their prompt, where attention sees it (`tasks.models.attention.sees_prefixes`), so that there is
little padding however much lengths differ. The pairs of a step fill as few of its micro-batches as
possible; the others are skipped.
"""

from collections.abc import Callable, Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from schemas.base import StageFailed
from tasks.data.packing import (
    Group,
    Lengths,
    Shape,
    Text,
    first_fit,
    in_groups,
    longest_text,
    pack_responses,
    tightest,
    units,
)
from tasks.devices.hosts import BATCH
from tasks.models.attention import sees_prefixes
from tasks.models.loading import LoadedModel
from tasks.training.loop import rows_of_step
from tasks.training.packed_logps import row_logps, work_of_token

Pair = tuple[Text, Text]
"""The prompt with the chosen response, and with the rejected one."""


@flax.struct.dataclass(frozen=True)
class PairBatch:
    """Up to B pairs in N rows of L tokens. Each of several micro-batches has its part of the pairs,
    in its part of the rows.

    Attributes:
        tokens, positions, segments: (N, L) int32, what the model takes.
        predicts: (N, L) bool: the next token is one of a response.
        places: (B, 2, R) int32: `tasks.data.packing.PackedResponses.places` of the chosen and the
            rejected response, in the rows of their micro-batch; N x L where there is no pair.
        weights: (B,) float32 of each pair in its micro-batch's loss, so that the mean over
            micro-batches is the mean over pairs. 0 where there is no pair.
        ref_logps: (B, 2) float32 of the whole responses by the reference; None for a loss without
            one.
    """

    tokens: Any
    positions: Any
    segments: Any
    predicts: Any
    places: Any
    weights: Any
    ref_logps: Any = None


PairLoss = Callable[[Any, PairBatch], tuple[jax.Array, dict[str, jax.Array]]]
"""(model, pairs) -> the (B,) losses of the pairs and (B,) metrics by name."""


def pair_batch(
    micro_batches: Sequence[Sequence[Pair]],
    shape: Shape,
    response_length: int,
    pad_id: int,
    ref_logps: Sequence[np.ndarray] | None = None,
    most: int = 0,
    *,
    shared: bool = True,
) -> PairBatch:
    """Pack the pairs of each micro-batch (possibly none) into rows of this shape.

    Args:
        response_length: R, the most tokens of a response.
        ref_logps: (pairs, 2) of each micro-batch; see `PairBatch`.
        most: the most pairs of a micro-batch; 0: those of the largest one.
        shared: whether a pair's responses share their prompt.
    """
    most = most or max(map(len, micro_batches))
    parts = [
        pack_responses(pair_groups(micro, shared=shared), shape, response_length, pad_id)
        for micro in micro_batches
    ]
    tokens, positions, segments, predicts = (
        np.concatenate(arrays) for arrays in list(zip(*parts, strict=True))[:4]
    )

    def padded(arrays: Sequence[np.ndarray], fill: float) -> np.ndarray:
        blocks = [np.full((most, *array.shape[1:]), fill, array.dtype) for array in arrays]
        for block, array in zip(blocks, arrays, strict=True):
            block[: len(array)] = array
        return np.concatenate(blocks)

    places = [part.places.reshape(-1, 2, response_length) for part in parts]
    share = len(micro_batches) / sum(map(len, micro_batches))
    weights = [np.full(len(micro), share, np.float32) for micro in micro_batches]
    return PairBatch(
        tokens,
        positions,
        segments,
        predicts,
        padded(places, shape.rows * shape.length),
        padded(weights, 0),
        None if ref_logps is None else padded(ref_logps, 0),
    )


def pair_groups(pairs: Sequence[Pair], *, shared: bool) -> list[Group]:
    """The responses of these pairs, the rejected behind the chosen; `shared`: both of a pair behind
    one prompt."""
    return [group for pair in pairs for group in in_groups(pair, shared=shared)]


class PairBatches:
    """The batches of a stage, in the cheapest single shape that every batch and every pair fits;
    the pairs of each step are known beforehand.

    Attributes:
        shape: of the rows of a micro-batch.
        micro_batches: how many are computed in all steps.
        padding: the fraction of their tokens that is padding.
        ref_logps: (pairs, 2) of the reference, once known; None for a loss without one.
    """

    ref_logps: np.ndarray | None = None

    def __init__(self, pairs: Sequence[Pair], config: Any, loaded: LoadedModel) -> None:
        """Args: pairs: all of them; config: a `tasks.training.preference_kind.PreferenceConfig`;
        loaded: the model that will be trained, on its mesh."""
        self._pairs, self._config, self._pad_id = pairs, config, loaded.tokenizer.pad_id
        self._shared = sees_prefixes(loaded.mesh)
        self._lengths = [self._lengths_of(pair) for pair in pairs]
        multiple = loaded.mesh.shape[BATCH]
        taken = [[self._lengths[row] for row in self._rows(step)] for step in range(config.steps)]
        self.shape = tightest(
            [*taken, [(0, (longest_text(self._lengths),))]],
            config.prompt_length + config.response_length,
            multiple,
            work_of_token(loaded.config),
            blocks=config.accumulation,
            rows=2 * config.batch_size // config.accumulation,
        )
        filled = [self._micro_batches(step) for step in range(config.steps)]
        most = max(len(micro) for micros in filled for micro in micros)
        self._most = -(-most // multiple) * multiple
        self.micro_batches = sum(map(len, filled))
        real = sum(tokens for lengths in taken for tokens, _ in units(lengths, self.shape.length))
        self.padding = 1 - real / (self.micro_batches * self.shape.rows * self.shape.length)

    def at(self, step: int) -> PairBatch:
        """The training input of a step (from 0)."""
        micros = self._micro_batches(step)
        micros += [np.array([], int)] * (self._config.accumulation - len(micros))
        return pair_batch(
            [[self._pairs[row] for row in micro] for micro in micros],
            self.shape,
            self._config.response_length,
            self._pad_id,
            None if self.ref_logps is None else [self.ref_logps[micro] for micro in micros],
            self._most,
            shared=self._shared,
        )

    def _lengths_of(self, pair: Pair) -> Lengths:
        """Of both responses, which are in one block, whether or not they share their prompt."""
        lengths = [group.lengths for group in pair_groups([pair], shared=self._shared)]
        return lengths[0][0], tuple(length for _, texts in lengths for length in texts)

    def _micro_batches(self, step: int) -> list[np.ndarray]:
        """Indices of the pairs of each micro-batch, except empty ones."""
        rows = self._rows(step)
        return [rows[one] for one in first_fit([self._lengths[row] for row in rows], self.shape)]

    def _rows(self, step: int) -> np.ndarray:
        """(batch size,) indices of pairs."""
        config = self._config
        return rows_of_step(config.seed, step, config.batch_size, len(self._pairs))


def widest(config: Any, pairs: int, *, reference: bool) -> PairBatch:
    """A batch of zeros: so many pairs of full length, each response in a row of its own."""
    tokens = np.zeros((2 * pairs, config.prompt_length + config.response_length), np.int32)
    places = np.zeros((pairs, 2, config.response_length), np.int32)
    known = np.zeros((pairs, 2), np.float32) if reference else None
    weights = np.zeros(pairs, np.float32)
    return PairBatch(tokens, tokens, tokens, tokens > 0, places, weights, known)


def mean_over_pairs(loss: PairLoss) -> Callable[..., tuple[jax.Array, dict[str, jax.Array]]]:
    """The loss function of a trainer: (model, train_example: PairBatch) -> (loss, metrics), as
    means."""

    def loss_fn(model: Any, train_example: PairBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        found = loss(model, train_example)
        _require_a_number_each(train_example.weights.shape, found)
        return jax.tree.map(lambda each: (train_example.weights * each).sum(), found)

    return loss_fn


def _require_a_number_each(wanted: tuple[int, ...], found: Any) -> None:
    """Check what a loss returned, while the step is traced: nothing is broadcast. Raises
    StageFailed."""
    match found:
        case (losses, dict(metrics)):
            shapes = {"loss": jnp.shape(losses)} | {
                name: jnp.shape(metrics[name]) for name in metrics
            }
        case _:
            raise StageFailed(
                f"the preference loss returned a {type(found).__name__}; return a pair: the losses,"
                " a number for each pair, and a dict of metrics, which may be empty"
            )
    for name, shape in shapes.items():
        if shape != wanted:
            raise StageFailed(
                f"the preference loss returned {name!r} of shape {shape} for {wanted[0]} pairs;"
                f" return an array of shape {wanted}, a number for each pair"
            )


def response_logps(model: Any, pairs: PairBatch) -> tuple[jax.Array, jax.Array]:
    """(2, B) log-probabilities of the whole chosen and rejected responses, and (2, B) their lengths
    in tokens; without a pair, 0 of 1 token."""
    rows = (pairs.tokens, pairs.positions, pairs.segments, pairs.predicts)
    logps = row_logps(model, *rows).reshape(-1)
    of_tokens = logps.at[pairs.places].get(mode="fill", fill_value=0)
    lengths = (pairs.places < logps.size).sum(axis=-1)
    return of_tokens.sum(axis=-1).T, jnp.maximum(lengths, 1).T


def pair_metrics(
    rewards: tuple[jax.Array, jax.Array], logps: tuple[jax.Array, jax.Array]
) -> dict[str, jax.Array]:
    """The metrics of Tunix's DPOTrainer for each pair, from (B,) implicit rewards and
    log-probabilities of chosen and rejected responses.

    `rewards/accuracy` is 1 where the chosen response has the higher reward.
    """
    chosen, rejected = rewards
    return {
        "rewards/chosen": chosen,
        "rewards/rejected": rejected,
        "rewards/margin": chosen - rejected,
        "rewards/accuracy": (chosen > rejected).astype(chosen.dtype),
        "log_probs/chosen": logps[0],
        "log_probs/rejected": logps[1],
    }
