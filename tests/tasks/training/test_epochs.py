"""Epochs in place of steps: how many steps they are; sizes and seeds that no trainer takes; and
that knobs which are not set are in no stage key."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.base import explain_validation
from tasks.distillation.on_policy_config import Config as DistillConfig
from tasks.stages import grpo, sft, simpo
from tests.tasks.stages.bench import DISTILL, GKD, GRPO, PREFERENCES, SFT

KINDS = {
    "sft": (sft.Config, SFT),
    "simpo": (simpo.Config, PREFERENCES),
    "grpo": (grpo.Config, GRPO),
}


def without_steps(table: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != "steps"} | changes


def test_epochs_over_rows_are_whole_batches_of_four() -> None:
    """2.5 epochs over 100 rows are 250 rows, 62.5 batches. 0.3 x 40 / 4 is 3 to the last bit."""
    known = ((1.0, 96, 24), (2.5, 100, 63), (0.1, 30, 1), (0.001, 4, 1), (3.0, 4, 3), (0.3, 40, 3))
    for epochs, rows, steps in known:
        assert sft.Config.parse(without_steps(SFT, epochs=epochs)).counted(rows).steps == steps
    assert sft.Config.parse(SFT).counted(1_000_000).steps == SFT["steps"]


def test_where_responses_are_sampled_epochs_are_passes_over_prompts() -> None:
    """16 responses in groups of 8 are 2 prompts a rollout; each rollout is used twice. Of 5 prompts
    3 rollouts are a pass; with 2 candidates for a group, 2 are."""
    table = without_steps(GRPO, epochs=1.0, num_iterations=2)
    assert grpo.Config.parse(table).counted(5).steps == 3 * 2
    wider = table | {"dynamic_sampling": True, "oversampling": 2}
    assert grpo.Config.parse(wider).counted(5).steps == 2 * 2
    half = without_steps(DISTILL, epochs=1.0, loss=GKD)  # 8 of 16 responses are sampled
    assert DistillConfig.parse(half).counted(20).steps == 3 * 2


def test_one_of_both_is_set() -> None:
    for changes in ({}, {"steps": 3, "epochs": 1.0}, {"steps": 0}):
        with pytest.raises(ValidationError) as told:
            sft.Config.parse(without_steps(SFT, **changes))
        said = explain_validation(told.value, sft.Config, "stages.sft.config")
        assert "set one of steps (1 or more) and epochs" in said
        assert ("neither is set" in said) == ("epochs" not in changes)
    both = "here steps = 3 and epochs = 1.0; steps = 0 leaves it to epochs"
    with pytest.raises(ValidationError, match=both):
        sft.Config.parse(without_steps(SFT, steps=3, epochs=1.0))


@pytest.mark.parametrize("kind", KINDS)
def test_micro_batches_fill_the_batch(kind: str) -> None:
    """A batch that was made smaller than its micro-batches, or does not divide."""
    config, table = KINDS[kind]
    for size in (3, 2 * table["batch_size"]):
        with pytest.raises(ValidationError, match=f"a multiple of micro_batch_size = {size}"):
            config.parse(table | {"micro_batch_size": size})


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_that_numpy_does_not_take_is_refused(kind: str) -> None:
    config, table = KINDS[kind]
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        config.parse(table | {"seed": -1})


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_set_is_in_no_stage_key(kind: str) -> None:
    config, table = KINDS[kind]
    later = {"epochs", "top_k", "top_p"}
    assert not later & config.parse(table).model_dump(mode="json").keys()
    knobs = {"top_k": 20, "top_p": 0.9} if kind != "sft" else {}
    found = config.parse(without_steps(table, epochs=2.0, **knobs)).model_dump(mode="json")
    assert {name: found[name] for name in later & found.keys()} == {"epochs": 2.0} | knobs
    assert config.parse(found).counted(10) == config.parse(found).counted(10)
