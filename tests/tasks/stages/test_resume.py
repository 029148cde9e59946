"""A stage that is interrupted again and again ends with the bytes of an undisturbed one, and repeats no more than its last interval."""

import functools
import json
import logging
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.base import StageFailed
from schemas.job import Progress
from tasks.contract.job import Job, write_jsonl
from tasks.contract.journal import Journal
from tasks.models.loading import base_model, save_model
from tasks.sampling.sampler import Sampler
from tasks.stages import dpo, grpo, reasoning_eval, safety_eval, sft, simpo
from tasks.training import loop as training
from tasks.training.checkpoints import Checkpoints, fingerprint
from tasks.training.trainer import Trainer, make_trainer
from tests.tasks.stages.tiny_stages import ADAMW, DPO, GRPO, LORA, PREFERENCES, SFT, example

pytestmark = pytest.mark.usefixtures("one_layer")


class Killed(BaseException):
    """Ends an attempt where a test says so."""


Point = tuple[str, int, str]
"""Where an attempt ends: a function of WATCHED, its call in this attempt (from 1), and whether before or after it."""

WATCHED: dict[str, tuple[Any, str]] = {
    "step": (Trainer, "step"),
    "save": (Checkpoints, "save"),
    "seal": (Workspace, "save_tree"),
    "put": (Journal, "put"),
    "model": (training, "save_model"),
}

EVAL = {"model": "gemma3-tiny", "batch_size": 4, "prompt_length": 80, "response_length": 8, "min_items": 1}


@pytest.fixture(scope="module")
def inputs(one_layer: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Input name -> directory, for every kind."""
    data, policy = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("policy")
    examples = [example(number) for number in range(20)]
    write_jsonl(data / "train.jsonl", examples)
    write_jsonl(data / "prompts.jsonl", [row.as_prompt() for row in examples])
    write_jsonl(data / "pairs.jsonl", [])
    write_jsonl(data / "validation.jsonl", examples[:7])
    write_jsonl(data / "heldout.jsonl", [*examples[:11], *(example(30 + number, "answerable") for number in range(9))])
    save_model(base_model("gemma3-tiny", 0), policy)
    return {"examples": data, "prompts": data, "policy": policy}


class Bench:
    """Runs attempts of one stage in this process. Counts what they call, and ends them where it is told to."""

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

    def attempt(self, kind: ModuleType, config: dict[str, Any], key: str, point: Point | None = None, every: int = 2) -> Path:
        """Run one attempt; returns its output directory, which also has the metrics as `metrics.json` if it was not killed."""
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
"""Where the attempts at one stage end, one after the other, and how many steps each of them takes."""

EVERYWHERE: Kills = [
    (("step", 2, "before"), 1),  # between what makes a batch and the update; nothing is saved yet
    (("seal", 1, "before"), 2),  # inside the first checkpoint: its files are written, the tree is not sealed
    (("save", 1, "after"), 2),  # right after a checkpoint
    (("step", 4, "before"), 3),  # goes on at 2, saves at 4, ends between 5 and 6
    (("model", 1, "before"), 2),  # goes on at 4, ends after the last step
    (None, 0),  # nothing is left to be trained
]
TWICE: Kills = [(("seal", 2, "before"), 4), (("step", 4, "before"), 3), (None, 2)]


@pytest.mark.parametrize(
    ("kind", "config", "kills"),
    [
        pytest.param(sft, SFT, TWICE, id="sft-muon-accumulation"),
        pytest.param(sft, SFT, EVERYWHERE, id="sft-everywhere", marks=pytest.mark.slow),
        pytest.param(
            sft, {**SFT, "micro_batch_size": None, "lora": LORA, "optimizer": ADAMW}, TWICE, id="sft-lora-adamw", marks=pytest.mark.slow
        ),
        pytest.param(simpo, {**PREFERENCES, "lora": LORA}, TWICE, id="simpo-lora-accumulation", marks=pytest.mark.slow),
        pytest.param(grpo, GRPO, EVERYWHERE, id="grpo-everywhere", marks=pytest.mark.slow),
    ],
)
def test_a_trainer_that_is_killed_ends_with_the_same_bytes(
    bench: Bench, kind: ModuleType, config: dict[str, Any], kills: Kills, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, logger="lyceum")
    undisturbed = bench.attempt(kind, config, "undisturbed")
    for point, steps in kills:
        out = bench.attempt(kind, config, "killed", point)
        assert bench.calls["step"] == steps, point
    assert content(out) == content(undisturbed)
    assert re.search(r"resuming at step 2 of 6 from checkpoint 00000002-\d, written \d+ s ago", caplog.text)
    assert [progress.done for progress in bench.progress if progress.unit == "steps"] == list(range(6 - kills[-1][1], 7))


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 2])
def test_grpo_goes_on_in_the_middle_of_a_rollout_and_samples_nothing_twice(bench: Bench, monkeypatch: pytest.MonkeyPatch, lag: int):
    """Two updates per rollout and a checkpoint every 3: the attempts go on in the middle of a rollout, with others sampled ahead."""
    sampled: list[int] = []
    generate = Sampler.generate
    monkeypatch.setattr(Sampler, "generate", lambda self, *args, **named: sampled.append(1) or generate(self, *args, **named))
    config = {**GRPO, "num_iterations": 2, "rollout_lag": lag, "algorithm": "dapo", "beta": 0.01}
    undisturbed = bench.attempt(grpo, config, "undisturbed", every=3)
    assert len(sampled) == 3
    sampled.clear()
    bench.attempt(grpo, config, "killed", ("put", 1, "before"), every=3)  # rollout 0 is sampled and not kept
    bench.attempt(grpo, config, "killed", ("put", 3, "before"), every=3)  # the same of rollout 1, or 2 where they are sampled ahead
    bench.attempt(grpo, config, "killed", ("step", 4, "before"), every=3)
    bench.attempt(grpo, config, "killed", ("step", 2, "before"), every=3)
    out = bench.attempt(grpo, config, "killed", every=3)
    assert bench.calls["step"] == 3
    assert len(sampled) == 3 + 2
    assert content(out) == content(undisturbed)


@pytest.mark.slow
def test_dpo_samples_no_batch_and_computes_its_reference_once(bench: Bench):
    """12 responses in batches of 8 and a reference: the attempts die with one and three entries in the journal."""
    undisturbed = bench.attempt(dpo, DPO, "undisturbed")
    assert bench.calls["put"] == 3
    bench.attempt(dpo, DPO, "killed", ("put", 2, "before"))
    bench.attempt(dpo, DPO, "killed", ("step", 1, "before"))
    assert bench.calls["put"] == 2
    out = bench.attempt(dpo, DPO, "killed")
    assert bench.calls["put"] == 0
    assert content(out) == content(undisturbed)


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


@pytest.mark.slow
def test_damaged_and_deleted_checkpoints_cost_time_and_nothing_else(bench: Bench, caplog: pytest.LogCaptureFixture):
    """Checkpoints at 2 and 4: go on from 2 where 4 is damaged, from the start where 2 is gone as well."""
    undisturbed = bench.attempt(sft, SFT, "undisturbed")
    bench.attempt(sft, SFT, "killed", ("step", 6, "before"))
    assert [path.name for path in bench.checkpoints("killed")] == ["00000002-2", "00000004-2"]

    def run(key: str) -> int:
        shutil.copytree(bench.store.path("work/killed/kept"), bench.store.path(f"work/{key}/kept"))
        arrays = bench.checkpoints(key)[-1] / "data" / "arrays.safetensors"
        arrays.write_bytes(arrays.read_bytes()[:-1] + b"\x77")
        assert content(bench.attempt(sft, SFT, key)) == content(undisturbed)
        return bench.calls["step"]

    assert run("damaged") == 4
    assert "checkpoint 00000004-2 is not used: it is damaged" in caplog.text
    shutil.rmtree(bench.checkpoints("killed")[0])
    assert run("damaged-and-deleted") == 6


@pytest.mark.slow
def test_a_checkpoint_with_other_arrays_is_not_used(bench: Bench, caplog: pytest.LogCaptureFixture):
    other = {**SFT, "optimizer": ADAMW}
    undisturbed = content(bench.attempt(sft, other, "undisturbed"))
    bench.attempt(sft, SFT, "key", ("save", 1, "after"))
    assert content(bench.attempt(sft, other, "key")) == undisturbed
    assert re.search(r"starting over: .* wrote checkpoint 00000002-\d: \d+ arrays differ: optimizer/", caplog.text)


@pytest.mark.slow
def test_arrays_lie_where_they_lay_before_a_restart(tmp_path: Path):
    """The step compiles a second time, and `fit` fails the stage, when some of its arrays are committed to other devices than before."""
    checkpoints = Checkpoints(Workspace(open_store(tmp_path), "key", "1"), seconds=1, log=logging.getLogger("lyceum"))
    trainer = make_trainer(base_model("gemma3-tiny", 0), sft.Config.parse(SFT), 0)
    before = training._state(trainer)
    checkpoints.save(1, {f"{part}/{name}": value for part, values in before.items() for name, value in values.items()}, {})
    with checkpoints.newest() as found:
        training._restore(trainer, found)
    after, whole = training._state(trainer), NamedSharding(trainer.mesh, PartitionSpec())
    for part in ("parameters", "optimizer"):
        assert {(array.committed, array.sharding) for array in after[part].values()} == {(True, whole)}
        assert not any(after[part][name] is before[part][name] for name in before[part])


def test_validation_and_checkpoints_take_turns(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """Validation before the first step and after 3 and 6, checkpoints after 2, 4 and 6: where both are due, validation comes first."""
    monkeypatch.setattr(training, "_validate", bench._watched("validate", training._validate))
    bench.attempt(sft, SFT, "key")
    assert [name for name in bench.trace if name != "seal"] == [
        *("validate", "step", "step", "save", "step", "validate", "step", "save", "step", "step", "validate", "save", "model")
    ]


def test_a_checkpoint_is_saved_only_when_the_steps_it_follows_are_finished(bench: Bench, monkeypatch: pytest.MonkeyPatch):
    """The loss of the newest step is read, and refused if it is not finite, before a checkpoint can hold what came of it."""
    poisoned = sft.batch
    monkeypatch.setattr(sft, "batch", lambda packed, chosen, scale: poisoned(packed, chosen, scale * float("nan")))
    with pytest.raises(StageFailed, match="loss is nan at step 1"):
        bench.attempt(sft, SFT, "key", every=1)
    assert bench.checkpoints("key") == []


@pytest.mark.slow
def test_the_artifact_says_with_which_parameters_and_which_optimizer_it_ended(bench: Bench):
    """A checkpoint after the last step holds the arrays whose fingerprints are in state.json."""
    out = bench.attempt(sft, SFT, "key")
    last = Checkpoints(Workspace(bench.store, "key", "2"), seconds=1, log=logging.getLogger("lyceum")).newest()
    assert last is not None
    arrays: dict[str, dict[str, np.ndarray]] = {"parameters": {}, "optimizer": {}}
    with last:
        for key in last.forms:
            part, name = key.split("/")
            arrays[part][name] = last.read(key)
    assert arrays["optimizer"]["step"] == 6
    state = json.loads((out / "state.json").read_text())
    assert state == {"step": 6, **{part: fingerprint(values) for part, values in arrays.items()}}
