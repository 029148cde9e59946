"""The laws of stage kinds (tests/tasks/stages/bench.py) for those that tests/tasks leaves out, and
what becomes of checkpoints that are damaged, deleted, or of other arrays."""

import json
import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from infra.store.store import open_store
from infra.store.workspace import Workspace
from tasks.models.loading import base_model
from tasks.sampling.sampler import Sampler
from tasks.stages import grpo, sft
from tasks.training import loop as training
from tasks.training.checkpoints import Checkpoints, fingerprint
from tasks.training.trainer import make_trainer
from tests.tasks.stages.bench import ADAMW, CASES, GRPO, SFT, Bench, content, keeps_the_laws
from tests.tasks.stages.test_laws import QUICK, bench, inputs  # noqa: F401

pytestmark = pytest.mark.usefixtures("one_layer")


@pytest.mark.parametrize("name", [name for name in CASES if name not in QUICK])
def test_the_other_kinds_keep_the_laws(name: str, bench: Bench) -> None:
    keeps_the_laws(name, bench)


@pytest.mark.parametrize("lag", [0, 2])
def test_grpo_goes_on_in_the_middle_of_a_rollout_and_samples_nothing_twice(bench, meanwhile, lag):
    """Two updates per rollout and a checkpoint every 3: the attempts go on in the middle of a
    rollout, with others sampled ahead."""
    sampled: list[int] = []
    meanwhile(Sampler, "generate", lambda *_: sampled.append(1))
    config = {**GRPO, "num_iterations": 2, "rollout_lag": lag, "algorithm": "dapo", "beta": 0.01}
    undisturbed = bench.attempt(grpo, config, "undisturbed", every=3)
    assert len(sampled) == 3
    sampled.clear()
    # rollout 0 is sampled and not kept; the same of rollout 1, or 2 where they are sampled ahead
    for name, number in (("put", 1), ("put", 3), ("step", 4), ("step", 2)):
        bench.attempt(grpo, config, "killed", (name, number, "before"), every=3)
    out = bench.attempt(grpo, config, "killed", every=3)
    assert bench.calls["step"] == 3
    assert len(sampled) == 3 + 2
    assert content(out) == content(undisturbed)


BASE = {"policy": ""}


def test_epochs_are_the_steps_that_they_come_to(bench: Bench) -> None:
    """Every byte of the artifact; rows are packed, and 6 steps of 4 are some passes over them."""
    steps = bench.attempt(sft, SFT, "steps", inputs=BASE)
    rows = json.loads((steps / "metrics.json").read_text())["rows"]
    passes = {**SFT, "steps": 0, "epochs": 6 * 4 / rows}
    assert content(bench.attempt(sft, passes, "epochs", inputs=BASE)) == content(steps)


def test_damaged_and_deleted_checkpoints_cost_time_and_nothing_else(bench, caplog):
    """Checkpoints at 2 and 4: go on from 2 where 4 is damaged, from the start where 2 is gone as
    well."""
    undisturbed = bench.attempt(sft, SFT, "undisturbed", inputs=BASE)
    bench.attempt(sft, SFT, "killed", ("step", 6, "before"), inputs=BASE)
    assert [path.name for path in bench.checkpoints("killed")] == ["00000002-2", "00000004-2"]

    def run(key: str) -> int:
        shutil.copytree(bench.store.path("work/killed/kept"), bench.store.path(f"work/{key}/kept"))
        arrays = bench.checkpoints(key)[-1] / "data" / "arrays.safetensors"
        arrays.write_bytes(arrays.read_bytes()[:-1] + b"\x77")
        assert content(bench.attempt(sft, SFT, key, inputs=BASE)) == content(undisturbed)
        return bench.calls["step"]

    assert run("damaged") == 4
    assert "checkpoint 00000004-2 is not used: it is damaged" in caplog.text
    shutil.rmtree(bench.checkpoints("killed")[0])
    assert run("damaged-and-deleted") == 6


def test_a_checkpoint_with_other_arrays_is_not_used(bench: Bench, caplog: pytest.LogCaptureFixture):
    other = {**SFT, "optimizer": ADAMW}
    undisturbed = content(bench.attempt(sft, other, "undisturbed", inputs=BASE))
    bench.attempt(sft, SFT, "key", ("save", 1, "after"), inputs=BASE)
    theirs = "work/key/kept/best/00000004-1/seal.json", "work/key/kept/journal/rollouts/1.sampled"
    for name in theirs:
        bench.store.write_bytes(name, b"of the other weights")
    assert content(bench.attempt(sft, other, "key", inputs=BASE)) == undisturbed
    assert [bench.store.read_bytes(name) for name in theirs] == [None, None]
    assert re.search(
        r"starting over: .* wrote checkpoint 00000002-\d: \d+ arrays differ: optimizer/",
        caplog.text,
    )


def test_arrays_lie_where_they_lay_before_a_restart(tmp_path: Path):
    """The step compiles a second time, and `fit` fails the stage, when some of its arrays are
    committed to other devices than before."""
    checkpoints = Checkpoints(
        Workspace(open_store(tmp_path), "key", "1"), seconds=1, log=logging.getLogger("lyceum")
    )
    trainer = make_trainer(base_model("gemma3-tiny", 0), sft.Config.parse(SFT), 0)
    before = training.trained_arrays(trainer)
    checkpoints.save(1, before, {})
    with checkpoints.newest() as found:
        training.put_back(trainer, found, counters=True)
    after, whole = training.trained_arrays(trainer), NamedSharding(trainer.mesh, PartitionSpec())
    assert {name.split("/")[0] for name in after} == {"parameters", "optimizer"}
    assert {(array.committed, array.sharding) for array in after.values()} == {(True, whole)}
    assert not any(after[name] is before[name] for name in before)


def test_the_artifact_says_with_which_parameters_and_which_optimizer_it_ended(bench: Bench):
    """A checkpoint after the last step holds the arrays whose fingerprints are in state.json."""
    out = bench.attempt(sft, SFT, "key", inputs=BASE)
    last = Checkpoints(
        Workspace(bench.store, "key", "2"), seconds=1, log=logging.getLogger("lyceum")
    ).newest()
    arrays: dict[str, dict[str, np.ndarray]] = {"parameters": {}, "optimizer": {}}
    with last:
        for key in last.forms:
            part, name = key.split("/")
            arrays[part][name] = last.read(key)
    assert arrays["optimizer"]["step"] == 6
    state = json.loads((out / "state.json").read_text())
    assert state == {"step": 6, **{part: fingerprint(values) for part, values in arrays.items()}}
