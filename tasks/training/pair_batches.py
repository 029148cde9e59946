"""Preference pairs in a compiled step: what SimPO, DPO and ORPO share.

A loss is a function of the log-probabilities of the chosen and of the rejected response. The
terminator counts as a token of its response.
"""

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from tasks.models.vocabulary import completion_logps, positions_of


@flax.struct.dataclass(frozen=True)
class PairBatch:
    """B pairs; the fields are Tunix's TrainingInput's, and the reference's verdict.

    Attributes:
        prompt_ids, prompt_mask: (B, P) int32 and bool, left-padded.
        chosen_ids, rejected_ids: (B, R) int32, right-padded, each with its mask of real tokens.
        ref_chosen_logps, ref_rejected_logps: (B,) float32, of the whole responses; None for a loss
            without a reference.
    """

    prompt_ids: Any
    prompt_mask: Any
    chosen_ids: Any
    chosen_mask: Any
    rejected_ids: Any
    rejected_mask: Any
    ref_chosen_logps: Any = None
    ref_rejected_logps: Any = None


class PairRows(NamedTuple):
    """B pairs as 2B rows of prompt and response, the chosen ones first.

    Attributes:
        tokens, positions, segments: (2B, P + R), what the model takes.
        completion_mask: (2B, R) bool: real tokens of the responses; every row has one.
        ref_logps: (2B,) of the reference, or None.
    """

    tokens: jax.Array
    positions: jax.Array
    segments: jax.Array
    completion_mask: jax.Array
    ref_logps: Any


def stack_pairs(pairs: PairBatch) -> PairRows:
    """Tokenised pairs as rows for one forward pass.

    It runs inside the compiled step, so that a micro-batch is a slice of pairs and not of stacked
    rows.
    """
    completion_mask = jnp.concatenate([pairs.chosen_mask, pairs.rejected_mask])
    real = jnp.concatenate([jnp.tile(pairs.prompt_mask, (2, 1)), completion_mask], axis=1)
    responses = jnp.concatenate([pairs.chosen_ids, pairs.rejected_ids])
    referred = pairs.ref_chosen_logps is not None
    return PairRows(
        tokens=jnp.concatenate([jnp.tile(pairs.prompt_ids, (2, 1)), responses], axis=1),
        positions=positions_of(real),
        segments=real.astype(jnp.int32),
        completion_mask=completion_mask,
        ref_logps=(
            jnp.concatenate([pairs.ref_chosen_logps, pairs.ref_rejected_logps])
            if referred
            else None
        ),
    )


def response_logps(model: Any, rows: PairRows) -> tuple[jax.Array, jax.Array]:
    """(2B,) log-probabilities of the whole responses, and (2B,) their lengths in tokens."""
    logps = completion_logps(
        model, rows.tokens, rows.positions, rows.segments, rows.completion_mask
    )
    return logps.sum(axis=-1), rows.completion_mask.sum(axis=-1)


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
