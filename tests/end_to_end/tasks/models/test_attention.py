"""The splash kernel spread over devices, and compiled by libtpu."""

import importlib.util

import pytest

from tasks.planning.compiler import ENVIRONMENT
from tests.tasks.devices.fake_devices import printed

DEVICES = """
import json, sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import tests.tasks.models.test_attention as t

cases = (t.Case(4, 2, 128, None, False), t.Case(2, 1, 128, None, True))
drawn = [t.drawn(case, 4) for case in cases]
found = [
    [t.outputs_and_gradients(case, t.WINDOW, *arrays)]
    for case, arrays in zip(cases, drawn, strict=True)
]
t.interpret(setattr)  # from here on by the kernel
for case, arrays, runs in zip(cases, drawn, found, strict=True):
    for shape in ((2, 2), (4, 1), (1, 4)):
        mesh = Mesh(np.array(jax.devices()).reshape(shape), ("fsdp", "tp"))
        with jax.set_mesh(mesh):
            rows = [jax.device_put(array, NamedSharding(mesh, P("fsdp"))) for array in arrays]
            runs.append(t.outputs_and_gradients(case, t.WINDOW, *rows))
off = [
    [abs(mine - wanted).max() / abs(wanted).max() for mine, wanted in zip(run, runs[0])]
    for runs in found
    for run in runs
]
print(json.dumps(off, default=float))
"""


def test_rows_and_heads_are_spread_over_the_devices() -> None:
    """Key heads that the mesh does not divide are repeated, query heads that it does not divide
    stay whole."""
    for run in printed(DEVICES, devices=4):
        assert max(run) < 1e-5


COMPILES = """
import json, sys
from dataclasses import replace
import jax
from tasks.models.weights import abstract
from tasks.models.sharding import place, weight_specs
from tasks.planning.compiler import mesh_of
from tasks.planning.programs import rows, shapes
from flax import nnx
import jax.numpy as jnp
import numpy as np
from tests.tasks.models.test_attention import SMALL

found = {}
for target in ("v5e-8", "v3-8"):
    mesh = mesh_of(target)
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


@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: uv sync --extra tpu"
)
def test_the_compiler_takes_the_kernel_or_plain_attention() -> None:
    """In bfloat16 on a mesh of eight: a forward and a backward kernel, local and global, each once
    for all layers."""
    found = printed(COMPILES, **ENVIRONMENT)
    assert found.pop("v5e-8 384") == 4
    assert set(found.values()) == {0}
