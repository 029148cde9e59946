"""DPO: preference optimization against a reference (Rafailov et al., 2305.18290, equation 7), equal
to Tunix's and TRL's.

    L = -log sigma( beta (log pi(y_w|x) - log pi_ref(y_w|x)) - beta (log pi(y_l|x) - log
    pi_ref(y_l|x)) )

on the log-probabilities of whole responses, not divided by their lengths. With `label_smoothing` e
a preference is assumed to be the wrong way round with probability e (conservative DPO, Mitchell
2023): (1 - e) L + e L', where L' has the responses exchanged.
"""

from typing import Any

import jax

from tasks.training.pair_batches import PairBatch, PairLoss, pair_metrics, response_logps


def dpo_loss(
    chosen: jax.Array, rejected: jax.Array, beta: float, label_smoothing: float
) -> jax.Array:
    """(B,) log-ratios log pi - log pi_ref of the chosen and of the rejected responses -> (B,)
    losses."""
    margin = beta * (chosen - rejected)
    return -(1 - label_smoothing) * jax.nn.log_sigmoid(
        margin
    ) - label_smoothing * jax.nn.log_sigmoid(-margin)


def dpo_loss_fn(*, beta: float, label_smoothing: float) -> PairLoss:
    """The loss of a model on pairs.

    Args:
        beta: the penalty for leaving the reference; scale of the implicit reward.
        label_smoothing: see above.

    Returns:
        a function of a model and pairs with `ref_logps`, giving each pair's loss and
        `pair_metrics`: rewards are beta x log-ratio, log_probs are of whole responses.
    """

    def loss(model: Any, pairs: PairBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        logps, _ = response_logps(model, pairs)
        chosen, rejected = logps - pairs.ref_logps.T
        losses = dpo_loss(chosen, rejected, beta, label_smoothing)
        return losses, pair_metrics((beta * chosen, beta * rejected), (logps[0], logps[1]))

    return loss
