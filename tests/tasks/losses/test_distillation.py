"""GKD's divergences: the numbers and gradients of TRL, the vectors of the formulas, and the same
from chunks of hidden states."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tasks.distillation.student_samples import DistillBatch
from tasks.losses.distillation import (
    attach_teacher,
    generalized_jsd,
    gkd_loss_fn,
    token_divergences,
)
from tasks.models import vocabulary
from tasks.models.decoder import SIZES, unembed
from tasks.models.weights import initialise
from tasks.reinforcement.rollout import row_weights

STUDENT = [
    [[2.265, 0.093, -3.439, 2.202, 3.633], [2.531, 0.017, -4.406, 2.798, 0.366],
     [-0.634, -2.714, 2.239, -2.014, 6.303]],
    [[-1.078, 1.351, -2.195, -4.44, -2.747], [-2.987, -0.619, -2.972, -2.037, 2.515],
     [6.104, 3.793, 4.774, -2.73, 1.983]],
]  # fmt: skip
TEACHER = [
    [[-1.0, -3.053, -0.439, 1.021, 1.169], [1.429, -5.176, 4.912, 0.972, 2.706],
     [0.719, 2.464, -4.013, -4.766, 3.27]],
    [[1.201, -0.279, -6.882, -2.482, 3.507], [2.77, 1.633, 1.81, 1.035, 1.377],
     [3.124, 1.904, -1.065, -1.598, -1.44]],
]  # fmt: skip
MASK = np.array([[1, 1, 0], [1, 0, 0]], bool)
RECORDED = {
    (0, 1.0): (3.5872517, [0.0383241, 0.0041167, -0.0302762, -0.0788619, 0.0666973]),
    (0, 0.7): (5.5127449, [0.0418298, 0.0017877, -0.0244441, -0.1486466, 0.1294733]),
    (0.1, 1.0): (0.1844787, [0.0030780, 0.0003266, -0.0004780, -0.0070762, 0.0041497]),
    (0.1, 0.7): (0.2166731, [0.0034545, 0.0001463, -0.0000700, -0.0120898, 0.0085589]),
    (0.5, 1.0): (0.3970552, [0.0090724, 0.0009398, -0.0004186, -0.0171997, 0.0076061]),
    (0.5, 0.7): (0.4647074, [0.0103338, 0.0004270, -0.0000519, -0.0252183, 0.0145094]),
    (0.9, 1.0): (0.1649359, [0.0039785, 0.0003968, -0.0000974, -0.0057985, 0.0015206]),
    (0.9, 0.7): (0.2058587, [0.0049921, 0.0001972, -0.0000116, -0.0078679, 0.0026902]),
    (1, 1.0): (2.2646701, [0.0478252, 0.0046943, -0.0010037, -0.0640996, 0.0125838]),
    (1, 0.7): (3.4260247, [0.0632884, 0.0024397, -0.0001184, -0.0858343, 0.0202245]),
}
"""(beta, temperature) -> the loss on the tokens of MASK and the gradient of the first one's student
logits: TRL 1.16.0's `GKDTrainer.generalized_jsd_loss` with torch 2.15.0."""


def dense(beta: float, temperature: float, student: Any, teacher: Any) -> jax.Array:
    """The mean divergence over MASK from logits."""
    ours, theirs = (
        jax.nn.log_softmax(jnp.asarray(one) / temperature) for one in (student, teacher)
    )
    found = generalized_jsd(ours, theirs, beta)
    return jnp.sum(found * MASK) / MASK.sum()


def test_divergences_and_gradients_are_those_trl_gave() -> None:
    for (beta, temperature), (expected, slope) in RECORDED.items():
        mean = partial(dense, beta, temperature)
        loss, gradient = jax.value_and_grad(mean)(jnp.asarray(STUDENT), TEACHER)
        assert loss == pytest.approx(expected, abs=1e-5)
        np.testing.assert_allclose(gradient[0, 0], slope, atol=1e-6)


B, T, CHUNK = 3, 11, 7
SMALL = replace(SIZES["gemma3-tiny"], vocab_size=50, embed_dim=8)
LARGE = replace(SIZES["gemma3-tiny"], vocab_size=54, embed_dim=12, final_softcap=3.0)
"""A teacher whose vocabulary has four rows more."""


def drawn() -> list[jax.Array]:
    """Embedding and hidden states of the student, of the teacher, mask, and weights of the
    tokens."""
    random = np.random.Generator(np.random.Philox(0))
    shapes = [(50, 8), (B, T, 8), (54, 12), (B, T, 12)]
    arrays = [random.standard_normal(shape, np.float32) for shape in shapes]
    return [
        *map(jnp.asarray, arrays),
        jnp.asarray(random.random((B, T)) < 0.6),
        jnp.asarray(random.random((B, T), np.float32)),
    ]


@pytest.mark.parametrize("beta", [0, 0.3, 1])
def test_in_chunks_they_are_those_of_all_logits(beta, monkeypatch):
    """Values, gradients of hidden states and embedding, and entropies; over the words that both
    vocabularies have."""
    monkeypatch.setattr(vocabulary, "CHUNK", CHUNK)

    def ours(embedding, hidden, of_teacher, states, mask, weights) -> Any:
        held = SimpleNamespace(get_value=lambda: embedding)
        model = SimpleNamespace(config=SMALL, embedding=held)
        theirs = (LARGE, of_teacher, states)
        found, entropies = token_divergences(
            model, hidden, theirs, mask, beta=beta, temperature=0.7
        )
        return jnp.sum(weights * found**2), entropies

    def whole(embedding, hidden, of_teacher, states, mask, weights) -> Any:
        student = jax.nn.log_softmax(unembed(SMALL, embedding, hidden) / 0.7)
        teacher = jax.nn.log_softmax(unembed(LARGE, of_teacher, states)[..., :50] / 0.7)
        entropies = -jnp.sum(jnp.exp(student) * student, axis=-1)
        apart = jnp.where(mask, generalized_jsd(student, teacher, beta), 0)
        return jnp.sum(weights * apart**2), jnp.where(mask, entropies, 0)

    found, expected = (
        jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))(*drawn()) for loss in (ours, whole)
    )
    same = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    jax.tree.map(same, found, expected)


def test_the_loss_of_a_batch_is_the_mean_over_its_tokens_whatever_the_micro_batches() -> None:
    """Two rows of 3 and 1 tokens, a third that does not count: the mean over 4 tokens, from the
    whole batch and row by row."""
    config = replace(SIZES["gemma3-tiny"], num_layers=1, hidden_dim=32, embed_dim=32, vocab_size=64)
    student, teacher = (initialise(config, seed) for seed in (0, 1))
    attach_teacher(student, teacher.embedding.get_value())
    random = np.random.Generator(np.random.Philox(2))
    prompts, responses = random.integers(6, 64, (3, 4)), random.integers(6, 64, (3, 3))
    responses[1, 1:] = 0
    tokens = jnp.asarray(np.concatenate([prompts, responses], axis=1))
    real = tokens != 0
    places = jnp.maximum(jnp.cumsum(real, axis=-1) - 1, 0)
    forward = nnx.jit(lambda model: model(tokens, places, real.astype(jnp.int32))[0])
    ours, theirs = forward(student), forward(teacher)
    mask, counted = responses != 0, np.array([True, True, False])
    weights = row_weights(mask, counted, "token", 3)
    batch = DistillBatch(prompts, responses, mask & counted[:, None], theirs[:, 3:6], weights)
    loss_fn = nnx.jit(gkd_loss_fn(pad_id=0, beta=0.5, temperature=1.0, teacher=config))
    loss, metrics = loss_fn(student, batch)

    logps = [
        jax.nn.log_softmax(model.unembed(hidden[:, 3:6]))
        for model, hidden in ((student, ours), (teacher, theirs))
    ]
    expected = generalized_jsd(logps[0], logps[1], 0.5)[mask & counted[:, None]]
    assert expected.shape == (4,)
    assert loss == pytest.approx(float(expected.mean()), rel=1e-5)
    entropies = -jnp.sum(jnp.exp(logps[0]) * logps[0], -1)[mask & counted[:, None]]
    assert metrics["entropy"] == pytest.approx(float(entropies.mean()), rel=1e-5)
    alone = [jax.tree.map(lambda x, row=row: x[row : row + 1], batch) for row in range(3)]
    rows = [loss_fn(student, one)[0] for one in alone]
    assert np.mean(rows) == pytest.approx(float(loss), rel=1e-5)
