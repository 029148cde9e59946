"""`tasks.planning.compiler` with the real TPU compiler, on functions small enough to compile in a
second."""

import importlib.util
import json
import os
import subprocess
from typing import Any

import pytest

from infra.tpu.chips import CHIPS
from tasks.planning.compiler import ENVIRONMENT
from tests.fakes.process import python
from tests.tasks.devices.fake_devices import printed

COMPILES = """
import json, sys
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from tasks.planning.hlo_cost import cost_of
from tasks.planning.compiler import lower, report, mesh_of

mesh = mesh_of("v5e-8")

def shape(dims, dtype, *spec):
    return jax.ShapeDtypeStruct(dims, dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

def xla(function, *args):
    compiled = lower(jax.jit(function), args, mesh).compile()
    said, ours = compiled.cost_analysis(), cost_of(compiled.as_text())
    return [ours.flops, said["flops"], ours.bytes, said["bytes accessed"]]

def reported(function, args, trips=None, **jitted):
    return report(lower(jax.jit(function, **jitted), args, mesh), trips).__dict__

def scanned(x, layers):
    def layer(x, w):
        return jax.lax.fori_loop(0, 3, lambda i, y: jnp.tanh(y @ w), x), None
    return jax.lax.scan(layer, x, layers)[0]

def squared(layers, x):
    last, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, layers)
    return (last.astype(jnp.float32) ** 2).sum()

def decode(x, w):
    with jax.named_scope("decode"):
        return jax.lax.while_loop(lambda state: state.sum() < 100, lambda state: state @ w, x)

half, full = jnp.bfloat16, jnp.float32
rows, layers = shape((1024, 256), half, "fsdp"), shape((6, 256, 256), half)
square, tall = shape((256, 256), half), shape((8 * 262144, 64), half, "fsdp")
left, right = shape((8 * 2048, 1024), half, "fsdp"), shape((1024, 2048), half)
moments = [shape((8 * 2048, 2048), full, "fsdp") for _ in range(3)]
json.dump({
    "product": xla(lambda x, w: jax.nn.gelu(x @ w), left, right),
    "update": xla(lambda p, m, g: (p - m * 0.9, m * 0.9 + g * 0.1), *moments),
    "scan in scan": reported(scanned, (rows, layers)),
    "gradient": reported(jax.value_and_grad(squared), (layers, rows)),
    "decode": reported(decode, (rows, square), trips={"decode": 7.0}),
    "donated": reported(lambda x: x + 1, moments[:1], donate_argnums=0),
    "too large": reported(lambda x: x @ x.T, (tall,)),
}, sys.stdout)
"""

needs_compiler = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler: uv sync --extra tpu"
)


@pytest.fixture(scope="module")
def compiled() -> dict[str, Any]:
    """What `COMPILES` prints; a process of its own, for the compiler wants to be set up before JAX
    is imported."""
    given = {**ENVIRONMENT, "XLA_FLAGS": "", "JAX_ENABLE_COMPILATION_CACHE": "false"}
    found: dict[str, Any] = printed(COMPILES, **given)
    return found


@needs_compiler
def test_without_loops_flops_and_bytes_are_those_of_the_compiler(compiled: dict[str, Any]) -> None:
    ours, said, _, _ = compiled["product"]
    assert ours == 2 * 2048 * 1024 * 2048
    assert ours == pytest.approx(said, rel=0.01)
    _, _, moved, said = compiled["update"]
    assert moved == 5 * 4 * 2048 * 2048
    assert moved == pytest.approx(said, rel=0.01)


@needs_compiler
def test_loops_count_as_often_as_they_run(compiled: dict[str, Any]) -> None:
    product = 2 * 128 * 256 * 256  # on one of eight devices
    assert compiled["scan in scan"]["flops"] == 6 * 3 * product
    # forward, and the gradients of input and weight
    assert compiled["gradient"]["flops"] == 6 * 3 * product
    assert compiled["decode"]["flops"] == 7 * product
    assert compiled["decode"]["uncounted"] == []
    # each layer's gradient is added up over the devices
    assert compiled["gradient"]["link_bytes"] >= 6 * 2 * 7 / 8 * 2 * 256 * 256


@needs_compiler
def test_memory_is_what_the_compiler_says_donated_buffers_counted_once(compiled):
    report = compiled["donated"]
    assert report["argument_bytes"] == report["alias_bytes"] == 4 * 2048 * 2048
    most = (
        4 * 2048 * 2048
        + report["temporary_bytes"]
        + report["code_bytes"]
        + report["output_bytes"]
        - report["alias_bytes"]
    )
    assert 4 * 2048 * 2048 + report["code_bytes"] <= report["hbm_bytes"] <= most


@needs_compiler
def test_what_does_not_fit_is_an_answer(compiled: dict[str, Any]) -> None:
    report = compiled["too large"]
    assert "exceeds" in report["refusal"] or "Ran out of memory" in report["refusal"]
    assert report["hbm_bytes"] > CHIPS["v5e"].hbm_bytes


def test_the_devices_of_this_machine_are_compiled_for_by_their_own_compiler() -> None:
    """Two devices of the CPU stand for an accelerator: a worker's environment, the planner's own
    process, a real stage. Half of each batch lies on a device, all of the model."""
    sft = {"model": "gemma3-tiny", "steps": 4, "batch_size": 4, "sequence_length": 128}
    data = {"quotas": {"math": {"train": 8, "validation": 1, "heldout": 1}}}
    stage = {
        "kind": "sft",
        "config": {**sft, "optimizer": {"learning_rate": 1e-3}},
        "model": "gemma3-tiny",
        "upstream": {"examples": ["rebalance", data]},
        "models": {},
    }
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    given = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    compiler = ("-m", "tasks.planning.compiler", "local")
    with python(*compiler, stdin=subprocess.PIPE, env=given) as process:

        def ask(question: dict[str, Any]) -> dict[str, Any]:
            process.stdin.write(json.dumps(question) + "\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
            return answer

        programs = ask({"stage": stage})["programs"]
        report = ask({"stage": stage, "program": 0})["report"]
        process.communicate()
    assert [one["name"] for one in programs] == ["train_step", "validation_loss"]
    # adamw: parameters and two moments, float32
    assert report["argument_bytes"] > 3 * 4 * 100_000
    assert report["hbm_bytes"] >= report["argument_bytes"]
    assert report["flops"] > 6 * 100_000 * 2 * 128
    assert report["refusal"] is None
