"""A reward model of step-wise traces, learned from nothing on the CPU: what it is right about, how sure it is, and what fools it.

    python -m benchmarks.reward_model [--pairs N] [--steps N]

Traces of the procedural teacher's arithmetic beside themselves with one wrong number and the same answer, so that neither length nor answer
tells the two apart. `gemma3-tiny` with two layers, from random weights, is trained twice on the same pairs: with what is known of the
steps, and from whole traces alone. Held-out figures, with 95 % Wilson intervals; `attacked` is how often the sound trace still wins when
the wrong one was dressed up.
"""

import argparse
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.examples import Domain, Example, prompt_id
from tasks.contract.job import Job, write_jsonl
from tasks.models.gemma import SIZES
from tasks.stages import reward_model
from tasks.teaching.families.math import running_total


def examples(count: int, seed: int = 0) -> list[Example]:
    """Distinct running totals of one-digit numbers, three or four terms each, with their worked and right traces."""
    rng, found = random.Random(seed), dict[str, Example]()
    while len(found) < count:
        problem = running_total(rng, rng.choice((1, 2, 3)))
        fields = {"prompt": problem.prompt, "answer": problem.answer, "reasoning": problem.reasoning}
        found[prompt_id(problem.prompt)] = Example(id=prompt_id(problem.prompt), domain=Domain.MATH, **fields)
    return list(found.values())


def table(pairs: int, steps: int, step_weight: float = 1.0) -> dict[str, Any]:
    """The stage's config. Traces have 26 tokens at most, attacked ones 52."""
    return {
        "model": "gemma3-tiny",
        "steps": steps,
        "batch_size": 32,
        "damaged": pairs,
        "prompt_length": 20,
        "response_length": 54,
        "validation_fraction": 0.1,
        "heldout_fraction": 0.15,
        "min_accuracy": 0.0,
        "step_weight": step_weight,
        "optimizer": {"learning_rate": 2e-3, "muon_learning_rate": 0.02},
    }


def measured(root: Path, rows: list[Example], config: dict[str, Any]) -> dict[str, Any]:
    """The metrics of a stage, and `seconds`."""
    data, out = root / "data", root / "out"
    for directory in (data, out):
        directory.mkdir(parents=True)
    write_jsonl(data / "train.jsonl", rows)
    write_jsonl(data / "pairs.jsonl", [])
    SIZES["gemma3-tiny"] = replace(SIZES["gemma3-tiny"], num_layers=2)
    started = time.monotonic()
    work = Workspace(open_store(root / "store"), "key", "1")
    return reward_model.run(Job(reward_model.Config.parse(config), {"prompts": data}, out, work)) | {"seconds": time.monotonic() - started}


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    steps, before = found["steps"], found["uncalibrated"]
    attacks = " ".join(f"{name} {one['accuracy']:.1%}" for name, one in found["attacks"].items())
    return (
        f"{found['accuracy']:.1%} [{found['accuracy_low']:.1%}, {found['accuracy_high']:.1%}] | {found['longer_wins']:.1%} | "
        f"{steps['found']:.1%} [{steps['found_low']:.1%}, {steps['found_high']:.1%}] ({steps['chance']:.1%}) | "
        f"{found['ece']:.3f} ({before['ece']:.3f}) | {attacks} | "
        f"{found['seconds']:.0f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3600)
    parser.add_argument("--steps", type=int, default=500)
    asked = parser.parse_args()
    rows = examples(asked.pairs)
    print("| trained on | better trace wins | longer wins | wrong step lowest (chance) | ECE (T = 1) | attacked | took |")
    print("|---|---|---|---|---|---|---|")
    for name, weight in (("traces and known steps", 1.0), ("traces alone", 0.0)):
        with tempfile.TemporaryDirectory() as root:
            print(f"| {name} | {line(measured(Path(root), rows, table(asked.pairs, asked.steps, weight)))} |", flush=True)


if __name__ == "__main__":
    main()
