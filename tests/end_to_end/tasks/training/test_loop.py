"""The training step under every way to compute the forward pass again."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from schemas.training import Remat
from tasks.losses.cross_entropy import cross_entropy
from tasks.models.loading import base_model
from tests.tasks.training.test_loop import batch, model_input

pytestmark = pytest.mark.usefixtures("one_layer")


def test_what_the_backward_pass_computes_again_changes_no_gradient():
    inputs = model_input({key: jnp.asarray(value) for key, value in batch().items()})
    model = base_model("gemma3-tiny", seed=0).model
    found = []

    def text_of(graph):
        return str(
            jax.make_jaxpr(lambda state: gradient(nnx.merge(graph, state), inputs))(
                nnx.state(model)
            )
        )

    for remat in get_args(Remat):
        model.remat = remat
        found.append(
            (text_of(nnx.graphdef(model)), nnx.jit(lambda model: gradient(model, inputs))(model))
        )
    (_, (loss, gradients)), *others = found
    assert len({text for text, _ in found}) == len(get_args(Remat))
    for _, (other, theirs) in others:
        np.testing.assert_allclose(other, loss, rtol=1e-6)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5), theirs, gradients
        )


def gradient(model, inputs):
    return nnx.value_and_grad(lambda model: cross_entropy(model, **inputs))(model)
