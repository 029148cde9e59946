"""bfloat16 stacks that are moved as integers on a CPU: the same values and gradients, and no
copy of a stack in float32."""

import re
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from schemas.trainer_config import LoraConfig, Remat
from tasks.devices.hosts import make_mesh
from tasks.losses.cross_entropy import cross_entropy
from tasks.models.decoder import SIZES, UNROLLED_LAYERS, Gemma
from tasks.models.lora import add_lora
from tasks.models.moving import layer_of, rows_of
from tasks.models.products import product_of_rows
from tasks.models.weights import initialise

LAYERS = UNROLLED_LAYERS + 1
TINY = {"num_layers": LAYERS, "embed_dim": 32, "hidden_dim": 64, "head_dim": 16, "vocab_size": 64}
TOKENS = np.random.Generator(np.random.Philox(0)).integers(0, 64, (2, 12)).astype(np.int32)
PLACES, ONES = np.tile(np.arange(12, dtype=np.int32), (2, 1)), np.ones((2, 12), np.int32)


def model() -> Gemma:
    made = initialise(replace(SIZES["gemma3-tiny"], **TINY, dtype="bfloat16"), 0)
    add_lora(made, LoraConfig(rank=4, alpha=8.0), 0)
    for name in ("q_proj", "down_proj"):
        adapter = getattr(made.layers, f"{name}_lora_b")
        adapter.set_value(adapter.get_value() + 0.1)
    return made


def loss_of(remat: Remat) -> tuple[Any, Any, Any]:
    """A loss, and what it is a function of: the weights that are trained, and the others."""
    made = model()
    made.remat = remat
    graph, trained, frozen = nnx.split(made, nnx.LoRAParam, ...)

    def loss(trained: Any, frozen: Any) -> jax.Array:
        weights = jnp.ones(TOKENS.shape) / TOKENS.size
        return cross_entropy(nnx.merge(graph, trained, frozen), TOKENS, weights, PLACES, ONES)

    return loss, trained, frozen


@pytest.mark.parametrize("remat", ["none", "layer"])
def test_a_step_is_the_same_and_copies_no_stack(remat: Remat) -> None:
    """Without a mesh nothing says that it is for a CPU, and bfloat16 is moved as it is."""
    loss, trained, frozen = loss_of(remat)
    step = jax.value_and_grad(loss)
    plain, slopes = jax.jit(lambda *both: step(*both))(trained, frozen)
    with jax.set_mesh(make_mesh()):
        compiled = jax.jit(step).lower(trained, frozen).compile()
        moved, moved_slopes = compiled(trained, frozen)
    assert float(moved) == pytest.approx(float(plain), rel=2e-3)
    one, other = (
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
        for tree in (moved_slopes, slopes)
    )
    # roundings alone: what a compiler keeps in float32 between two products differs
    assert np.linalg.norm(one - other) <= 0.1 * np.linalg.norm(other)
    text = compiled.as_text()
    assert f"u16[{LAYERS},32,64]" in text, "weights are read as integers"
    assert f"u16[{LAYERS},2,12,32]" in text, "and so is what is kept for the backward pass"
    assert (f"u16[{LAYERS},24,64]" in text) == (remat == "none"), "the widest product, 2 x 12 rows"
    assert not re.findall(rf"f32\[{LAYERS},(?:32,64|24,64|2,12,64|24,32|2,12,32)\]", text)


@pytest.mark.parametrize("remat", ["layer", "dots", "chunks"])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_backward_pass_keeps_the_input_of_a_layer_once(remat: Remat, on_cpu: bool) -> None:
    loss, *weights = loss_of(remat)
    with jax.set_mesh(make_mesh()) if on_cpu else nullcontext():
        program = jax.make_jaxpr(jax.grad(loss))(*weights)
    layers = [one for one in program.eqns if one.primitive.name == "scan"]
    kept = [out.aval.shape for one in layers for out in one.outvars]
    assert kept.count((LAYERS, 2, 12, 32)) == 1


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_cache_continues_as_the_whole_text_would(on_cpu: bool) -> None:
    """On a CPU by layers with a cache each, elsewhere in a loop over layers."""
    made = model()

    @nnx.jit
    def both_ways(made: Gemma) -> tuple[Any, ...]:
        whole, _ = made(TOKENS, PLACES, ONES)
        cache = made.init_cache(2, 12)
        hidden, held = made(TOKENS[:, :11], PLACES[:, :11], ONES[:, :11], cache)
        last, _ = made(TOKENS[:, 11:], PLACES[:, 11:], ONES[:, 11:], held)
        return whole, cache["k"], hidden, last

    with jax.set_mesh(make_mesh()) if on_cpu else nullcontext():
        whole, keys, hidden, last = both_ways(made)
    found = {(one.shape[0], str(one.dtype)) for one in jax.tree.leaves(keys)}
    assert found == {(2, "uint16") if on_cpu else (LAYERS, "bfloat16")}
    np.testing.assert_allclose(hidden[:, -1], whole[:, 10], atol=0.1)
    np.testing.assert_allclose(last[:, 0], whole[:, 11], atol=0.1)


def test_a_layer_of_a_stack_has_its_gradient() -> None:
    stack = jnp.asarray(np.arange(24).reshape(3, 2, 4), "bfloat16")
    with jax.set_mesh(make_mesh()):
        found = jax.grad(lambda stack: (layer_of(stack, jnp.int32(1)) ** 2).sum())(stack)
    expected = np.zeros((3, 2, 4))
    expected[1] = 2 * np.arange(8, 16).reshape(2, 4)
    np.testing.assert_allclose(np.asarray(found, np.float32), expected)


def test_tokens_are_looked_up_in_a_loop_without_a_copy_of_the_vocabulary() -> None:
    """The copy, in float32, was made anew for each few tokens of an answer."""
    table = jnp.asarray(np.arange(5000 * 8).reshape(5000, 8) % 251, "bfloat16")

    def walk(table: jax.Array, token: jax.Array) -> jax.Array:
        def step(n: jax.Array, token: jax.Array) -> jax.Array:
            row = rows_of(table, token)
            best = product_of_rows(row, table).argmax(axis=-1)
            return (best + n).astype(token.dtype) % len(table)

        return jax.lax.fori_loop(0, 4, step, token)

    with jax.set_mesh(make_mesh()):
        compiled = jax.jit(walk).lower(table, jnp.asarray([7], "int32")).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < table.nbytes


def test_rows_have_their_values_and_gradient() -> None:
    table = jnp.asarray(np.arange(12).reshape(3, 4), "bfloat16")
    tokens = jnp.asarray([[2, 0], [2, 2]])
    with jax.set_mesh(make_mesh()):
        found, back = jax.vjp(lambda table: rows_of(table, tokens), table)
        [slope] = back(jnp.ones_like(found))
    np.testing.assert_array_equal(found, table[tokens])
    np.testing.assert_array_equal(slope, np.repeat([[1], [0], [3]], 4, axis=1))
