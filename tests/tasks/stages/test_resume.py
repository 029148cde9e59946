"""A stage that is interrupted again and again ends with the bytes of an undisturbed one, and
repeats no more than its last interval."""

import functools
import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.base import StageFailed
from schemas.job import Progress
from tasks.contract.job import Job, write_jsonl
from tasks.contract.journal import Journal
from tasks.models.loading import base_model, save_model
from tasks.stages import reasoning_eval, safety_eval, sft
from tasks.training import loop as training
from tasks.training.checkpoints import Checkpoints
from tasks.training.trainer import Trainer
from tests.tasks.stages.tiny_stages import SFT, example

pytestmark = pytest.mark.usefixtures("one_layer")


class Killed(BaseException):
    """Ends an attempt where a test says so."""


Point = tuple[str, int, str]
"""Where an attempt ends: a function of WATCHED, its call in this attempt (from 1), and whether
before or after it."""

WATCHED: dict[str, tuple[Any, str]] = {
    "step": (Trainer, "step"),
    "save": (Checkpoints, "save"),
    "seal": (Workspace, "save_tree"),
    "put": (Journal, "put"),
    "model": (training, "save_model"),
}

EVAL = {
    "model": "gemma3-tiny",
    "batch_size": 4,
    "prompt_length": 80,
    "response_length": 8,
    "min_items": 1,
}


@pytest.fixture(scope="module")
def inputs(one_layer: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Input name -> directory, for every kind."""
    data, policy = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("policy")
    examples = [example(number) for number in range(20)]
    write_jsonl(data / "train.jsonl", examples)
    write_jsonl(data / "prompts.jsonl", [row.as_prompt() for row in examples])
    write_jsonl(data / "pairs.jsonl", [])
    write_jsonl(data / "validation.jsonl", examples[:7])
    write_jsonl(
        data / "heldout.jsonl",
        [*examples[:11], *(example(30 + number, "answerable") for number in range(9))],
    )
    save_model(base_model("gemma3-tiny", 0), policy)
    return {"examples": data, "prompts": data, "policy": policy}


class Bench:
    """Runs attempts of one stage in this process. Counts what they call, and ends them where it is
    told to."""

    def __init__(self, root: Path, inputs: dict[str, Path], patch: pytest.MonkeyPatch) -> None:
        self.root, self.inputs, self.attempts = root, inputs, 0
        self.store = open_store(root / "store")
        self.calls: Counter[str] = Counter()
        self.trace: list[str] = []
        self.progress: list[Progress] = []
        self.point: Point | None = None
        for name, (owner, attribute) in WATCHED.items():
            patch.setattr(owner, attribute, self._watched(name, getattr(owner, attribute)))

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            number = self.calls[name] + 1
            if self.point == (name, number, "before"):
                raise Killed
            self.trace.append(name)
            result = function(*arguments, **named)
            self.calls[name] = number
            if self.point == (name, number, "after"):
                raise Killed
            return result

        return call

    def attempt(
        self,
        kind: ModuleType,
        config: dict[str, Any],
        key: str,
        point: Point | None = None,
        every: int = 2,
    ) -> Path:
        """Run one attempt; returns its output directory, which also has the metrics as
        `metrics.json` if it was not killed."""
        self.attempts += 1
        self.calls.clear()
        self.trace.clear()
        self.progress.clear()
        self.point = point
        out = self.root / f"out{self.attempts}"
        out.mkdir()
        job = Job(
            config=kind.Config.parse(config),
            inputs={name: self.inputs[name] for name in kind.KIND.inputs if name in self.inputs},
            out=out,
            work=Workspace(self.store, key, str(self.attempts)),
            checkpoint_steps=every,
            report=self.progress.append,
        )
        if point is None:
            metrics = kind.KIND.run(job)
            (out / "metrics.json").write_text(json.dumps(metrics, indent=1))
        else:
            with pytest.raises(Killed):
                kind.KIND.run(job)
        return out

    def checkpoints(self, key: str) -> list[Path]:
        directory = self.store.path(f"work/{key}/kept/checkpoints")
        return sorted(directory.iterdir()) if directory.exists() else []


@pytest.fixture
def bench(tmp_path: Path, inputs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(tmp_path, inputs, monkeypatch)


def content(out: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(out.iterdir())}


Kills = list[tuple[Point | None, int]]
"""Where the attempts at one stage end, one after the other, and how many steps each of them
takes."""

TWICE: Kills = [(("seal", 2, "before"), 4), (("step", 4, "before"), 3), (None, 2)]


def test_a_trainer_that_is_killed_ends_with_the_same_bytes(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    """With Muon and accumulation; other trainers and kills at every point are in
    tests/end_to_end."""
    caplog.set_level(logging.INFO, logger="lyceum")
    ends_with_the_same_bytes(bench, sft, SFT, TWICE)
    assert re.search(
        r"resuming at step 2 of 6 from checkpoint 00000002-\d, written \d+ s ago", caplog.text
    )


def ends_with_the_same_bytes(
    bench: Bench, kind: ModuleType, config: dict[str, Any], kills: Kills
) -> None:
    """Kill a stage as `kills` says, counting its steps, and compare what it leaves with what an
    undisturbed one does."""
    undisturbed = bench.attempt(kind, config, "undisturbed")
    for point, steps in kills:
        out = bench.attempt(kind, config, "killed", point)
        assert bench.calls["step"] == steps, point
    assert content(out) == content(undisturbed)
    assert [progress.done for progress in bench.progress if progress.unit == "steps"] == list(
        range(6 - kills[-1][1], 7)
    )


@pytest.mark.parametrize(("kind", "batches"), [(reasoning_eval, 3), (safety_eval, 3)])
def test_an_evaluation_answers_no_batch_twice(bench: Bench, kind: ModuleType, batches: int):
    undisturbed = bench.attempt(kind, EVAL, "undisturbed")
    assert bench.calls["put"] == batches
    bench.attempt(kind, EVAL, "killed", ("put", 2, "after"))
    out = bench.attempt(kind, EVAL, "killed")
    assert bench.calls["put"] == batches - 2
    again = bench.attempt(kind, EVAL, "killed")
    assert bench.calls["put"] == 0
    assert content(again) == content(out) == content(undisturbed)


def test_validation_and_checkpoints_take_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Validation before the first step and after 3 and 6, checkpoints after 2, 4 and 6: where both
    are due, validation comes first."""
    monkeypatch.setattr(training, "_validate", bench._watched("validate", training._validate))
    bench.attempt(sft, SFT, "key")
    assert [name for name in bench.trace if name != "seal"] == [
        *(
            "validate",
            "step",
            "step",
            "save",
            "step",
            "validate",
            "step",
            "save",
            "step",
            "step",
            "validate",
            "save",
            "model",
        )
    ]


def test_a_checkpoint_is_saved_only_when_the_steps_it_follows_are_finished(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
):
    """The loss of the newest step is read, and refused if it is not finite, before a checkpoint can
    hold what came of it."""
    poisoned = sft.batch
    monkeypatch.setattr(
        sft, "batch", lambda packed, chosen, scale: poisoned(packed, chosen, scale * float("nan"))
    )
    with pytest.raises(StageFailed, match="loss is nan at step 1"):
        bench.attempt(sft, SFT, "key", every=1)
    assert bench.checkpoints("key") == []
