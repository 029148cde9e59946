"""One host with several devices: each gets its part of every batch, and the results are those of
one device.

The programs run in a process of their own, which has two fake CPU devices and dumps what XLA
compiled for one of them.
"""

import re
from typing import Any

import numpy as np
import pytest

from tests.tasks.devices.fake_devices import printed

PROGRAM = """
import json
import jax
import numpy as np
from flax import nnx
from tasks.stages import sft
from tasks.devices.hosts import make_mesh, spread
from tasks.losses.cross_entropy import cross_entropy
from dataclasses import replace
from tasks.models import decoder
from tasks.models.loading import base_model
from tasks.sampling.sampler import Sampler
from tasks.training.trainer import make_trainer, rows_at_once

sizes = {"num_layers": 1, "hidden_dim": 96, "embed_dim": 64}
decoder.SIZES["gemma3-tiny"] = replace(decoder.SIZES["gemma3-tiny"], **sizes)
ROWS, LENGTH = 12, 40
config = sft.Config.parse(
    {"model": "gemma3-tiny", "steps": 3, "batch_size": ROWS, "micro_batch_size": 6,
     "sequence_length": LENGTH, "optimizer": {"learning_rate": 1e-2}}
)
random = np.random.default_rng(0)
batch = {
    "tokens": random.integers(8, 1500, (ROWS, LENGTH)).astype(np.int32),
    "weights": np.full((ROWS, LENGTH), 1 / (6 * LENGTH), np.float32),
    "positions": np.tile(np.arange(LENGTH, dtype=np.int32), (ROWS, 1)),
    "segments": np.ones((ROWS, LENGTH), np.int32),
}
found = []
for devices in (1, 2):
    loaded = base_model("gemma3-tiny", 0, make_mesh(rows_at_once(config) if devices == 2 else None))
    assert loaded.mesh.size == devices
    trainer = make_trainer(loaded, config, 0)
    trainer.with_loss_fn(cross_entropy).with_gen_model_input_fn(dict)
    losses = [float(trainer.step(batch)[0]) for _ in range(config.steps)]
    assert trainer.compiles == 1
    states = [*map(nnx.state, (trainer.model, trainer.optimizer))]
    leaves, tokens = jax.tree.leaves(states), spread(batch, loaded.mesh)["tokens"]
    whole = [leaf.is_fully_replicated and len(leaf.sharding.device_set) for leaf in leaves]
    found.append({
        "losses": losses,
        "weights": set(whole) == {devices},
        "rows": [shard.data.shape[0] for shard in tokens.addressable_shards],
    })
    sampler = Sampler(loaded, batch_size=6, prompt_length=16, response_length=5)
    drawn = sampler.generate([f"What is {i}?" for i in range(10)], temperature=1.0, seed=1)
    assert sampler.compiles == 1
    found[-1]["tokens"] = [completion.tokens for completion in drawn]
    found[-1]["logps"] = np.array([completion.logps for completion in drawn]).tolist()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], ...]:
    """What was found on one device and on two, and by name XLA's text of each program for one
    device of two."""
    directory = tmp_path_factory.mktemp("dumped")
    flags = f"--xla_backend_optimization_level=0 --xla_dump_to={directory} --xla_dump_hlo_as_text"
    one, two = printed(PROGRAM, devices=2, flags=flags, JAX_ENABLE_COMPILATION_CACHE="false")
    texts = [
        (path.name.split(".")[1], path.read_text(encoding="utf-8"))
        for path in directory.glob("*after_optimizations.txt")
    ]
    return one, two, {name: text for name, text in texts if "num_partitions=2" in text}


def test_each_device_trains_on_its_rows_and_gradients_are_summed(found) -> None:
    one, two, programs = found
    assert two["losses"] == pytest.approx(one["losses"], rel=1e-3)
    assert two["weights"]
    assert two["rows"] == [6, 6]
    step = programs["jit_train_step"]
    assert "f32[3,40,64]" in step  # of the 6 rows of a micro-batch, 3 are computed here
    assert not re.search(r"\[(6|12),40,\d", step)
    assert re.search(r" all-reduce(-start)?\(", step)
    assert "all-gather" not in step
    # rows, not what is computed of them
    assert set(re.findall(r"= \((\S+?)\{.* all-to-all\(", step)) == {
        "s32[1,1,3,40]",
        "f32[1,1,3,40]",
    }


def test_each_device_samples_its_rows(found) -> None:
    one, two, programs = found
    assert two["tokens"] == one["tokens"]
    # after three steps that differ in rounding
    np.testing.assert_allclose(two["logps"], one["logps"], atol=0.05)
    generate = programs["jit__generate"]
    assert "f32[3,16,64]" in generate
    assert not re.search(r"\[6,\d+,\d", generate)
    assert "all-gather" not in generate
