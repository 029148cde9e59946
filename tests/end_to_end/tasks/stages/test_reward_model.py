"""The stage reward_model: it learns, and ends with the same bytes however often it is killed."""

from pathlib import Path

import pytest

from benchmarks import reward_model as benchmark
from tasks.models.gemma import SIZES
from tasks.stages import reward_model
from tests.tasks.stages import test_resume
from tests.tasks.stages.test_reward_model import SAMPLES, config, data  # noqa: F401

pytestmark = pytest.mark.usefixtures("one_layer")


FULL = SIZES["gemma3-tiny"]


KILLS: list[test_resume.Point] = [
    ("put", 1, "before"),  # between sampling and what keeps the samples
    ("seal", 1, "before"),  # inside the first checkpoint
    ("save", 1, "after"),
    ("step", 3, "before"),
    ("model", 1, "after"),  # the model is written, nothing is measured yet
]


def test_a_stage_that_is_killed_again_and_again_ends_with_the_bytes_of_an_undisturbed_one(
    tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
):
    table = config(**SAMPLES).model_dump(mode="json")
    bench = test_resume.Bench(tmp_path, {"prompts": data}, monkeypatch)
    undisturbed = test_resume.content(bench.attempt(reward_model, table, "undisturbed"))
    for point in KILLS:
        bench.attempt(reward_model, table, "killed", point)
    assert test_resume.content(bench.attempt(reward_model, table, "killed")) == undisturbed
    assert bench.calls["step"] <= 2  # the last attempt went on from a checkpoint
    assert {"model.safetensors", "calibration.json", "heldout.jsonl", "state.json"} < undisturbed.keys()


def test_it_learns_which_trace_is_right_and_which_step_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Running totals of one-digit numbers, verified, beside themselves with one wrong number and the same answer: no length, no format and
    no answer tells which is which."""
    monkeypatch.setitem(SIZES, "gemma3-tiny", FULL)
    metrics = benchmark.measured(tmp_path, benchmark.examples(3600), benchmark.table(3600, 500))
    assert metrics["accuracy_low"] > 0.75
    assert metrics["steps"]["found_low"] > metrics["steps"]["chance"] + 0.1
    assert metrics["ece"] < 0.1
    assert metrics["longer_wins"] == 0.5
    assert all(one["gain"] < 0.05 for one in metrics["attacks"].values())
