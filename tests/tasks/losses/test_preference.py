"""SimPO, DPO and ORPO where TRL has no numbers for test_trl_parity.py: rows that pairs share, terms
of ours, extremes."""

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from schemas.base import StageFailed
from tasks.data.packing import Shape
from tasks.losses.dpo import dpo_loss, dpo_loss_fn
from tasks.losses.orpo import log_odds, orpo_loss_fn
from tasks.losses.simpo import simpo_loss_fn
from tasks.training.pair_batches import PairBatch, mean_over_pairs
from tests.tasks.losses.bigram import EOS, Bigram, logp, pairs

CHOSEN, REJECTED = [[4, EOS], [2, 5, EOS]], [[5, 5, 5, EOS], [3, EOS]]
REFERENCE = np.array([[-3.1, -6.4], [-2.2, -4.0]], np.float32)


@cache
def compiled(loss_fn: Callable[..., Any]) -> Any:
    """(model, pairs, knobs) -> ((loss, metrics), gradients)."""

    def mean(model: Any, batch: PairBatch, knobs: Any) -> Any:
        return mean_over_pairs(loss_fn(**knobs))(model, batch)

    return nnx.jit(nnx.value_and_grad(mean, has_aux=True))


def stepped(loss_fn: Callable[..., Any], batch: PairBatch, **knobs: float) -> Any:
    """((loss, metrics), gradient of the table's transpose)."""
    found, gradient = compiled(loss_fn)(
        Bigram(), batch, {name: np.float32(value) for name, value in knobs.items()}
    )
    return found, np.asarray(gradient["embedding"].get_value())


def simpo(batch: PairBatch, ratio: float, sft_weight: float = 0.0) -> Any:
    """(loss, metrics) at beta 2."""
    return stepped(simpo_loss_fn, batch, beta=2.0, gamma_beta_ratio=ratio, sft_weight=sft_weight)[0]


def test_neither_padding_nor_company_in_a_row_changes_a_loss():
    """Four texts of 4 to 6 tokens: each in a row of its own, two in one of five rows, two in
    each of two."""
    for loss_fn, knobs in (
        (simpo_loss_fn, {"beta": 2.0, "gamma_beta_ratio": 0.5, "sft_weight": 0.0}),
        (dpo_loss_fn, {"beta": 0.3, "label_smoothing": 0.1}),
        (orpo_loss_fn, {"lambda_orpo": 0.25}),
    ):
        shapes = (Shape(4, 6), Shape(5, 9), Shape(2, 10))
        batches = [pairs(CHOSEN, REJECTED, shape, REFERENCE) for shape in shapes]
        found = [stepped(loss_fn, batch, **knobs) for batch in batches]
        for (loss, metrics), gradient in found[1:]:
            assert loss == pytest.approx(float(found[0][0][0]), rel=1e-6)
            np.testing.assert_allclose(gradient, found[0][1], rtol=1e-5, atol=1e-7)
            for name, value in metrics.items():
                assert value == pytest.approx(float(found[0][0][1][name]), rel=1e-6)


def test_the_supervised_term_is_the_negative_log_likelihood_of_the_chosen_response():
    without, metrics = simpo(pairs(CHOSEN, REJECTED), ratio=0.5)
    with_term, _ = simpo(pairs(CHOSEN, REJECTED), ratio=0.5, sft_weight=0.3)
    assert with_term - without == pytest.approx(-0.3 * float(metrics["log_probs/chosen"]), rel=1e-4)


def test_a_pair_of_dpo_may_be_the_wrong_way_round():
    """beta 1, log-ratios 1 and -.5: a margin of 1.5, and of -1.5 with probability .1."""
    right, wrong = np.log1p(np.exp([-1.5, 1.5]))
    found = dpo_loss(jnp.float32(1.0), jnp.float32(-0.5), 1.0, 0.1)
    assert found == pytest.approx(0.9 * right + 0.1 * wrong, rel=1e-5)


def test_orpo_without_its_preference_is_supervised_training_on_the_chosen():
    """Whatever is rejected: loss and gradient are those of the mean over the chosen responses."""
    model = Bigram()
    first = (logp(model, 3, 4) + logp(model, 4, EOS)) / 2
    second = (logp(model, 3, 2) + logp(model, 2, 5) + logp(model, 5, EOS)) / 3
    found = [
        stepped(orpo_loss_fn, pairs(CHOSEN, rejected), lambda_orpo=0.0)
        for rejected in (REJECTED, [[2, 2, EOS], [4, 4, EOS]])
    ]
    for (loss, _), gradient in found:
        assert loss == pytest.approx(-(first + second) / 2, rel=1e-5)
        np.testing.assert_allclose(gradient, found[0][1], rtol=1e-6)


def test_log_odds_are_exact_for_rare_and_for_near_certain_responses_and_finite_for_certain_ones():
    """float32: 1 - P itself would be 0 below P = 1 - 6e-8."""
    logps = np.array([-30.0, -0.7, -1e-3, -1e-6])
    np.testing.assert_allclose(
        log_odds(jnp.asarray(logps, jnp.float32)), logps - np.log(-np.expm1(logps)), rtol=1e-5
    )
    value, slope = jax.value_and_grad(log_odds)(0.0)
    assert np.isfinite([value, slope]).all()


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda model, pairs: (pairs.weights.mean(), {}), r"'loss' of shape \(\) for 2 pairs"),
        (lambda model, pairs: (pairs.weights[:, None], {}), r"'loss' of shape \(2, 1\) for 2"),
        (lambda model, pairs: (pairs.weights, {"kl": 0.5}), r"'kl' of shape \(\) for 2 pairs"),
        (lambda model, pairs: pairs.weights, "return a pair: the losses"),
    ],
)
def test_a_loss_of_another_shape_is_refused_and_never_broadcast(loss, said):
    """Of (2, 1) the sum would be twice the loss, and its gradient another."""
    with pytest.raises(StageFailed, match=said):
        mean_over_pairs(loss)(Bigram(), pairs(CHOSEN, REJECTED))
