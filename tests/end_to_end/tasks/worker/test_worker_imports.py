"""What a worker that trains has in memory: of Tunix the modules it uses, and not what stands behind the others."""

import importlib.util
import json
import subprocess
import sys
from typing import Any

import pytest

from infra.process import ROOT

HEAVY = ("torch", "pandas", "google.cloud.storage", "grpc", "transformers", "datasets", "matplotlib", "sklearn", "sympy", "PIL")
LATER = [name for name in ("torch", "google.cloud.storage") if importlib.util.find_spec(name)]
SCRIPT = f"""
import importlib, json, sys
import tasks.worker.__main__
from tasks.stages import sft, simpo, grpo, on_policy_distill, reward_model
import tasks.training.loop, tasks.models.loading, tasks.sampling.sampler, tasks.losses.grpo, tasks.losses.simpo, tasks.reinforcement.batches
from tasks.training import trainers
heavy = [name for name in {HEAVY} if name in sys.modules]
import tunix
whole = [tunix.GRPOLearner.__name__, tunix.PeftTrainer is tunix.sft.peft_trainer.PeftTrainer is trainers.peft_trainer.PeftTrainer]
print(json.dumps([heavy, whole, [importlib.import_module(name).__name__ for name in {LATER}]]))
"""


@pytest.fixture(scope="module")
def seen() -> Any:
    """Of a fresh process: what is there after a trainer's imports, and what can be imported after them."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_training_loads_neither_torch_nor_the_rest_of_tunix(seen: Any) -> None:
    """Each worker would pay 3 s of CPU time and 280 MiB for them."""
    assert seen[0] == []


def test_tunix_is_whole_for_who_asks_for_more_of_it(seen: Any) -> None:
    assert seen[1] == ["GRPOLearner", True]


def test_what_tunix_did_not_find_is_there_for_others(seen: Any) -> None:
    """An export proves itself with torch, and a bucket is a store, in a process that has imported Tunix."""
    assert seen[2] == LATER
