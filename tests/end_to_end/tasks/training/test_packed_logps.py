"""Packed rows on two devices: steps of SimPO and of GRPO, and groups that read their prompt once,
have the results of one device."""

import numpy as np
import pytest

from tests.tasks.devices.fake_devices import printed

PROGRAM = """
import json
from dataclasses import replace
import numpy as np
from tasks.data.packing import Shape
from tasks.devices.hosts import make_mesh
from tasks.losses.grpo import grpo_loss_fn
from tasks.losses.simpo import simpo_loss_fn
from tasks.models import decoder
from tasks.models.loading import base_model
from tasks.reinforcement.rollout import policy_batch
from tasks.sampling.sampler import Sampler
from tasks.stages import sft
from tasks.training.pair_batches import mean_over_pairs, pair_batch
from tasks.training.trainer import make_trainer

sizes = {"num_layers": 1, "hidden_dim": 96, "embed_dim": 64}
decoder.SIZES["gemma3-tiny"] = replace(decoder.SIZES["gemma3-tiny"], **sizes)
config = sft.Config.parse(
    {"model": "gemma3-tiny", "steps": 3, "batch_size": 8, "micro_batch_size": 4,
     "sequence_length": 40, "optimizer": {"learning_rate": 1e-2}}
)
random = np.random.default_rng(0)

def tokens(low, high):
    return random.integers(8, 1500, random.integers(low, high)).tolist()

prompts = [tokens(4, 9) for _ in range(8)]
pairs = [tuple((prompt, tokens(2, 12)) for _ in range(2)) for prompt in prompts]
batches = {"simpo": pair_batch([pairs[:6], pairs[6:]], Shape(8, 24), 12, 0)}
ones = np.ones(8, np.float32)
old = np.full((8, 12), -7.3, np.float32)  # about what random weights say of every token
numbers = (random.normal(size=8).astype(np.float32), ones, ones, None, old)
texts = [pair[0] for pair in pairs]
batches["grpo"] = policy_batch(texts, numbers, length=48, pad_id=0, micro_batches=2)
assert not batches["grpo"].predicts[4:].any()  # of the second micro-batch
losses = {
    "simpo": mean_over_pairs(simpo_loss_fn(beta=2.0, gamma_beta_ratio=0.5, sft_weight=0.0)),
    "grpo": grpo_loss_fn(beta=0.0, epsilon=0.2, epsilon_high=0.2),
}
found = []
for devices in (1, 2):
    one = {}
    for name, loss in losses.items():
        loaded = base_model("gemma3-tiny", 0, make_mesh({"rows": 4} if devices == 2 else None))
        assert loaded.mesh.size == devices
        trainer = make_trainer(loaded, config, 0)
        if name == "grpo":
            trainer.is_wanted = lambda batch: batch.predicts.any()
        trainer.with_loss_fn(loss, has_aux=True)
        trainer.with_gen_model_input_fn(lambda batch: {"train_example": batch})
        one[name] = [float(trainer.step(batches[name])[0]) for _ in range(config.steps)]
        assert trainer.compiles == 1
    loaded = base_model("gemma3-tiny", 0, make_mesh({"rows": 8} if devices == 2 else None))
    lengths = {"prompt_length": 16, "response_length": 5}
    sampler = Sampler(loaded, batch_size=8, group_size=4, **lengths)
    asked = [f"What is {number}?" for number in range(3) for _ in range(4)]
    drawn = sampler.generate(asked, temperature=1.0, seed=1)
    assert sampler.compiles == 1
    one["tokens"] = [completion.tokens for completion in drawn]
    found.append(one)
print(json.dumps(found))
"""


def test_two_devices_compute_what_one_does() -> None:
    one, two = printed(PROGRAM, devices=2)
    for name in ("simpo", "grpo"):
        assert two[name] == pytest.approx(one[name], rel=1e-3, abs=1e-5)
        assert np.ptp(one[name]) > 0.01, "it trains"
    assert two["tokens"] == one["tokens"]
