"""SimPO: reference-free preference optimization on length-normalised log-probabilities (Meng et al., 2405.14734, equation 6).

    L = -log sigma( beta/|y_w| log pi(y_w|x) - beta/|y_l| log pi(y_l|x) - gamma )

beta scales the implicit reward, gamma = beta x gamma_beta_ratio is the margin by which the chosen response has to win. Tunix 0.1.7 has DPO
and ORPO but no SimPO, and its `compute_logps` sums log-probabilities over a response: here the sums are divided by the response lengths.
The terminator counts as a token of its response.

SimPO rewards the distance between two log-probabilities and may lower both. An optional supervised term, - sft_weight x mean log pi(y_w|x),
keeps the chosen responses likely (as in CPO, 2401.08417, and in the SimPO authors' CPO-SimPO).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from tunix.sft.dpo.dpo_trainer import TrainingInput

from tasks.losses.vocabulary import completion_logps, positions_of


class PairRows(NamedTuple):
    """B pairs as 2B rows of prompt and response, the chosen ones first.

    Attributes:
        tokens, positions, segments: (2B, P + R), what the model takes.
        completion_mask: (2B, R) bool: real tokens of the responses.
    """

    tokens: jax.Array
    positions: jax.Array
    segments: jax.Array
    completion_mask: jax.Array


def stack_pairs(pairs: TrainingInput) -> PairRows:
    """Tokenised pairs as rows for one forward pass.

    It runs inside the compiled step, so that a micro-batch is a slice of pairs and not of stacked rows.

    Args:
        pairs: prompt_ids (B, P) left-padded, chosen_ids and rejected_ids (B, R) right-padded, each with its mask of real tokens.
    """
    completion_mask = jnp.concatenate([pairs.chosen_mask, pairs.rejected_mask])
    real = jnp.concatenate([jnp.tile(pairs.prompt_mask, (2, 1)), completion_mask], axis=1)
    responses = jnp.concatenate([pairs.chosen_ids, pairs.rejected_ids])
    return PairRows(
        tokens=jnp.concatenate([jnp.tile(pairs.prompt_ids, (2, 1)), responses], axis=1),
        positions=positions_of(real),
        segments=real.astype(jnp.int32),
        completion_mask=completion_mask,
    )


def simpo_loss(chosen: jax.Array, rejected: jax.Array, beta: float, gamma_beta_ratio: float) -> jax.Array:
    """(B,) mean log-probabilities per token of the chosen and of the rejected responses -> (B,) losses."""
    return -jax.nn.log_sigmoid(beta * (chosen - rejected - gamma_beta_ratio))


def simpo_loss_fn(
    model: Any, train_example: PairRows, beta: float, gamma_beta_ratio: float, sft_weight: float
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The loss for Tunix's DPOTrainer: `with_loss_fn(simpo_loss_fn, has_aux=True)`.

    Args:
        model: a Gemma.
        train_example: what `stack_pairs` made; every row has at least one response token.
        sft_weight: weight of the chosen responses' negative log-likelihood per token; 0 is the paper's loss.

    Returns:
        the mean loss over the pairs, and the metrics that DPOTrainer logs: rewards are beta x mean log-probability, log_probs are means per
        token, accuracy is the fraction of pairs whose chosen response has the higher reward.
    """
    tokens, positions, segments, mask = train_example
    logps = completion_logps(model, tokens, positions, segments, mask)
    chosen, rejected = jnp.split(logps.sum(axis=-1) / mask.sum(axis=-1), 2)
    losses = simpo_loss(chosen, rejected, beta, gamma_beta_ratio) - sft_weight * chosen
    metrics = {
        "rewards/chosen": beta * chosen.mean(),
        "rewards/rejected": beta * rejected.mean(),
        "rewards/margin": beta * (chosen - rejected).mean(),
        "rewards/accuracy": (chosen > rejected).mean(),
        "log_probs/chosen": chosen.mean(),
        "log_probs/rejected": rejected.mean(),
    }
    return losses.mean(), metrics
