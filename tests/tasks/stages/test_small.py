"""How kinds run small where that is more than a minimum: whole groups, lengths that agree, quotas
by difficulty."""

from dataclasses import replace
from typing import Any

import pytest

from tasks.cleaning.quotas import Quota
from tasks.contract.kinds import stage_kind
from tasks.contract.small import LAPTOP

TRAINER: dict[str, Any] = {
    "steps": 900, "batch_size": 240, "micro_batch_size": 48, "prompt_length": 512,
    "response_length": 512, "remat": "layer", "lora": {"rank": 32, "alpha": 64.0},
    "optimizer": {"learning_rate": 1e-5, "max_grad_norm": 0.1},
}  # fmt: skip
GRPO = TRAINER | {"rewards": [{"name": "format"}]}
GKD = TRAINER | {"model": "gemma3-1b-it", "teacher": {"name": "gemma", "model": "gemma3-4b-it"}}


@pytest.mark.parametrize(("group", "batch"), [(4, 16), (6, 12), (60, 60)])
def test_grpo_keeps_its_groups_whole(group: int, batch: int) -> None:
    kind = stage_kind("grpo")
    small = kind.small(kind.config.parse(GRPO | {"group_size": group}), LAPTOP)
    assert (small.batch_size, small.group_size) == (batch, group)
    assert batch % small.micro_batch_size == 0, "the trainer takes whole micro-batches alone"
    assert kind.small(small, LAPTOP) == small


@pytest.mark.parametrize(("tokens", "rows"), [(512, 16), (700, 8), (2048, 1)])
def test_long_rows_are_trained_on_a_few_at_a_time(tokens: int, rows: int) -> None:
    """Scores of 16 rows of 1,024 tokens are 2^24 for each head, and so are those of 8 of 1,448. A
    rehearsal with 16 rows of 2,992 took 14 GB and was killed."""
    kind = stage_kind("grpo")
    long = GRPO | {"prompt_length": 2048, "response_length": 2048}
    sizes = replace(LAPTOP, prompt=tokens, answer=tokens)
    assert kind.small(kind.config.parse(long), sizes).micro_batch_size == rows


@pytest.mark.parametrize(
    ("group", "fraction", "batch"), [(1, 1.0, 32), (3, 0.75, 32), (5, 0.5, 30), (40, 1.0, 40)]
)
def test_on_policy_distillation_samples_whole_groups(group, fraction, batch):
    """Of 32 responses 0.75 are 24, eight groups of 3; of 30, half are three groups of 5; a group of
    40 fills a batch alone."""
    kind = stage_kind("on_policy_distill")
    loss = {"name": "gkd", "on_policy_fraction": fraction}
    small = kind.small(kind.config.parse(GKD | {"group_size": group, "loss": loss}), LAPTOP)
    assert small.batch_size == batch
    assert small.sampled % group == 0
    assert small.teacher.model == small.model, "another family's has another tokenizer"
    assert kind.small(small, LAPTOP) == small


def test_both_responses_of_a_pair_count_as_rows_of_the_model() -> None:
    """4 pairs of 1,680 tokens are 8 rows: 22.6 million scores of each head, where 16.8 may be. Such
    an update took 5.2 GB."""
    kind = stage_kind("simpo")
    four = TRAINER | {"prompts": 64, "batch_size": 4, "micro_batch_size": 4}
    long = four | {"prompt_length": 1200, "response_length": 480}
    sizes = replace(LAPTOP, prompt=1200, answer=480)
    assert kind.small(kind.config.parse(long), sizes).micro_batch_size == 2


def test_a_rehearsal_updates_on_two_rows() -> None:
    """Two of 3,152 tokens each; four took 50 s of `dipg_safety`'s 142. Trained weights, which may
    be right, are asked twice a prompt before SimPO."""
    few = replace(LAPTOP, read=24)
    tables = {"simpo": TRAINER | {"prompts": 4096}, "grpo": GRPO | {"group_size": 8}}
    tables["on_policy_distill"] = GKD
    simpo, grpo, gkd = (
        stage_kind(name).small(stage_kind(name).config.parse(table), few)
        for name, table in tables.items()
    )
    asked = simpo.model_copy(update={"samples_per_prompt": 4})
    trained = stage_kind("simpo").small(asked, replace(few, trained=True))
    assert (simpo.samples_per_prompt, trained.samples_per_prompt, grpo.group_size) == (1, 2, 2)
    assert (simpo.batch_size, grpo.batch_size, gkd.batch_size) == (2, 2, 2)


@pytest.mark.parametrize(
    ("rows", "own", "used"), [(None, None, 0.04), (24, None, None), (24, 0.1, 0.04)]
)
def test_a_rehearsal_uses_muon_where_the_recipe_does(rows, own, used):
    kind = stage_kind("sft")
    trainer = {name: value for name, value in TRAINER.items() if not name.endswith("_length")}
    optimizer = TRAINER["optimizer"] | ({"muon_learning_rate": own} if own else {})
    config = trainer | {"model": "gemma3-1b-it", "sequence_length": 64, "optimizer": optimizer}
    small = kind.small(kind.config.parse(config), replace(LAPTOP, read=rows))
    assert small.optimizer.muon_learning_rate == used


def test_a_small_trainer_trains_the_whole_tiny_model_at_its_rate() -> None:
    kind = stage_kind("grpo")
    small = kind.small(kind.config.parse(GRPO), LAPTOP)
    assert (small.steps, small.lora, small.remat) == (5, None, "none")
    assert (small.optimizer.learning_rate, small.optimizer.max_grad_norm) == (3e-4, 0.1)


def test_rows_that_a_small_rebalance_takes_fit_every_small_stage() -> None:
    """A prompt and an answer of 128 tokens each fill a row of 256."""
    rebalance, sft, simpo = map(stage_kind, ("rebalance", "sft", "simpo"))
    limits = {
        "max_prompt_tokens": 512,
        "max_response_tokens": 512,
        "model": "gemma3-1b-it",
        "quotas": {"math": {"train": 5000}},
    }
    rows = rebalance.small(rebalance.config.parse(limits), LAPTOP)
    trainer = {name: value for name, value in TRAINER.items() if not name.endswith("_length")}
    table = trainer | {"model": "gemma3-1b-it", "sequence_length": 1024}
    packed = sft.small(sft.config.parse(table), LAPTOP)
    pairs = simpo.small(simpo.config.parse(TRAINER | {"prompts": 4096}), LAPTOP)
    lengths = (rows.max_prompt_tokens, rows.max_response_tokens)
    assert sum(lengths) <= packed.sequence_length
    assert lengths == (pairs.prompt_length, pairs.response_length)
    assert packed.sequence_length * packed.batch_size == 2048


@pytest.mark.parametrize(
    ("prompt", "answer", "batch"), [(60, 60, 128), (512, 512, 32), (1536, 768, 16), (100_000, 8, 1)]
)
def test_an_evaluation_keeps_its_prompts_whole_in_smaller_batches(prompt, answer, batch):
    """32,768 / (512 + 128) = 51.2, and the power of two below is 32."""
    kind = stage_kind("reasoning_eval")
    config = {
        "model": "gemma3-1b-it",
        "prompt_length": prompt,
        "response_length": answer,
        "batch_size": 256,
    }
    config["suites"] = [{"name": "gsm8k"}, {"name": "mt_bench", "first": 3}]
    small = kind.small(kind.config.parse(config), LAPTOP)
    assert (small.prompt_length, small.response_length) == (prompt, min(answer, 128))
    assert small.batch_size == batch
    assert [suite["first"] for suite in small.suites] == [50, 3]


def test_a_quota_by_difficulty_shares_what_there_is() -> None:
    for train, small in (
        (5000, 600),
        (20, 20),
        ({1: 100, 3: 400}, {1: 100, 3: 400}),
        ({1: 100, 3: 4000}, {1: 100, 3: 300}),
        ({1: 9000, 2: 0}, {1: 300, 2: 0}),
    ):
        quota = Quota(train=train).at_most(train=600)
        assert quota.train == small
        assert quota.at_most(train=600) == quota
