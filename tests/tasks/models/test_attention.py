"""The splash kernel against plain attention, interpreted on the CPU and compiled by libtpu, and who
gets which."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from tasks.data.packing import BRANCHES
from tasks.devices.hosts import make_mesh
from tasks.models import attention, splash
from tasks.models.decoder import SIZES, Gemma, GemmaConfig, weight_shapes

BATCH, WINDOW = 2, 40


@dataclass(frozen=True)
class Case:
    """Shapes of one attention, T = 2 blocks of 128, and what its scores pass through."""

    heads: int
    kv_heads: int
    width: int
    softcap: float | None
    is_global: bool
    length: int = 256


CASES = {
    "mqa local": Case(2, 1, 128, None, False),
    "gqa wide soft-capped global": Case(4, 2, 256, 3.0, True),
    "mha narrower than its window": Case(2, 2, 128, 3.0, False, 128),
}


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run on the CPU, in blocks of 128."""
    interpret(monkeypatch.setattr)


def interpret(setattr: Callable[[Any, str, Any], None]) -> None:
    setattr(
        splash.splash, "make_splash_mha", partial(splash.splash.make_splash_mha, interpret=True)
    )
    setattr(splash, "BLOCK", 128)
    setattr(attention, "has_kernel", lambda q: True)


def drawn(case: Case, rows: int = BATCH) -> tuple[jax.Array, ...]:
    """q, k, v, segments, and the weights of a sum of outputs; scores are large enough that a
    soft-cap of 3 bends them."""
    counts = (case.heads, case.kv_heads, case.kv_heads, case.heads)
    scales = (3 * case.width**-0.5, 1.0, 1.0, 1.0)
    shapes = [(rows, case.length, count, case.width) for count in counts]
    keys = jax.random.split(jax.random.key(0), len(shapes))
    q, k, v, weights = (
        scale * jax.random.normal(key, shape)
        for key, shape, scale in zip(keys, shapes, scales, strict=True)
    )
    return q, k, v, jnp.tile(segments(case.length), (rows // BATCH, 1)), weights


def segments(length: int) -> jax.Array:
    """Two rows: one padded on the left; one of two packed texts, the first longer than the window,
    padded on the right."""
    left = np.arange(length) >= 20
    packed = np.select([np.arange(length) < 60, np.arange(length) < length - 10], [1, 2], 0)
    return jnp.asarray(np.stack([left, packed]), jnp.int32)


def indices(ids: jax.Array) -> jax.Array:
    """Indices: within a segment they differ as positions do."""
    return jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)


def outputs_and_gradients(case: Case, window: int, *arrays: jax.Array) -> list[np.ndarray]:
    """What `attend` makes of the drawn arrays where there is no padding, and the gradients of its
    weighted sum."""

    @partial(jax.grad, argnums=(0, 1, 2), has_aux=True)
    def gradients(q, k, v, ids, weights):
        where = indices(ids), jnp.asarray(case.is_global), window, case.softcap
        out = attention.attend(q, k, v, ids, *where)
        out = jnp.where((ids > 0)[..., None, None], out, 0)
        return (out * weights).sum(), out

    compiled = jax.jit(gradients, compiler_options={"xla_backend_optimization_level": "0"})
    return [np.asarray(array) for array in jax.tree.leaves(compiled(*arrays))]


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_and_its_gradients_equal_plain_attention(name, request, monkeypatch):
    monkeypatch.setattr(attention, "SHORTEST", 128)  # two blocks
    case, arrays = CASES[name], drawn(CASES[name])
    window = 1000 if "narrower" in name else WINDOW
    with jax.set_mesh(make_mesh()):
        plain = outputs_and_gradients(case, window, *arrays)
        request.getfixturevalue("interpreted")
        kernel = outputs_and_gradients(case, window, *arrays)
    for ours, theirs in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


def test_a_backward_pass_makes_scores_again_and_the_result_once() -> None:
    q, k, v, ids, _ = drawn(CASES["mqa local"])

    def attended(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return attention.attend(q, k, v, ids, indices(ids), jnp.asarray(False), WINDOW, None).sum()

    policy = jax.checkpoint_policies.save_only_these_names(attention.ATTENDED)
    gradients = jax.grad(jax.checkpoint(attended, policy=policy), argnums=(0, 1, 2))
    products = str(jax.make_jaxpr(gradients)(q, k, v)).count("dot_general")
    assert products == 2 + 5  # the scores and four gradients


@pytest.mark.parametrize("name", ["mqa local", "gqa wide soft-capped global"])
def test_texts_behind_one_prefix_attend_as_each_does_behind_its_own(name):
    """A prefix longer than a local layer's window, and two texts behind it."""
    case, (first, second) = CASES[name], (slice(50, 110), slice(110, 180))
    q, k, v, _, _ = drawn(case)
    place = jnp.arange(case.length)
    own = jnp.select([place < 50, place < 110, place < 180], [0, 1, 2], 0)
    ids = jnp.where(place < 180, 3 * BRANCHES + own, 0)
    shared = jnp.where(place < 110, place, place - 60)
    rest = jnp.asarray(case.is_global), WINDOW, case.softcap

    def of_rows(ids: jax.Array, positions: jax.Array, *arrays: jax.Array) -> jax.Array:
        both = (jnp.broadcast_to(one, (BATCH, len(one))) for one in (ids, positions))
        return attention.attend(*arrays, *both, *rest)

    with jax.set_mesh(make_mesh()):
        together = of_rows(ids, shared, q, k, v)
        for text in (first, second):
            alone = [jnp.concatenate([one[:, :50], one[:, text]], axis=1) for one in (q, k, v)]
            places = jnp.arange(alone[0].shape[1])
            expected = of_rows(jnp.ones_like(places), places, *alone)[:, 50:]
            np.testing.assert_allclose(together[:, text], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "index", "turned"),
    [
        *((name, index, 0) for name in CASES for index in (100, 127)),
        *((name, 100, 50) for name, case in CASES.items() if case.length == 128),
    ],
)
@pytest.mark.parametrize("behind", [False, True])
def test_one_token_attends_to_a_cache_as_within_its_whole_text(name, index, turned, behind):
    """A cache that is read whole may begin at any column."""
    case = CASES[name]
    q, k, v, ids, _ = drawn(case)
    rest = jnp.asarray(case.is_global), WINDOW, case.softcap
    here = slice(index, index + 1)
    places = jnp.arange(case.length)[:, None]
    # what lies behind counts for nothing, whatever it is; a longer cache than its window, a local
    # layer does not even read
    read = (places > index - WINDOW) | case.is_global | (case.length == 128)
    known = [jnp.where(places < index + (not behind), one.swapaxes(1, 2), 9.0) for one in (k, v)]
    layers = (jnp.stack([one, jnp.where(read, one, jnp.nan)]) for one in known)
    caches = tuple(jnp.roll(one, turned, axis=-2) for one in layers)
    own = (k[:, here], v[:, here]) if behind else None
    seen = jnp.roll(jnp.where(places[:, 0] <= index, ids, 0), turned, axis=1)
    at = jnp.int32((index + turned) % case.length)
    with jax.set_mesh(make_mesh()):
        whole = attention.attend(q, k, v, ids, indices(ids), *rest)[:, here]
        step = attention.attend_step(
            q[:, here], caches, jnp.int32(1), own, ids[:, here], seen, at, *rest
        )
    real = np.asarray(ids[:, index] > 0)
    assert real.any()
    np.testing.assert_allclose(step[real], whole[real], atol=1e-5)


def test_a_window_is_read_from_a_cache_that_is_written() -> None:
    """Of unrolled layers, too: XLA made one loop of both, which asked of each element of the window
    whether it is the token's."""
    config = replace(SIZES["gemma3-tiny"], num_layers=1, window=8)
    shapes = weight_shapes(config)
    weights = {one: jax.ShapeDtypeStruct(shape, config.dtype) for one, shape in shapes.items()}

    def step(weights: Any, cache: Any, token: jax.Array) -> Any:
        return Gemma(config, weights)(token, token, token, cache)

    with jax.set_mesh(make_mesh()):
        empty = Gemma(config, weights).init_cache
        cache = jax.eval_shape(lambda: empty(2, 8 + attention.LANES))
        token = jax.ShapeDtypeStruct((2, 1), jnp.int32)
        text = jax.jit(step, donate_argnums=1).lower(weights, cache, token).compile().as_text()
    assert " conditional(" in text
    assert "dynamic-slice(%dynamic_update_slice" not in text


SMALL = replace(
    SIZES["gemma3-1b-it"],
    num_layers=12,
    embed_dim=128,
    hidden_dim=128,
    num_heads=2,
    head_dim=128,
    vocab_size=256,
    window=WINDOW,
)


def lowered_for(kind: str, config: GemmaConfig, length: int) -> str:
    """The text of a forward pass as it is lowered for devices of a kind."""
    platform = "tpu" if kind.startswith("TPU") else "cpu"
    device = AbstractDevice(device_kind=kind, num_cores=1, platform=platform)
    mesh = AbstractMesh((1, 1), ("fsdp", "tp"), abstract_device=device)
    rows = jax.ShapeDtypeStruct((2, length), jnp.int32)

    def forward(weights: Any, tokens: jax.Array) -> jax.Array:
        return Gemma(config, weights)(tokens, tokens, tokens)[0]

    shapes = weight_shapes(config)
    weights = {one: jax.ShapeDtypeStruct(shape, config.dtype) for one, shape in shapes.items()}
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.jit(forward).trace(weights, rows).lower(lowering_platforms=(platform,)).as_text()


def test_the_target_and_the_length_choose() -> None:
    tpu = "TPU v5 lite"
    for kind, length, kernel in ((tpu, 256, 1), (tpu, 200, 0), ("TPU v3", 256, 0), ("cpu", 256, 0)):
        assert ("tpu_custom_call" in lowered_for(kind, SMALL, length)) == kernel
