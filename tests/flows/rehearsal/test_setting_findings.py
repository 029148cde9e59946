"""Defects that a recipe's settings show, each planted in a sound one."""

from datetime import date
from pathlib import Path

import pytest

from flows.rehearsal import setting_findings
from flows.rehearsal.setting_findings import shut_down
from schemas.base import InputError
from tests.flows.rehearsal.recipes import RECIPE
from tests.flows.rehearsal.test_findings import SOUND, names, told

PREFERENCES = """
[stages.simpo]
kind = "simpo"
inputs = { policy = "sft", prompts = "rebalance" }
[stages.simpo.config]
steps = 100
batch_size = 64
prompts = 512
prompt_length = 512
response_length = 512
lora = { rank = 32, alpha = 64.0 }
optimizer = { learning_rate = 5e-6 }

[stages.grpo]"""

SAFETY = """
[stages.safety_eval]
kind = "safety_eval"
inputs = { policy = "grpo" }
[stages.safety_eval.config]
prompt_length = 512
response_length = 512
suites = [{ name = "injection" }]
"""

PLANTED = {
    "schedule:grpo.format.weight": (
        "weight = 0.3",
        "weight = { start = 0.3, end = 0.1, from_step = 300, to_step = 400 }",
    ),
    "waits:grpo": ("rollout_lag = 1\n", ""),
    "shut_down:gemini:gemini-2.0-flash": ("gemini-9", "gemini-2.0-flash"),
}


def test_planted_settings_are_named(tmp_path: Path) -> None:
    """All at once; each is named, and nothing else is."""
    recipe = RECIPE
    for sound, planted in PLANTED.values():
        assert sound in recipe
        recipe = recipe.replace(sound, planted)
    assert names(told(tmp_path, SOUND, recipe=recipe)) == [*PLANTED]


def test_teachers_that_write_in_different_formats_are_named(tmp_path: Path) -> None:
    """Also one that only tops up."""
    more = '[[stages.distill.config.teachers]]\nname = "procedural"\nrows = {}\n'
    more += "grounded = { answerable = 0 }\n"
    for number, channels in enumerate(("", 'channels = "xml"\n')):
        (tmp_path / str(number)).mkdir()
        recipe = RECIPE.replace("[stages.rebalance]", f"{more}{channels}\n[stages.rebalance]", 1)
        found = told(tmp_path / str(number), SOUND, recipe=recipe)
        assert names(found) == ["formats:distill"] * bool(channels)
    (one,) = found["findings"]
    assert "'trace' (openai_compatible), 'xml' (procedural)" in one["text"]


def test_a_router_that_never_asks_is_refused(tmp_path: Path) -> None:
    routing = 'name = "dataset"\nrouting = { provider = "vllm", model = "m" }'
    recipe = RECIPE.replace('name = "dataset"', routing, 1)
    with pytest.raises(InputError, match="no source says domain = 'router'"):
        told(tmp_path, SOUND, recipe=recipe)


def test_a_model_that_is_going_to_be_shut_down_is_noted(tmp_path: Path, monkeypatch) -> None:
    """Nothing was said of one that ended three days later."""
    monkeypatch.setitem(setting_findings.SHUT_DOWN, "gemini-9", date.max)
    found = told(tmp_path, SOUND)
    assert any(note.startswith("gemini:gemini-9 will be shut down on") for note in found["notes"])
    assert names(found) == []


def test_settings_that_are_easily_overlooked_are_noted(tmp_path: Path) -> None:
    recipe = RECIPE.replace("[stages.grpo]", PREFERENCES, 1)
    recipe = recipe.replace("lora = { rank = 32, alpha = 64.0 }\n", "", 1)
    unsafe = "no stage asks what grpo trains whether it is safe"
    verbose = "simpo rejects no response for its length"
    decay = "sft trains all weights without weight decay"
    (tmp_path / "mended").mkdir()
    mended = recipe.replace("prompts = 512", 'prompts = 512\nrejected_because = ["long"]')
    mended = mended.replace("learning_rate = 1e-4", "learning_rate = 1e-4, weight_decay = 0.1")
    mended += SAFETY
    before = told(tmp_path, SOUND, recipe=recipe)["notes"]
    after = told(tmp_path / "mended", SOUND, recipe=mended)["notes"]
    for begins in (unsafe, verbose, decay):
        assert [note.startswith(begins) for note in before].count(True) == 1
        assert not any(note.startswith(begins) for note in after)


def test_adapters_that_the_rehearsal_leaves_out_are_the_recipes(tmp_path: Path) -> None:
    notes = told(tmp_path, SOUND)["notes"]
    assert not any(note.startswith("sft trains all weights") for note in notes)
    assert any(note.startswith("grpo trains all weights") for note in notes)


def test_models_end_by_the_start_of_their_names() -> None:
    assert str(shut_down("gemini:gemini-2.0-flash-lite-001")) == "2026-06-01"
    assert shut_down("gemini:gemini-2.5-flash-lite") is None
    assert shut_down("vllm:gemini-2.0-flash") is None
    assert shut_down("gemini:gemini-3.5-flash-lite") is None
