"""The training step under every way to compute the forward pass again, and a loop that pauses."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from schemas.base import Stopped
from schemas.trainer_config import Remat
from tasks.losses.cross_entropy import cross_entropy
from tasks.models.loading import base_model
from tests.tasks.models.small_model import weights_of
from tests.tasks.training.test_loop import BATCH, batch, model_input, train

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


def test_a_job_that_pauses_goes_on_from_that_step_to_the_same_bytes(tmp_path):
    """Asked while step 2 is prepared: a checkpoint after step 2 of 4. Asked at the last step: it
    finishes."""
    seen: list[int] = []

    def batch_at(step: int) -> dict[str, np.ndarray]:
        seen.append(step)
        return batch(step)

    given = {"steps": 4, "batch_size": BATCH}
    with pytest.raises(Stopped, match="paused at its checkpoint after step 2 of 4"):
        train(tmp_path / "paused", batch_at, pausing=lambda: 1 in seen, **given)
    loaded, curve = train(tmp_path / "paused", batch_at, pausing=lambda: 3 in seen, **given)
    assert seen == [0, 1, 2, 3]
    whole, expected = train(tmp_path / "whole", batch, **given)
    assert curve == expected
    weights = weights_of(whole)
    assert all(np.array_equal(value, weights[name]) for name, value in weights_of(loaded).items())
