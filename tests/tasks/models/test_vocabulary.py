"""Log-probabilities in chunks: the numbers and gradients of dense logits, no array of all logits,
nothing for tokens without a target."""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from schemas.trainer_config import LoraConfig
from tasks.models import vocabulary
from tasks.models.decoder import SIZES, GemmaConfig, unembed
from tasks.models.lora import add_lora
from tasks.models.vocabulary import token_logps
from tasks.models.weights import initialise

B, T, D, V, CHUNK = 3, 11, 8, 50, 7
PLAIN = replace(SIZES["gemma3-tiny"], vocab_size=V, embed_dim=D)
CAPPED = replace(PLAIN, final_softcap=3.0)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "CHUNK", CHUNK)


@pytest.fixture(autouse=True)
def _names_of_this_code() -> Iterator[None]:
    """What was compiled is looked up by its names too: the programs here are searched for the name
    of a loop."""
    jax.config.update("jax_compilation_cache_include_metadata_in_key", True)
    yield
    jax.config.update("jax_compilation_cache_include_metadata_in_key", False)


def drawn(fraction: float, dtype: str = "float32") -> tuple[jax.Array, ...]:
    """(V, D) embedding, (B, T, D) hidden, (B, T) targets, mask and weights."""
    random = np.random.Generator(np.random.Philox(0))
    arrays = (
        2 * random.standard_normal((V, D), np.float32).astype(dtype),
        random.standard_normal((B, T, D), np.float32).astype(dtype),
        random.integers(0, V, (B, T), np.int32),
        random.random((B, T)) < fraction,
        random.standard_normal((B, T), np.float32),
    )
    return tuple(map(jnp.asarray, arrays))


def stand_in(config: GemmaConfig, embedding: jax.Array) -> Any:
    return SimpleNamespace(config=config, embedding=SimpleNamespace(get_value=lambda: embedding))


def ours(config, temperature, embedding, hidden, targets, mask, weights) -> jax.Array:
    """A loss that is not linear in the log-probabilities."""
    logps = token_logps(stand_in(config, embedding), hidden, targets, mask, temperature=temperature)
    return jnp.sum(weights * jnp.exp(logps / 4))


def dense(config, temperature, embedding, hidden, targets, mask, weights) -> jax.Array:
    """The same from all logits."""
    logps = jax.nn.log_softmax(unembed(config, embedding, hidden) / temperature)
    logps = jnp.where(mask, jnp.take_along_axis(logps, targets[..., None], axis=-1)[..., 0], 0)
    return jnp.sum(weights * jnp.exp(logps / 4))


@pytest.mark.parametrize("config", [PLAIN, CAPPED], ids=["plain", "capped"])
def test_values_and_gradients_are_those_of_dense_logits(config: GemmaConfig) -> None:
    """With every share of targets, and 33 tokens in chunks of 7; for the hidden states alone and
    with the embedding."""
    both = [
        jax.jit(jax.value_and_grad(partial(loss, config, 0.7), (0, 1))) for loss in (ours, dense)
    ]
    frozen = jax.jit(jax.value_and_grad(partial(ours, config, 0.7), 1))
    for fraction in (0, 0.03, 0.3, 0.6, 1):
        arrays = drawn(fraction)
        (loss, gradients), (expected, expected_gradients) = (compute(*arrays) for compute in both)
        np.testing.assert_allclose(loss, expected, rtol=1e-5)
        for gradient, wanted in zip(
            (*gradients, frozen(*arrays)[1]),
            (*expected_gradients, expected_gradients[1]),
            strict=True,
        ):
            np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-6)


def test_in_bfloat16_they_are_those_of_float32_to_its_precision() -> None:
    low = replace(CAPPED, dtype="bfloat16")
    arrays = drawn(0.6, "bfloat16")
    wide = [array.astype(jnp.float32) for array in arrays[:2]]
    loss, gradients = jax.jit(jax.value_and_grad(partial(ours, low, 0.7), (0, 1)))(*arrays)
    theirs = jax.jit(jax.value_and_grad(partial(dense, CAPPED, 0.7), (0, 1)))
    expected, wanted = theirs(*wide, *arrays[2:])
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    for gradient, exact in zip(gradients, wanted, strict=True):
        assert gradient.dtype == jnp.bfloat16
        most = 0.02 * float(jnp.abs(exact).max())
        np.testing.assert_allclose(gradient.astype(jnp.float32), exact, atol=most)


def test_entropies_are_those_of_the_next_token_and_carry_no_gradient() -> None:
    embedding, hidden, targets, mask, _ = drawn(0.6)

    @partial(jax.value_and_grad, has_aux=True)
    def found(hidden: jax.Array) -> tuple[jax.Array, jax.Array]:
        logps, entropies = token_logps(
            stand_in(CAPPED, embedding), hidden, targets, mask, temperature=0.7, entropy=True
        )
        return jnp.sum(entropies), (logps, entropies)

    (_, (logps, entropies)), gradient = jax.jit(found)(hidden)
    whole = jax.nn.log_softmax(unembed(CAPPED, embedding, hidden) / 0.7)
    expected = jnp.where(mask, -jnp.sum(jnp.exp(whole) * whole, -1), 0)
    np.testing.assert_allclose(entropies, expected, rtol=1e-4, atol=1e-6)
    expected = jnp.where(mask, jnp.take_along_axis(whole, targets[..., None], -1)[..., 0], 0)
    np.testing.assert_allclose(logps, expected, rtol=1e-4)
    assert not gradient.any()


def test_tokens_that_are_masked_out_may_hold_anything() -> None:
    embedding, hidden, *rest = drawn(0.5)
    mask = rest[1]
    step = jax.jit(jax.value_and_grad(partial(ours, PLAIN, 1.0), (0, 1)))
    jax.tree.map(
        np.testing.assert_array_equal,
        step(embedding, jnp.where(mask[..., None], hidden, jnp.nan), *rest),
        step(embedding, hidden, *rest),
    )


def test_as_many_chunks_are_computed_as_there_are_targets_for(monkeypatch):
    """And logits once for each, though their gradient is wanted; twice where the embedding is
    trained; without a gradient, no more."""
    counted: list[tuple[int, ...]] = []

    def counting(config: GemmaConfig, embedding: jax.Array, hidden: jax.Array) -> jax.Array:
        jax.debug.callback(lambda: counted.append(hidden.shape))
        return unembed(config, embedding, hidden)

    monkeypatch.setattr(vocabulary, "unembed", counting)
    loss = partial(ours, PLAIN, 1.0)
    programs = [jax.jit(one) for one in (loss, jax.grad(loss, 1), jax.grad(loss, (0, 1)))]
    for targets, chunks in ((0, 0), (1, 1), (CHUNK, 1), (CHUNK + 1, 2), (B * T, 5)):
        embedding, hidden, ids, _, weights = drawn(1)
        mask = (np.arange(B * T)[::-1] < targets).reshape(B, T)
        for program, passes in zip(programs, (1, 1, 2), strict=True):
            counted.clear()
            jax.block_until_ready(program(embedding, hidden, ids, jnp.asarray(mask), weights))
            jax.effects_barrier()
            assert counted == [(CHUNK, D)] * chunks * passes


def shapes_of(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    """Of every value computed in a program, also inside its loops and calls."""
    for equation in jaxpr.eqns:
        yield from (out.aval.shape for out in equation.outvars)
        for parameter in jax.tree.leaves(
            equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(parameter, "jaxpr", parameter)
            if hasattr(inner, "eqns"):
                yield from shapes_of(inner)


@pytest.mark.parametrize("differentiated", [1, (0, 1)], ids=["hidden", "hidden and embedding"])
def test_no_array_holds_more_than_one_chunk_of_logits(differentiated: Any) -> None:
    arrays = drawn(1)
    step = jax.value_and_grad(partial(ours, PLAIN, 1.0), differentiated)
    with_vocabulary = {
        shape for shape in shapes_of(jax.make_jaxpr(step)(*arrays).jaxpr) if V in shape
    }
    assert (CHUNK, V) in with_vocabulary
    assert all(np.prod(shape) <= max(CHUNK, D) * V for shape in with_vocabulary)
    text = jax.jit(step).lower(*arrays).compile().as_text()
    compiled = {tuple(map(int, found.split(","))) for found in re.findall(r"\[([\d,]+)\]", text)}
    assert (CHUNK, V) in compiled
    assert all(np.prod(shape) <= max(CHUNK, D) * V for shape in compiled if V in shape)
    dense_shapes = shapes_of(jax.make_jaxpr(jax.grad(partial(dense, PLAIN, 1.0), 1))(*arrays).jaxpr)
    assert (B, T, V) in set(dense_shapes)  # the search finds what it looks for
    loops = [line for line in text.splitlines() if " while(" in line]
    assert len(loops) == (1 if differentiated == 1 else 2)
    # by which `lyceum plan` knows how often they run
    assert all(vocabulary.LOOP in line for line in loops)


def test_a_models_gradients_are_those_of_its_dense_logits() -> None:
    """Of adapters, for which the logits are made once, and of all weights, the embedding in both
    its places."""
    few = {"num_layers": 1, "vocab_size": V, "final_softcap": 30.0}
    model = initialise(replace(SIZES["gemma3-tiny"], **few), 0)
    add_lora(model, LoraConfig(rank=2, alpha=4.0, targets=("q_proj",)), 0)
    up = model.layers.q_proj_lora_b  # 0 at first, and with it the gradient of the other factor
    random = np.random.default_rng(0)
    up.set_value(jnp.asarray(random.standard_normal(up.get_value().shape, np.float32)))
    model.remat = "layer"
    _, _, tokens, mask, weights = drawn(0.6)
    places = jnp.broadcast_to(jnp.arange(T), (B, T))

    def gradients(loss: Any, trained: Any) -> tuple[Any, int]:
        """With respect to the variables `trained`, and how many loops over chunks make them."""
        graph, variables, rest = nnx.split(model, trained, ...)

        def of(variables: nnx.State) -> jax.Array:
            model = nnx.merge(graph, variables, rest)
            hidden, _ = model(tokens, places, jnp.ones_like(tokens))
            embedding = model.embedding.get_value()
            return loss(model.config, 1.0, embedding, hidden, tokens, mask, weights)

        step = jax.jit(jax.grad(of)).lower(variables).compile()
        lines = [line for line in step.as_text().splitlines() if " while(" in line]
        loops = sum(vocabulary.LOOP in line for line in lines)
        return dict(nnx.to_flat_state(step(variables))), loops

    expected, _ = gradients(dense, nnx.Param)
    for trained, loops in ((nnx.LoRAParam, 1), (nnx.Param, 2)):
        found, counted = gradients(ours, trained)
        assert counted == loops
        assert len(found) == {nnx.LoRAParam: 2, nnx.Param: len(expected)}[trained]
        for path, gradient in found.items():
            wanted = expected[path].get_value()
            most = 1e-4 * float(jnp.abs(wanted).max())
            np.testing.assert_allclose(gradient.get_value(), wanted, rtol=1e-3, atol=most)
