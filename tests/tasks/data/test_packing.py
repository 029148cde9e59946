"""Packing: every row kept once, little padding, and a packed row trains exactly as its parts
would."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from tasks.data.packing import best_fit, pack
from tasks.losses.cross_entropy import cross_entropy
from tasks.models.loading import base_model
from tasks.stages import sft


@given(st.lists(st.integers(1, 50), max_size=60))
def test_every_row_is_in_exactly_one_bin_that_holds_it(lengths):
    bins = best_fit(lengths, 50)
    assert sorted(index for members in bins for index in members) == list(range(len(lengths)))
    assert all(sum(lengths[index] for index in members) <= 50 for members in bins)


def test_best_fit_wastes_little():
    lengths = np.random.Generator(np.random.Philox(0)).integers(30, 90, 2000).tolist()
    packed = len(best_fit(lengths, 256)) * 256
    assert sum(lengths) / packed > 0.95


@pytest.mark.usefixtures("one_layer")
def test_packed_rows_have_the_loss_and_gradients_of_their_parts():
    generator = np.random.Generator(np.random.Philox(0))
    rows = [
        (generator.integers(6, 1000, p).tolist(), generator.integers(6, 1000, r).tolist())
        for p, r in [(5, 7), (3, 4), (8, 2)]
    ]
    together, alone = pack(rows, 32, 0), [pack([row], 32, 0) for row in rows]
    assert together.segments.max() == 3
    model = base_model("gemma3-tiny", seed=0).model

    @nnx.jit
    def gradient(model, batch):
        return nnx.value_and_grad(lambda model: cross_entropy(model, **batch))(model)

    def of(packed):
        return gradient(model, jax.tree.map(jnp.asarray, sft.batch(packed, np.arange(1), 1.0)))

    loss, grads = of(together)
    parts = [of(packed) for packed in alone]
    np.testing.assert_allclose(loss, sum(part[0] for part in parts), rtol=1e-5)
    summed = jax.tree.map(lambda *leaves: sum(leaves), *[part[1] for part in parts])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), grads, summed)
