"""A penalty that is doubled in the middle of a run destroys the policy, and the guard undoes it.

The author of shared/seeds doubled the penalties from -5 to -10 at step 301, and the largest reward
fell from 36 to 1. Here, small: a policy that has learned to write traces (format: 1) pays for each
token (overlong: up to -1). While the penalty weighs 2, a whole trace is worth more than anything
shorter; when it weighs 4, almost anything shorter is worth more than a trace.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.contract.job import read_rows, write_jsonl
from tasks.models.loading import load_model
from tasks.stages import grpo, sft
from tasks.training.trainer import Trainer
from tests.tasks.jobs import job_at
from tests.tasks.stages.bench import example

CHANGE = 17
SFT = {
    "model": "gemma3-tiny",
    "steps": 25,
    "batch_size": 4,
    "sequence_length": 64,
    "validation_every": 100,
}
GRPO = {
    "steps": 56,
    "batch_size": 32,
    "group_size": 8,
    "rewards": [
        {"name": "format"},
        {
            "name": "overlong",
            "cache": 15,
            "weight": {"start": 2.0, "end": 4.0, "from_step": CHANGE, "to_step": CHANGE},
        },
    ],
    "audit": {
        "allow": dict.fromkeys(
            ("control:empty", "control:bare_answer"), "a penalty that destroys is what is tested"
        )
    },
    "beta": 0.0,
    "temperature": 1.3,
    "prompt_length": 24,
    "response_length": 16,
    "log_every": 1,
    "collapse": {"window": 4},
    "optimizer": {"learning_rate": 6e-3, "warmup_fraction": 0.0, "final_fraction": 1.0},
}


def run(
    root: Path, kind: Any, table: dict[str, Any], inputs: dict[str, Path]
) -> tuple[dict[str, Any], Path]:
    """The stage's metrics and output."""
    job = job_at(root, kind.Config.parse(table), inputs, checkpoint_steps=10)
    return kind.run(job), job.out


@pytest.fixture(scope="module")
def inputs(one_layer: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A policy that writes traces of 8 tokens, and its prompts."""
    root = tmp_path_factory.mktemp("taught")
    rows = [example(number).model_copy(update={"reasoning": "I"}) for number in range(8)]
    (root / "data").mkdir()
    for name in ("train", "validation"):
        write_jsonl(root / "data" / f"{name}.jsonl", rows)
    write_jsonl(root / "data" / "prompts.jsonl", [row.as_prompt() for row in rows])
    _, policy = run(
        root, sft, {**SFT, "optimizer": {"learning_rate": 1e-2}}, {"examples": root / "data"}
    )
    return {"policy": policy, "prompts": root / "data"}


def formats(out: Path) -> list[float]:
    return [row["reward/format"] for row in read_rows(out / "curves.jsonl")]


def test_a_doubled_penalty_that_destroys_the_policy_is_taken_back(tmp_path, inputs, monkeypatch):
    _, dead = run(tmp_path / "dead", grpo, {**GRPO, "collapse": {"enabled": False}}, inputs)
    before, after = formats(dead)[CHANGE - 5 : CHANGE - 1], formats(dead)[-4:]
    assert np.mean(before) > 0.9
    assert max(after) < 0.3

    metrics, saved = run(tmp_path / "saved", grpo, GRPO, inputs)
    # the same run, until it is undone
    assert formats(saved)[: CHANGE + 4] == formats(dead)[: CHANGE + 4]
    assert CHANGE < metrics["rolled_back_at"] < 50
    assert np.mean(formats(saved)[-4:]) > 0.9
    (row,) = [row for row in read_rows(saved / "curves.jsonl") if "rolled_back_to" in row]
    assert row["step"] == metrics["rolled_back_at"]

    class Killed(BaseException):
        pass

    steps: list[int] = []
    step = Trainer.step

    def dying(*arguments: Any) -> Any:
        steps.append(1)
        if len(steps) == metrics["rolled_back_at"] + 3:
            raise Killed
        return step(*arguments)

    monkeypatch.setattr(Trainer, "step", dying)
    with pytest.raises(Killed):
        run(tmp_path / "killed", grpo, GRPO, inputs)
    again, resumed = run(tmp_path / "killed", grpo, GRPO, inputs)
    assert json.dumps(again) == json.dumps(metrics)
    for path in saved.iterdir():
        assert (resumed / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_dying_run_ends_with_its_best_checkpoint(tmp_path, inputs, monkeypatch):
    """An accident after 20 updates, with no change of weights to blame: the stage ends, with a
    policy from before."""
    steps: list[int] = []
    step = Trainer.step

    def accident(trainer: Any, batch: Any) -> Any:
        found = step(trainer, batch)
        steps.append(1)
        if len(steps) == 20:
            # all words are equally likely
            trainer.model.final_norm.set_value(0 * trainer.model.final_norm.get_value() - 1)
        return found

    monkeypatch.setattr(Trainer, "step", accident)
    rewards = [{"name": "format"}, {"name": "overlong", "cache": 15, "weight": 2.0}]
    metrics, out = run(tmp_path, grpo, {**GRPO, "rewards": rewards}, inputs)
    assert metrics["rolled_back_at"] is None
    assert 0 < metrics["best_step"] <= 20 < metrics["stopped_at"] <= 24
    assert metrics["stopped_because"]
    assert json.loads((out / "state.json").read_text())["step"] == metrics["best_step"]
    assert len(formats(out)) == metrics["stopped_at"]
    assert max(formats(out)[20:]) < 0.1
    assert np.asarray(load_model(out).model.final_norm.get_value(), np.float32).min() > -0.9
