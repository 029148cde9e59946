"""Products of matrices: right, with their gradients, and on a CPU in the form that has bfloat16
kernels."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from schemas.trainer_config import LoraConfig
from tasks.devices.hosts import make_mesh
from tasks.losses.cross_entropy import cross_entropy
from tasks.models.decoder import SIZES
from tasks.models.lora import add_lora
from tasks.models.products import adapted, product, product_of_rows
from tasks.models.weights import initialise

SHAPES = [
    ((24, 16), (16, 40)),
    ((24, 15), (15, 7)),  # no halves
    ((1, 16), (16, 40)),
    ((2, 3, 24, 16), (2, 3, 16, 8)),
    ((4, 1, 1, 16), (4, 1, 16, 24)),
    ((2, 3, 4, 16), (2, 3, 16, 200)),  # few rows, as in decoding
    ((5, 16), (16, 200)),
]


def arrays(*shapes: tuple[int, ...], dtype: str) -> list[jax.Array]:
    generator = np.random.Generator(np.random.Philox(0))
    return [jnp.asarray(generator.standard_normal(shape), dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("by_rows", [False, True])
def test_products_and_their_gradients_are_those_of_float64(dtype, left, right, by_rows):
    a, b, slope = arrays(left, right, (*left[:-1], right[-1]), dtype=dtype)
    given = jnp.swapaxes(b, -1, -2) if by_rows else b
    function: Callable[..., jax.Array] = product_of_rows if by_rows else product
    with jax.set_mesh(make_mesh()):
        out, pull = jax.vjp(lambda *both: function(*both).astype(jnp.float32), a, given)
        found = jax.jit(pull)(slope.astype(jnp.float32))
    wide_a, wide_b, wide_slope = (np.asarray(one, np.float64) for one in (a, b, slope))
    of_b = wide_a.swapaxes(-1, -2) @ wide_slope
    expected = [wide_slope @ wide_b.swapaxes(-1, -2), of_b.swapaxes(-1, -2) if by_rows else of_b]
    assert_close(dtype, 2e-2, (out, *found), (wide_a @ wide_b, *expected))


def assert_close(dtype: str, rounding: float, found: Any, expected: Any) -> None:
    """The first is a result in float32, the others gradients; `rounding`: in bfloat16."""
    assert [str(one.dtype) for one in found[1:]] == [dtype] * (len(found) - 1)
    most = rounding if dtype == "bfloat16" else 1e-5
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), other, rtol=most, atol=most)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("rows", "inside", "outside", "joined"),
    [(160, 64, 160, True), (160, 160, 64, True), (160, 64, 80, False), (8, 64, 160, False)],
)
def test_an_adapter_rides_along_in_the_product_of_its_weight(dtype, rows, inside, outside, joined):
    sizes = (rows, inside), (inside, outside), (inside, 4), (4, outside), (rows, outside)
    left, weight, down, up, slope = (one / 4 for one in arrays(*sizes, dtype=dtype))

    def run(left: jax.Array, down: jax.Array, up: jax.Array) -> jax.Array:
        return adapted(left, weight, down, up, 0.5).astype(jnp.float32)

    with jax.set_mesh(make_mesh()):
        products = str(jax.make_jaxpr(run)(left, down, up)).count("dot_general")
        out, pull = jax.vjp(run, left, down, up)
        found = jax.jit(pull)(slope.astype(jnp.float32))
    assert products == (2 if joined else 3)
    x, w, a, b, s = (np.asarray(one, np.float64) for one in (left, weight, down, up, slope))
    expected = [s @ (w + 0.5 * a @ b).T, 0.5 * x.T @ s @ b.T, 0.5 * (x @ a).T @ s]
    assert_close(dtype, 4e-2, (out, *found), (x @ w + 0.5 * x @ a @ b, *expected))


def test_results_by_rows_are_not_rounded() -> None:
    a, b = arrays((8, 64), (16, 64), dtype="bfloat16")
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64).T
    with jax.set_mesh(make_mesh()):
        np.testing.assert_allclose(product_of_rows(a, b), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("by_rows", [False, True])
def test_a_single_row_widens_no_matrix_on_a_cpu(by_rows: bool) -> None:
    """A token of a streamed answer took a copy of the vocabulary in float32, before a loop over
    tokens or for each."""
    row, matrix = arrays((1, 64), (512, 64) if by_rows else (64, 512), dtype="bfloat16")
    function: Callable[..., jax.Array] = product_of_rows if by_rows else product

    def loop(row: jax.Array, matrix: jax.Array) -> jax.Array:
        def step(row: jax.Array, _: None) -> tuple[jax.Array, None]:
            return row + function(row, matrix).max().astype(row.dtype), None

        return jax.lax.scan(step, row, length=4)[0]

    with jax.set_mesh(make_mesh()):
        memory = jax.jit(loop).lower(row, matrix).compile().memory_analysis()
    assert memory.temp_size_in_bytes < matrix.nbytes


def test_a_step_multiplies_no_copies_in_float32_on_a_cpu() -> None:
    """XLA for the CPU widens the factors of every product that is in another form, and says so in
    what it compiled: a step took twice as long."""
    few = {"num_layers": 2, "num_kv_heads": 1, "vocab_size": 64}  # heads share keys, as in Gemmas
    config = replace(SIZES["gemma3-tiny"], **few, dtype="bfloat16")
    model = initialise(config, 0)
    add_lora(model, LoraConfig(rank=8, alpha=8.0), 0)
    graph, trained, frozen = nnx.split(model, nnx.LoRAParam, ...)
    tokens = jnp.ones((2, 16), jnp.int32)

    def loss(trained: Any, frozen: Any) -> jax.Array:
        model = nnx.merge(graph, trained, frozen)
        return cross_entropy(model, tokens, jnp.ones((2, 16)), tokens, tokens)

    with jax.set_mesh(make_mesh()):
        found = jax.jit(jax.value_and_grad(loss)).lower(trained, frozen).compile().as_text()
    shapes = dict(re.findall(r"(%\S+) = (\w+\[[\d,]*\])", found))
    factors = [
        shapes[name]
        for both in re.findall(r" dot\((%\S+), (%\S+)\)", found)
        for name in both
        if not re.search(r"\[(\d+,)*0\]", shapes[name])
    ]
    assert len(factors) > 100
    assert [shape for shape in factors if not shape.startswith("bf16")] == []
