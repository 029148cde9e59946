"""The Bradley-Terry loss on traces that are scored step by step: its formula, TRL's numbers, and
what pooling and step labels teach."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tasks.losses.bradley_terry import bradley_terry_loss, bradley_terry_loss_fn, step_loss
from tasks.reward_models.traces import soft_minimum

CHOSEN = jnp.array([1.5, -0.25, 3.0, 0.0])
REJECTED = jnp.array([0.5, 1.0, -2.0, 0.0])


def test_the_loss_is_that_of_trl():
    """The lines of TRL's RewardTrainer.compute_loss, `-logsigmoid(chosen - rejected -
    margin).mean()` and, with its `center_rewards_coefficient`, `+= coefficient * mean((chosen +
    rejected)**2)`, evaluated with torch 2.13."""
    for centering, expected in ((0.0, 0.6287633), (0.01, 0.6426696), (0.5, 1.3240758)):
        loss = float(bradley_terry_loss(CHOSEN, REJECTED, centering).mean())
        assert loss == pytest.approx(expected, rel=1e-6)


def test_a_trace_is_as_good_as_its_weakest_step():
    ends = jnp.array([[True, False, True, True]])
    found = float(soft_minimum(jnp.array([[2.0, -99.0, 1.0, 3.0]]), ends)[0])
    weights = np.exp([-2.0, -1.0, -3.0])
    assert found == pytest.approx((weights * [2.0, 1.0, 3.0]).sum() / weights.sum())
    assert 1.0 < found < 2.0
    weak = float(soft_minimum(jnp.array([[20.0, 0.0, -10.0, 30.0]]), ends)[0])
    assert weak == pytest.approx(-10, abs=1e-6)


def test_padding_a_trace_with_good_steps_does_not_hide_a_bad_one():
    """The mean of one bad step among nine good ones would be 3.5; what is not the end of a step has
    no weight and no gradient."""
    scores = jnp.array([[-4.0, *[4.0] * 9, 0.0]])
    ends = jnp.array([[*[True] * 10, False]])
    assert float(soft_minimum(scores, ends)[0]) == pytest.approx(-4, abs=0.05)
    gradient = jax.grad(lambda scores: soft_minimum(scores, ends)[0])(scores)[0]
    assert gradient[0] > 0.9
    assert float(gradient[-1]) == 0.0


def test_known_steps_are_right_or_wrong_and_others_cost_nothing():
    scores = jnp.array([[2.0, -1.0, 5.0], [1.0, 1.0, 1.0]])
    labels = jnp.array([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]])
    expected = (np.log1p(np.exp(-2.0)) + np.log1p(np.exp(-1.0))) / 2
    assert np.allclose(step_loss(scores, labels), [expected, 0.0])


class Table:
    """Stands in for a Gemma with a head: a token's hidden state is its number, whatever comes
    before it."""

    def __init__(self) -> None:
        self.score = nnx.Param(jnp.ones(1))

    def __call__(self, tokens, positions, segments) -> tuple[jax.Array, None]:
        return tokens[..., None].astype(jnp.float32), None


def pairs(width: int) -> dict[str, np.ndarray]:
    """One pair: steps end at tokens 5 and 7 of the chosen, at 1 and 9 of the rejected trace, whose
    first step is wrong."""
    rows = {
        "chosen_ids": np.array([3, 5, 7], np.int32),
        "rejected_ids": np.array([1, 2, 9], np.int32),
        "chosen_ends": np.array([0, 1, 1], bool),
        "rejected_ends": np.array([1, 0, 1], bool),
        "chosen_labels": np.array([0, 1, 0], np.int8),
        "rejected_labels": np.array([-1, 0, 0], np.int8),
    }
    padded = {name: np.pad(row, (0, width - 3))[None] for name, row in rows.items()}
    return padded | {"prompt_ids": np.array([[0, 8]], np.int32)}


def test_scores_are_read_where_steps_end_and_padding_changes_nothing():
    pools = [
        float(soft_minimum(jnp.array([row]), jnp.ones((1, 2), bool))[0])
        for row in ([5.0, 7.0], [1.0, 9.0])
    ]
    step = (np.log1p(np.exp(-5.0)) + np.log1p(np.exp(1.0))) / 2
    for width in (3, 7):
        knobs = {"pad_id": 0, "centering": 0.1, "step_weight": 0.5}
        loss, metrics = bradley_terry_loss_fn(Table(), pairs(width), **knobs)
        expected = np.log1p(np.exp(pools[1] - pools[0])) + 0.1 * sum(pools) ** 2 + 0.5 * step
        assert float(loss) == pytest.approx(expected, rel=1e-5)
        assert float(metrics["rewards/margin"]) == pytest.approx(pools[0] - pools[1], rel=1e-5)
        assert float(metrics["rewards/accuracy"]) == 1.0
    alone, _ = bradley_terry_loss_fn(Table(), pairs(3), pad_id=0, centering=0.0, step_weight=0.0)
    assert float(alone) == pytest.approx(np.log1p(np.exp(pools[1] - pools[0])), rel=1e-5)
