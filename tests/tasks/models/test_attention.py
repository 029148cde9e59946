"""The splash kernel against plain attention, interpreted on the CPU and compiled by libtpu, and who gets which."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

from tasks.devices.hosts import make_mesh
from tasks.models import attention
from tasks.models.gemma import SIZES, Gemma, GemmaConfig, weight_shapes
from tasks.planning.plan import ENVIRONMENT
from tests.conftest import QUICK_COMPILE

ROOT = Path(__file__).parents[3]
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
    setattr(attention.splash, "make_splash_mha", partial(attention.splash.make_splash_mha, interpret=True))
    setattr(attention, "_BLOCK", 128)
    setattr(attention, "_has_kernel", lambda q: True)


def drawn(case: Case, rows: int = BATCH) -> tuple[jax.Array, ...]:
    """q, k, v, segments, and the weights of a sum of outputs; scores are large enough that a soft-cap of 3 bends them."""
    counts, scales = (case.heads, case.kv_heads, case.kv_heads, case.heads), (3 * case.width**-0.5, 1.0, 1.0, 1.0)
    shapes = [(rows, case.length, count, case.width) for count in counts]
    keys = jax.random.split(jax.random.key(0), len(shapes))
    q, k, v, weights = (scale * jax.random.normal(key, shape) for key, shape, scale in zip(keys, shapes, scales, strict=True))
    return q, k, v, jnp.tile(segments(case.length), (rows // BATCH, 1)), weights


def segments(length: int) -> jax.Array:
    """Two rows: one padded on the left; one of two packed texts, the first longer than the window, padded on the right."""
    left = np.arange(length) >= 20
    packed = np.select([np.arange(length) < 60, np.arange(length) < length - 10], [1, 2], 0)
    return jnp.asarray(np.stack([left, packed]), jnp.int32)


def outputs_and_gradients(case: Case, window: int, *arrays: jax.Array) -> list[np.ndarray]:
    """What `attend` makes of the drawn arrays where there is no padding, and the gradients of its weighted sum."""

    @partial(jax.grad, argnums=(0, 1, 2), has_aux=True)
    def gradients(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = attention.attend(q, k, v, ids, ids, jnp.int32(0), jnp.asarray(case.is_global), window, case.softcap)
        out = jnp.where((ids > 0)[..., None, None], out, 0)
        return (out * weights).sum(), out

    compiled = jax.jit(gradients, compiler_options={"xla_backend_optimization_level": "0"})
    return [np.asarray(array) for array in jax.tree.leaves(compiled(*arrays))]


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_and_its_gradients_equal_plain_attention(name: str, request: pytest.FixtureRequest) -> None:
    case, arrays = CASES[name], drawn(CASES[name])
    window = 1000 if "narrower" in name else WINDOW
    with jax.set_mesh(make_mesh()):
        plain = outputs_and_gradients(case, window, *arrays)
        request.getfixturevalue("interpreted")
        kernel = outputs_and_gradients(case, window, *arrays)
    for ours, theirs in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize(
    "change",
    [{"is_global": True}, {"softcap": 3.0}, {"window": WINDOW + 1}, {"segments": 1}],
    ids=lambda change: next(iter(change)),
)
def test_what_is_compared_matters_here(change: dict[str, Any]) -> None:
    """The test above could pass by accident if it did not."""
    case = CASES["mqa local"]
    arrays = drawn(case)
    other = list(arrays)
    if "segments" in change:
        other[3] = jnp.minimum(other[3], 1)
    changed = replace(case, **{key: value for key, value in change.items() if key in ("is_global", "softcap")})
    right = outputs_and_gradients(case, WINDOW, *arrays)
    wrong = outputs_and_gradients(changed, change.get("window", WINDOW), *other)
    for one, two in zip(right[1:], wrong[1:], strict=True):  # gradients of q, k, v
        assert np.abs(one - two).max() > 1e-3 * np.abs(one).max()


SMALL = replace(
    SIZES["gemma3-1b-it"], num_layers=12, embed_dim=128, hidden_dim=128, num_heads=2, head_dim=128, vocab_size=256, window=WINDOW
)


def lowered_for(kind: str, config: GemmaConfig, length: int) -> str:
    """The text of a forward pass as it is lowered for devices of a kind."""
    platform = "tpu" if kind.startswith("TPU") else "cpu"
    mesh = AbstractMesh((1, 1), ("fsdp", "tp"), abstract_device=AbstractDevice(device_kind=kind, num_cores=1, platform=platform))
    rows = jax.ShapeDtypeStruct((2, length), jnp.int32)

    def forward(weights: Any, tokens: jax.Array) -> jax.Array:
        return Gemma(config, weights)(tokens, tokens, tokens)[0]

    weights = {name: jax.ShapeDtypeStruct(shape, config.dtype) for name, shape in weight_shapes(config).items()}
    with jax.sharding.use_abstract_mesh(mesh):
        return jax.jit(forward).trace(weights, rows).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.parametrize(
    ("kind", "length", "kernel"),
    [("TPU v5 lite", 256, True), ("TPU v5 lite", 200, False), ("TPU v3", 256, False), ("cpu", 256, False)],
)
def test_the_target_and_the_length_choose(kind: str, length: int, kernel: bool) -> None:
    assert ("tpu_custom_call" in lowered_for(kind, SMALL, length)) == kernel


DEVICES = """
import json, sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import tests.tasks.models.test_attention as t
from tasks.models import attention

found = []
for case in (t.Case(4, 2, 128, None, False), t.Case(2, 1, 128, None, True)):
    arrays = t.drawn(case, 4)
    found.append([t.outputs_and_gradients(case, t.WINDOW, *arrays)])
    t.interpret(setattr)
    for shape in ((2, 2), (4, 1), (1, 4)):
        mesh = Mesh(np.array(jax.devices()).reshape(shape), ("fsdp", "tp"))
        with jax.set_mesh(mesh):
            rows = [jax.device_put(array, NamedSharding(mesh, P("fsdp"))) for array in arrays]
            found[-1].append(t.outputs_and_gradients(case, t.WINDOW, *rows))
    attention._has_kernel = lambda q: False
off = [[abs(mine - wanted).max() / abs(wanted).max() for mine, wanted in zip(run, runs[0])] for runs in found for run in runs]
print(json.dumps(off, default=float))
"""


@pytest.mark.slow
def test_rows_and_heads_are_spread_over_the_devices() -> None:
    """Key heads that the mesh does not divide are repeated, query heads that it does not divide stay whole."""
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count=4 {QUICK_COMPILE}",
        "PYTHONPATH": str(ROOT),
    }
    for run in printed(DEVICES, environment):
        assert max(run) < 1e-5


COMPILES = """
import json, sys
from dataclasses import replace
import jax
from tasks.models.weights import abstract
from tasks.models.sharding import place, weight_specs
from tasks.planning.plan import tpu_mesh
from tasks.planning.programs import rows, shapes
from flax import nnx
import jax.numpy as jnp
import numpy as np
from tests.tasks.models.test_attention import SMALL

found = {}
for target in ("v5e-8", "v3-8"):
    mesh = tpu_mesh(target)
    for length in (384, 200):
        model = abstract(SMALL)
        place(model, mesh, weight_specs(SMALL, mesh, trained=False))
        graph, state = nnx.split(model)

        def loss(state, tokens):
            return nnx.merge(graph, state)(tokens, tokens, tokens)[0].astype(jnp.float32).sum()

        batch = rows(np.zeros((8, length), np.int32), mesh)
        with jax.set_mesh(mesh):
            text = jax.jit(jax.grad(loss)).lower(shapes(state), batch).compile().as_text()
        found[f"{target} {length}"] = text.count("custom_call_target=\\"tpu_custom_call\\"")
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: uv sync --extra tpu")
def test_the_compiler_takes_the_kernel_or_plain_attention() -> None:
    """In bfloat16 on a mesh of eight: a forward and a backward kernel, local and global, each once for all layers."""
    found = printed(COMPILES, {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(ROOT)})
    assert found.pop("v5e-8 384") == 4
    assert set(found.values()) == {0}


def printed(script: str, environment: dict[str, str]) -> Any:
    """What a script prints as JSON, run with devices or a compiler that must be set up before JAX is imported."""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
