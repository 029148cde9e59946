"""The stage reward_model learns."""

import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra.process import ROOT
from schemas.examples import Domain, Example, prompt_id
from tasks.contract.job import write_jsonl
from tasks.models.decoder import SIZES
from tasks.rehearsal.environment import XLA_FLAGS
from tasks.stages import reward_model
from tasks.teaching.families.math import running_total
from tests.tasks.jobs import job_at


def learned(root: Path) -> dict[str, Any]:
    """The metrics of 300 steps of a model of two layers."""
    SIZES["gemma3-tiny"] = replace(SIZES["gemma3-tiny"], num_layers=2)
    dice, examples = random.Random(0), dict[str, Example]()
    while len(examples) < 2400:
        problem = running_total(dice, dice.choice((1, 2, 3)))
        name = prompt_id(problem.prompt)
        fields = {one: getattr(problem, one) for one in ("prompt", "answer", "reasoning")}
        examples[name] = Example(id=name, domain=Domain.MATH, **fields)
    write_jsonl(root / "train.jsonl", examples.values())
    write_jsonl(root / "pairs.jsonl", [])
    table = {
        "model": "gemma3-tiny",
        "steps": 300,
        "batch_size": 32,
        "damaged": 2400,
        "prompt_length": 20,
        "response_length": 54,  # traces have 26 tokens at most, attacked ones 52
        "validation_fraction": 0.1,
        "heldout_fraction": 0.15,
        "min_accuracy": 0.0,
        "step_weight": 1.0,
        "optimizer": {"learning_rate": 2e-3, "muon_learning_rate": 0.02},
    }
    config = reward_model.Config.parse(table)
    return reward_model.run(job_at(root, config, {"prompts": root}))


def test_it_learns_which_trace_is_right_and_which_step_is_wrong(tmp_path: Path) -> None:
    """Running totals of one-digit numbers, verified, beside themselves with one wrong number and
    the same answer: no length, no format and no answer tells which is which."""
    done = subprocess.run(
        [sys.executable, "-m", __name__, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": XLA_FLAGS},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    metrics = json.loads(done.stdout.splitlines()[-1])
    assert metrics["accuracy_low"] > 0.75
    assert metrics["steps"]["found_low"] > metrics["steps"]["chance"] + 0.1
    assert metrics["ece"] < 0.1
    assert metrics["longer_wins"] == 0.5
    assert all(one["gain"] < 0.05 for one in metrics["attacks"].values())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(learned(Path(sys.argv[1]))))
