"""Divergences are those of the TRL that is installed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.tasks.losses.test_distillation import MASK, STUDENT, TEACHER, dense


@pytest.mark.parametrize("beta", [0, 0.1, 0.5, 0.9, 1])
def test_divergences_are_those_of_the_trl_that_is_installed(beta: float) -> None:
    trainer = pytest.importorskip(
        "trl.experimental.gkd.gkd_trainer", reason="trl is not installed"
    ).GKDTrainer
    import torch

    student, teacher = torch.tensor(STUDENT, requires_grad=True), torch.tensor(TEACHER)
    labels = torch.where(torch.tensor(MASK), 1, -100)
    theirs = trainer.generalized_jsd_loss(
        student, teacher, labels=labels, beta=beta, temperature=0.7
    )
    theirs.backward()
    loss, gradient = jax.value_and_grad(partial(dense, beta, 0.7))(jnp.asarray(STUDENT), TEACHER)
    assert loss == pytest.approx(theirs.item(), abs=1e-5)
    assert student.grad is not None
    np.testing.assert_allclose(gradient, student.grad.numpy(), atol=1e-6)
