"""ORPO: supervised learning and preferences at once, without a reference (Hong et al., 2403.07691,
equations 6 and 7).

    L = -mean log pi(y_w|x) - lambda log sigma( log odds(y_w|x) - log odds(y_l|x) )
    odds(y|x) = P / (1 - P),   log P = mean log pi(y|x)

P is the geometric mean of the tokens' probabilities, as in the paper and in TRL. Tunix 0.1.7 has
the same formula on the product of the tokens' probabilities, the odds of which are the probability
itself for any response of more than a few tokens. The supervised term is the response's, as in
Tunix; TRL's includes the prompt's tokens.
"""

from typing import Any

import jax
import jax.numpy as jnp

from tasks.training.pair_batches import PairBatch, PairLoss, pair_metrics, response_logps

CERTAIN = -1e-7
"""The largest mean log-probability that odds are taken of: those of a certain response are
infinite."""


def log_odds(logps: jax.Array) -> jax.Array:
    """log P -> log P - log(1 - P), exact for P near 0 and near 1."""
    logps = jnp.minimum(logps, CERTAIN)
    return logps - jnp.log(-jnp.expm1(logps))


def orpo_loss(chosen: jax.Array, rejected: jax.Array, lambda_orpo: float) -> jax.Array:
    """(B,) mean log-probabilities per token of the chosen and of the rejected responses -> (B,)
    losses."""
    return -chosen - lambda_orpo * jax.nn.log_sigmoid(log_odds(chosen) - log_odds(rejected))


def orpo_loss_fn(*, lambda_orpo: float) -> PairLoss:
    """The loss of a model on pairs.

    Args:
        lambda_orpo: weight of the preference beside the supervised term.

    Returns:
        a function giving each pair's loss and `pair_metrics`: rewards are lambda x mean
        log-probability, log_probs are means per token; and `log_odds_ratio`, the mean of the
        sigmoid's argument.
    """

    def loss(model: Any, pairs: PairBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        logps, lengths = response_logps(model, pairs)
        chosen, rejected = logps / lengths
        metrics = pair_metrics((lambda_orpo * chosen, lambda_orpo * rejected), (chosen, rejected))
        metrics["log_odds_ratio"] = log_odds(chosen) - log_odds(rejected)
        return orpo_loss(chosen, rejected, lambda_orpo), metrics

    return loss
