"""The supervised loss against the sum that it stands for."""

import jax
import numpy as np
import pytest
from flax import nnx

from tasks.losses.cross_entropy import cross_entropy
from tests.tasks.losses.bigram import VOCABULARY, Bigram, logp


def test_cross_entropy_is_the_weighted_sum_over_predicted_tokens():
    """The first token has no prediction, whatever its weight; the last row has no target."""
    model, generator = Bigram(), np.random.Generator(np.random.Philox(0))
    tokens = generator.integers(0, VOCABULARY, (3, 5)).astype(np.int32)
    weights = np.array([[9, 0, 0, 0.5, 1], [1, 2, 0, 0, 1], [1, 0, 0, 0, 0]], np.float32)
    places = np.zeros_like(tokens)
    step = nnx.jit(nnx.value_and_grad(cross_entropy))
    loss, gradient = step(model, tokens, weights, places, places)
    predicted = [(row, place) for row in range(3) for place in range(1, 5) if weights[row, place]]
    pairs = [
        (tokens[row, place - 1], tokens[row, place], weights[row, place])
        for row, place in predicted
    ]
    assert len(pairs) == 4
    assert loss == pytest.approx(-sum(w * logp(model, a, b) for a, b, w in pairs), rel=1e-5)

    def plain(table: jax.Array) -> jax.Array:
        logps = jax.nn.log_softmax(table)
        return -sum(w * logps[a, b] for a, b, w in pairs)

    expected = jax.grad(plain)(model.table())
    np.testing.assert_allclose(gradient["embedding"].get_value().T, expected, atol=1e-6)
