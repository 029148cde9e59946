"""Pairs in packed rows: of one shape for all steps, known before the first, and with the loss and
the gradients of a row to each response."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tasks.data.packing import Shape
from tasks.devices.hosts import BATCH, make_mesh
from tasks.models.decoder import SIZES, Gemma
from tasks.models.loading import base_model
from tasks.stages import dpo, simpo
from tasks.training.loop import rows_of_step
from tasks.training.pair_batches import PairBatch, PairBatches, pair_batch, response_logps
from tasks.training.preference_kind import trainer_of
from tests.tasks.stages.bench import PREFERENCES

RESPONSE = 16


def some_pairs(count: int) -> list[Any]:
    """Prompts of 3 to 8 tokens, responses of 1 to 16."""
    generator = np.random.Generator(np.random.Philox(0))

    def tokens(low: int, high: int) -> list[int]:
        found: list[int] = generator.integers(6, 1000, generator.integers(low, high + 1)).tolist()
        return found

    prompts = [tokens(3, 8) for _ in range(count)]
    return [tuple((prompt, tokens(1, RESPONSE)) for _ in range(2)) for prompt in prompts]


def loaded_on(devices: int) -> Any:
    """As much of a loaded model as the choice of a shape wants."""
    mesh = SimpleNamespace(shape={BATCH: devices}, devices=make_mesh().devices)
    tokenizer = SimpleNamespace(pad_id=0)
    return SimpleNamespace(mesh=mesh, tokenizer=tokenizer, config=SIZES["gemma3-tiny"])


def config(**changes: Any) -> simpo.Config:
    lengths = {"prompt_length": 8, "response_length": 40}
    return simpo.Config.parse({**PREFERENCES, **lengths, **changes})


@pytest.mark.usefixtures("one_layer")
@pytest.mark.parametrize("shared", [True, False])
def test_log_probabilities_are_those_of_each_response_alone(shared: bool):
    """Shared, two pairs lie in a row of 40 tokens, behind the prompt of each."""
    model, pairs = base_model("gemma3-tiny", seed=0).model, some_pairs(3)
    batch = pair_batch([pairs], Shape(4, 40 if shared else 24), RESPONSE, 0, shared=shared)
    logps, lengths = nnx.jit(response_logps)(model, jax.tree.map(jnp.asarray, batch))
    for number, pair in enumerate(pairs):
        for side, (prompt, response) in enumerate(pair):
            assert lengths[side, number] == len(response)
            text = prompt + response
            every = logps_alone(model, np.asarray([text + [0] * (24 - len(text))]))
            places = range(len(prompt) - 1, len(text) - 1)
            alone = sum(every[place, token] for place, token in zip(places, response, strict=True))
            np.testing.assert_allclose(logps[side, number], alone, rtol=1e-4)


@nnx.jit
def logps_alone(model: Gemma, tokens: jax.Array) -> jax.Array:
    """What follows a text in its row changes nothing before it."""
    hidden, _ = model(tokens, jnp.arange(tokens.shape[1])[None], jnp.ones_like(tokens))
    return jax.nn.log_softmax(model.unembed(hidden)[0])


@pytest.mark.parametrize("micro", [None, 2, 1])
def test_every_step_has_one_shape_and_the_pairs_that_are_its_turn(micro: int | None):
    pairs, chosen = some_pairs(10), config(micro_batch_size=micro)
    batches = PairBatches(pairs, chosen, loaded_on(1))
    parts, shape = chosen.accumulation, batches.shape
    real = computed = 0
    for step in range(chosen.steps):
        batch = batches.at(step)
        assert batch.tokens.shape == (parts * shape.rows, shape.length)
        turn = rows_of_step(chosen.seed, step, chosen.batch_size, len(pairs))
        there = batch.weights > 0
        taken = [texts for texts, pair in zip(texts_of(batch, parts), there, strict=True) if pair]
        assert sorted(taken) == sorted(responses(pairs[row]) for row in turn)
        assert batch.weights[there].tolist() == [parts / chosen.batch_size] * chosen.batch_size
        wanted = batch.weights.reshape(parts, -1).any(axis=1)
        written = (batch.segments > 0).reshape(parts, -1)
        assert (written.any(axis=1) == wanted).all()
        real += written.sum()
        computed += wanted.sum()
    assert batches.micro_batches == computed <= chosen.steps * parts
    tokens = computed * shape.rows * shape.length
    assert tokens < 0.6 * 48 * 2 * chosen.batch_size * chosen.steps, "of a row for each response"
    assert batches.padding == pytest.approx(1 - real / tokens)


@pytest.mark.usefixtures("one_layer")
def test_pairs_that_fill_some_micro_batches_train_as_in_all_of_them():
    """Loss, metrics and gradient norm, with a reference; 6 pairs two a micro-batch, and 5 and 1 of
    which the third is empty."""
    pairs, reference = some_pairs(6), np.linspace(-90, -20, 12, dtype=np.float32).reshape(6, 2)
    chosen = dpo.Config.parse({**PREFERENCES, "batch_size": 6, "micro_batch_size": 2})
    found = []
    for turns in ([[0, 1], [2, 3], [4, 5]], [[5, 1, 3, 2, 0], [4], []]):
        trainer = trainer_of(chosen, base_model("gemma3-tiny", 0), dpo.loss_of(chosen))
        batch = pair_batch(
            [[pairs[turn] for turn in turns_of] for turns_of in turns],
            Shape(10, 24),
            RESPONSE,
            0,
            [reference[np.array(turns_of, int)] for turns_of in turns],
        )
        found.append(trainer.step(batch))
    assert found[0][1].keys() == found[1][1].keys()
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        assert float(other) == pytest.approx(float(one), rel=1e-5)


def test_rows_are_spread_over_all_devices():
    batches = PairBatches(some_pairs(10), config(micro_batch_size=None), loaded_on(4))
    assert batches.shape.rows % 4 == 0


def responses(pair: Any) -> list[list[int]]:
    return [response for _, response in pair]


def texts_of(batch: PairBatch, parts: int) -> list[Any]:
    """Of each pair both responses, read where `places` says."""
    found = []
    for rows, places in zip(
        np.split(batch.tokens, parts), np.split(batch.places, parts), strict=True
    ):
        flat = rows.reshape(-1)
        found += [[flat[side[side < flat.size] + 1].tolist() for side in pair] for pair in places]
    return found
