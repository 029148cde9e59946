"""Weights in parts: over "fsdp" and "tp" axes of four devices a model trains, adapts and speaks as
on one device."""

from typing import Any

import numpy as np
import pytest

from tests.tasks.devices.fake_devices import printed

PROGRAM = """
import json, os
from dataclasses import replace
import jax
import numpy as np
from tasks.stages import sft
from tasks.devices.hosts import make_mesh, spread
from tasks.models import decoder
from tasks.models.loading import base_model
from tasks.sampling.sampler import Sampler
from tasks.training.trainer import rows_at_once

sizes = {"num_layers": 2, "global_every": 2, "hidden_dim": 96, "embed_dim": 64}
decoder.SIZES["gemma3-tiny"] = replace(decoder.SIZES["gemma3-tiny"], **sizes)
ROWS, LENGTH = 4, 24
random = np.random.default_rng(0)
batch = {
    "tokens": random.integers(8, 1500, (ROWS, LENGTH)).astype(np.int32),
    "weights": (random.random((ROWS, LENGTH)) < 0.5).astype(np.float32) / 40,
    "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1)),
    "segments": np.ones((ROWS, LENGTH), np.int32),
}


def run(lora, tensor):
    os.environ["LYCEUM_TENSOR_PARALLEL"] = str(tensor or 1)
    config = sft.Config.parse(
        {"model": "gemma3-tiny", "steps": 3, "batch_size": ROWS, "sequence_length": LENGTH,
         "lora": lora, "remat": "layer", "optimizer": {"learning_rate": 1e-2}}
    )
    mesh = make_mesh(rows_at_once(config) if tensor else None)
    loaded = base_model("gemma3-tiny", 0, mesh, trained=lora is None)
    trainer = sft.trainer_of(config, loaded)
    losses = [float(trainer.step(batch)[0]) for _ in range(config.steps)]
    assert trainer.compiles == 1
    sampler = Sampler(loaded, batch_size=4, prompt_length=16, response_length=5)
    drawn = sampler.generate([f"What is {i}?" for i in range(4)])
    model = loaded.model
    return {
        "mesh": list(loaded.mesh.shape.values()),
        "losses": losses,
        "parts": {
            name: leaf.shape[axis] // leaf.sharding.shard_shape(leaf.shape)[axis]
            for name, leaf, axis in (
                ("embedding", model.embedding.get_value(), 0),
                ("q_proj inputs", model.layers.q_proj.get_value(), 1),
                ("q_proj heads", model.layers.q_proj.get_value(), 2),
                ("up_proj width", model.layers.up_proj.get_value(), 2),
            )
        },
        "logps": [completion.logps.tolist() for completion in drawn],
    }


# one device; four that share the batch; two groups of two that share heads
adapters = {"full": None, "lora": {"rank": 2, "alpha": 4.0}}
print(json.dumps({name: [run(lora, one) for one in (0, 1, 2)] for name, lora in adapters.items()}))
"""


@pytest.fixture(scope="module")
def found() -> Any:
    fixed = {"JAX_ENABLE_COMPILATION_CACHE": "false", "LYCEUM_WHOLE_WEIGHTS_GIB": "0"}
    return printed(PROGRAM, devices=4, **fixed)


@pytest.mark.parametrize("adapters", ["full", "lora"])
def test_a_model_in_parts_trains_and_speaks_like_a_whole_one(adapters: str, found: Any) -> None:
    one, *others = found[adapters]
    assert [run["mesh"] for run in others] == [[4, 1], [2, 2]]
    for run in others:
        assert run["losses"] == pytest.approx(one["losses"], rel=1e-3)
        # after three steps that differ in rounding
        np.testing.assert_allclose(run["logps"], one["logps"], atol=0.05)
    assert set(one["parts"].values()) == {1}
    assert others[0]["parts"] == {
        "embedding": 4,
        "q_proj inputs": 4,
        "q_proj heads": 1,
        "up_proj width": 1,
    }
    assert others[1]["parts"] == {
        "embedding": 4,
        "q_proj inputs": 2,
        "q_proj heads": 2,
        "up_proj width": 2,
    }
