"""SimPO: reference-free preference optimization on length-normalised log-probabilities (Meng et
al., 2405.14734, equation 6).

    L = -log sigma( beta/|y_w| log pi(y_w|x) - beta/|y_l| log pi(y_l|x) - gamma )

beta scales the implicit reward, gamma = beta x gamma_beta_ratio is the target margin. Tunix 0.1.7
has DPO and ORPO but no SimPO, and its `compute_logps` sums log-probabilities over a response: here
the sums are divided by the response lengths.

SimPO rewards the distance between two log-probabilities and may lower both. An optional supervised
term, - sft_weight x mean log pi(y_w|x), keeps the chosen responses likely (as in CPO, 2401.08417,
and in the SimPO authors' CPO-SimPO).
"""

from typing import Any

import jax

from tasks.training.pair_batches import PairBatch, PairLoss, pair_metrics, response_logps


def simpo_loss(
    chosen: jax.Array, rejected: jax.Array, beta: float, gamma_beta_ratio: float
) -> jax.Array:
    """(B,) mean log-probabilities per token of the chosen and of the rejected responses -> (B,)
    losses."""
    return -jax.nn.log_sigmoid(beta * (chosen - rejected - gamma_beta_ratio))


def simpo_loss_fn(*, beta: float, gamma_beta_ratio: float, sft_weight: float) -> PairLoss:
    """The loss of a model on pairs.

    Args:
        beta, gamma_beta_ratio: of `simpo_loss`.
        sft_weight: weight of the chosen responses' negative log-likelihood per token; 0 is the
            paper's loss.

    Returns:
        a function giving each pair's loss and `pair_metrics`: rewards are beta x mean
        log-probability, log_probs are means per token.
    """

    def loss(model: Any, pairs: PairBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        logps, lengths = response_logps(model, pairs)
        chosen, rejected = logps / lengths
        losses = simpo_loss(chosen, rejected, beta, gamma_beta_ratio) - sft_weight * chosen
        return losses, pair_metrics((beta * chosen, beta * rejected), (chosen, rejected))

    return loss
