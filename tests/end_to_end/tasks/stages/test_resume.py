"""Trainers of every kind that are killed at every point end with the bytes of an undisturbed
one."""

import json
import logging
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from infra.store.store import open_store
from infra.store.workspace import Workspace
from tasks.models.loading import base_model
from tasks.sampling.sampler import Sampler
from tasks.stages import dpo, grpo, sft, simpo
from tasks.training import loop as training
from tasks.training.checkpoints import Checkpoints, fingerprint
from tasks.training.trainer import make_trainer
from tests.tasks.stages.test_resume import (
    TWICE,
    Bench,
    Kills,
    bench,  # noqa: F401
    content,
    ends_with_the_same_bytes,
    inputs,  # noqa: F401
)
from tests.tasks.stages.tiny_stages import ADAMW, DPO, GRPO, LORA, PREFERENCES, SFT

pytestmark = pytest.mark.usefixtures("one_layer")


EVERYWHERE: Kills = [
    (("step", 2, "before"), 1),  # between what makes a batch and the update; nothing is saved yet
    (
        ("seal", 1, "before"),
        2,
    ),  # inside the first checkpoint: its files are written, the tree is not sealed
    (("save", 1, "after"), 2),  # right after a checkpoint
    (("step", 4, "before"), 3),  # goes on at 2, saves at 4, ends between 5 and 6
    (("model", 1, "before"), 2),  # goes on at 4, ends after the last step
    (None, 0),  # nothing is left to be trained
]


@pytest.mark.parametrize(
    ("kind", "config", "kills"),
    [
        pytest.param(sft, SFT, EVERYWHERE, id="sft-everywhere"),
        pytest.param(
            sft,
            {**SFT, "micro_batch_size": None, "lora": LORA, "optimizer": ADAMW},
            TWICE,
            id="sft-lora-adamw",
        ),
        pytest.param(simpo, {**PREFERENCES, "lora": LORA}, TWICE, id="simpo-lora-accumulation"),
        pytest.param(grpo, GRPO, EVERYWHERE, id="grpo-everywhere"),
    ],
)
def test_trainers_that_are_killed_end_with_the_same_bytes(
    bench: Bench, kind: ModuleType, config: dict[str, Any], kills: Kills
):
    ends_with_the_same_bytes(bench, kind, config, kills)


@pytest.mark.parametrize("lag", [0, 2])
def test_grpo_goes_on_in_the_middle_of_a_rollout_and_samples_nothing_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, lag: int
):
    """Two updates per rollout and a checkpoint every 3: the attempts go on in the middle of a
    rollout, with others sampled ahead."""
    sampled: list[int] = []
    generate = Sampler.generate
    monkeypatch.setattr(
        Sampler,
        "generate",
        lambda self, *args, **named: sampled.append(1) or generate(self, *args, **named),
    )
    config = {**GRPO, "num_iterations": 2, "rollout_lag": lag, "algorithm": "dapo", "beta": 0.01}
    undisturbed = bench.attempt(grpo, config, "undisturbed", every=3)
    assert len(sampled) == 3
    sampled.clear()
    bench.attempt(
        grpo, config, "killed", ("put", 1, "before"), every=3
    )  # rollout 0 is sampled and not kept
    bench.attempt(
        grpo, config, "killed", ("put", 3, "before"), every=3
    )  # the same of rollout 1, or 2 where they are sampled ahead
    bench.attempt(grpo, config, "killed", ("step", 4, "before"), every=3)
    bench.attempt(grpo, config, "killed", ("step", 2, "before"), every=3)
    out = bench.attempt(grpo, config, "killed", every=3)
    assert bench.calls["step"] == 3
    assert len(sampled) == 3 + 2
    assert content(out) == content(undisturbed)


def test_dpo_samples_no_batch_and_computes_its_reference_once(bench: Bench):
    """12 responses in batches of 8 and a reference: the attempts die with one and three entries in
    the journal."""
    undisturbed = bench.attempt(dpo, DPO, "undisturbed")
    assert bench.calls["put"] == 3
    bench.attempt(dpo, DPO, "killed", ("put", 2, "before"))
    bench.attempt(dpo, DPO, "killed", ("step", 1, "before"))
    assert bench.calls["put"] == 2
    out = bench.attempt(dpo, DPO, "killed")
    assert bench.calls["put"] == 0
    assert content(out) == content(undisturbed)


def test_damaged_and_deleted_checkpoints_cost_time_and_nothing_else(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    """Checkpoints at 2 and 4: go on from 2 where 4 is damaged, from the start where 2 is gone as
    well."""
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


def test_a_checkpoint_with_other_arrays_is_not_used(bench: Bench, caplog: pytest.LogCaptureFixture):
    other = {**SFT, "optimizer": ADAMW}
    undisturbed = content(bench.attempt(sft, other, "undisturbed"))
    bench.attempt(sft, SFT, "key", ("save", 1, "after"))
    assert content(bench.attempt(sft, other, "key")) == undisturbed
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
    before = training._state(trainer)
    checkpoints.save(
        1,
        {
            f"{part}/{name}": value
            for part, values in before.items()
            for name, value in values.items()
        },
        {},
    )
    with checkpoints.newest() as found:
        training._restore(trainer, found)
    after, whole = training._state(trainer), NamedSharding(trainer.mesh, PartitionSpec())
    for part in ("parameters", "optimizer"):
        assert {(array.committed, array.sharding) for array in after[part].values()} == {
            (True, whole)
        }
        assert not any(after[part][name] is before[part][name] for name in before[part])


def test_the_artifact_says_with_which_parameters_and_which_optimizer_it_ended(bench: Bench):
    """A checkpoint after the last step holds the arrays whose fingerprints are in state.json."""
    out = bench.attempt(sft, SFT, "key")
    last = Checkpoints(
        Workspace(bench.store, "key", "2"), seconds=1, log=logging.getLogger("lyceum")
    ).newest()
    assert last is not None
    arrays: dict[str, dict[str, np.ndarray]] = {"parameters": {}, "optimizer": {}}
    with last:
        for key in last.forms:
            part, name = key.split("/")
            arrays[part][name] = last.read(key)
    assert arrays["optimizer"]["step"] == 6
    state = json.loads((out / "state.json").read_text())
    assert state == {"step": 6, **{part: fingerprint(values) for part, values in arrays.items()}}
