"""How kinds run small where that is more than a minimum: whole groups, lengths that rows must fit, quotas by difficulty."""

from typing import Any

import pytest

from tasks.contract.plugins import stage_kind
from tasks.contract.small import rows_within
from tasks.data.quotas import Quota

TRAINER: dict[str, Any] = {
    "steps": 900,
    "batch_size": 240,
    "micro_batch_size": 48,
    "prompt_length": 512,
    "response_length": 512,
    "remat": "layer",
    "lora": {"rank": 32, "alpha": 64.0},
    "optimizer": {"learning_rate": 1e-5, "max_grad_norm": 0.1},
}
GRPO = TRAINER | {"rewards": [{"name": "format"}]}
GKD = TRAINER | {"model": "gemma3-1b-it", "teacher": {"name": "gemma", "model": "gemma3-4b-it"}, "batch_size": 16, "micro_batch_size": 16}


@pytest.mark.parametrize(
    ("size", "most", "length", "rows"),
    [(256, 128, 120, 128), (256, 128, 1024, 16), (256, 128, 640, 16), (256, 128, 100_000, 1), (6, 128, 640, 6), (256, 5, 640, 5)],
)
def test_a_batch_has_as_many_rows_as_16384_tokens_allow(size: int, most: int, length: int, rows: int) -> None:
    """16,384 / 640 = 25.6, and the power of two below is 16."""
    assert rows_within(size, most, length) == rows


@pytest.mark.parametrize(("group", "batch"), [(4, 16), (6, 12), (60, 60)])
def test_grpo_keeps_its_groups_whole(group: int, batch: int) -> None:
    kind = stage_kind("grpo")
    small = kind.small(kind.config.parse(GRPO | {"group_size": group}))
    assert (small.batch_size, small.group_size) == (batch, group)
    assert batch % small.micro_batch_size == 0, "the trainer takes whole micro-batches alone"
    assert kind.small(small) == small


@pytest.mark.parametrize(
    ("group", "fraction", "batch", "answer"),
    [(1, 1.0, 16, 128), (3, 0.75, 16, 512), (1, 0.5, 16, 512)],
)
def test_on_policy_distillation_samples_whole_groups_and_fits_the_traces_it_takes(
    group: int, fraction: float, batch: int, answer: int
) -> None:
    """Of 16 responses 0.75 are 12, four groups of 3; traces beside them fill all of `response_length`."""
    kind = stage_kind("on_policy_distill")
    loss = {"name": "gkd", "on_policy_fraction": fraction}
    small = kind.small(kind.config.parse(GKD | {"group_size": group, "loss": loss}))
    assert (small.batch_size, small.response_length) == (batch, answer)
    assert small.sampled % group == 0
    assert kind.small(small) == small


def test_a_small_trainer_trains_the_whole_tiny_model_at_its_rate() -> None:
    kind = stage_kind("grpo")
    small = kind.small(kind.config.parse(GRPO))
    assert (small.steps, small.lora, small.remat) == (5, None, "none")
    assert (small.optimizer.learning_rate, small.optimizer.max_grad_norm) == (3e-4, 0.1)


def test_lengths_that_rows_have_to_fit_stay() -> None:
    sft, simpo = stage_kind("sft"), stage_kind("simpo")
    rows = {name: value for name, value in TRAINER.items() if not name.endswith("_length")}
    packed = sft.small(sft.config.parse(rows | {"model": "gemma3-1b-it", "sequence_length": 1024}))
    assert (packed.sequence_length, packed.batch_size) == (1024, 2), "2,048 tokens an update"
    pairs = simpo.small(simpo.config.parse(TRAINER | {"prompts": 4096, "sampling_batch_size": 256}))
    assert (pairs.prompt_length, pairs.response_length) == (512, 512)
    assert (pairs.batch_size, pairs.micro_batch_size, pairs.sampling_batch_size, pairs.prompts) == (8, 8, 16, 64)


@pytest.mark.parametrize(
    ("train", "small"),
    [(5000, 600), (20, 20), ({1: 100, 3: 400}, {1: 100, 3: 400}), ({1: 100, 3: 4000}, {1: 100, 3: 300}), ({1: 9000, 2: 0}, {1: 300, 2: 0})],
)
def test_a_quota_by_difficulty_shares_what_there_is(train: Any, small: Any) -> None:
    quota = Quota(train=train).at_most(train=600)
    assert quota.train == small
    assert quota.at_most(train=600) == quota
