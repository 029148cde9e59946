"""Kill a worker at more points than tests/end_to_end/test_crash.py does, and the workers and flows
of a whole chain at random ones: whoever comes after them ends with the same bytes."""

import os
import random
from pathlib import Path
from typing import Any

import pytest

from infra.store.store import open_store
from tests.end_to_end import test_crash
from tests.end_to_end.test_crash import CHAIN, killed_and_resumed
from tests.end_to_end.test_crash_flow import crashing
from tests.fakes.gcs_emulator import Emulator
from tests.fakes.process import run_python

chain = test_crash.chain


POINTS = [
    # in the commit: the files are in place, the manifest is not
    ("rebalance", "os:link", 1, "before"),
    (
        "sft",
        "infra.store.local_objects:Files.create",
        4,
        "before",
    ),  # a checkpoint is kept and not sealed
    ("grpo", "tasks.sampling.sampler:Sampler.generate", 2, "after"),  # between rollout and update
    # samples that are drawn and not kept
    ("simpo", "tasks.contract.journal:Journal.put", 2, "before"),
    # between the last step and the commit
    ("sft", "tasks.training.loop:save_trained", 1, "before"),
    # a checkpoint is written and not kept
    ("sft", "infra.store.local_objects:Files.put_tree", 3, "before"),
    # everything is written, nothing is committed
    ("distill", "infra.store.store:Store.commit", 1, "before"),
    ("rebalance", "os:link", 1, "after"),  # the manifest is there, and nobody heard of it
    *(("sft", "tasks.training.trainer:Trainer.step", step, "after") for step in range(1, 9)),
    ("sft", "tasks.training.checkpoints:Checkpoints.save", 3, "after"),
    *(("simpo", "tasks.training.trainer:Trainer.step", step, "after") for step in range(1, 5)),
    *(("grpo", "tasks.training.trainer:Trainer.step", step, "before") for step in range(1, 5)),
    ("reasoning_eval", "tasks.contract.journal:Journal.put", 1, "after"),
    # with some of the answers under way
    ("reasoning_eval", "tasks.sampling.slots:SlotSampler._advance", 2, "after"),
    ("safety_eval", "infra.store.store:Store.commit", 1, "after"),
]


@pytest.mark.parametrize("point", POINTS, ids=lambda point: "-".join(map(str, point)))
def test_a_killed_worker_s_successor_ends_with_the_same_bytes(chain, point):
    killed_and_resumed(chain, point)


SETTINGS = {
    "LYCEUM_CHECKPOINT_STEPS": "2",
    "LYCEUM_CHECKPOINT_SECONDS": "3600",
    "LYCEUM_LEASE_SECONDS": "5",
}
KINDS = ("distill", "rebalance", "sft", "simpo", "grpo", "reasoning_eval", "safety_eval")
FUNCTIONS = sorted(
    {
        *("os:fsync", "os:link", "os:replace", "os:rename"),
        *("infra.store.local_objects:Files.write", "infra.store.store:Store.save_tree"),
        *(function for _, function, _, _ in POINTS),
    }
)
DRAWN = 20
"""Points of one chain; some stages make fewer calls."""


def made(store: str, **variables: str) -> tuple[int, dict[str, Any]]:
    """Give the command until it exits 0: how often that was, and what is in the store then."""
    command = ("-m", "flows.cli.main", "run", CHAIN, "--store", store)
    environment = os.environ | SETTINGS | variables
    ended = [run_python(*command, env=environment)]
    while ended[-1].returncode and len(ended) < DRAWN + 3:
        ended.append(run_python(*command, env=environment))
    assert ended[-1].returncode == 0, ended[-1].stderr[-2000:]
    opened = open_store(store)
    found = {one.kind: one for one in opened.artifacts()}
    assert [opened.verify(one) for one in found.values()] == [[]] * len(found)
    return len(ended), {kind: (one.key, one.files, one.metrics) for kind, one in found.items()}


@pytest.fixture(scope="module")
def undisturbed(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return made(str(tmp_path_factory.mktemp("undisturbed") / "store"))[1]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("place", ["directory", "bucket", "bucket at its worst"])
def test_a_chain_that_is_killed_at_random_ends_with_the_same_bytes(
    place: str,
    seed: int,
    undisturbed: dict[str, Any],
    gcs: Emulator,
    gcs_bucket: str,
    tmp_path: Path,
) -> None:
    dice, spent = random.Random(f"{place} {seed}"), tmp_path / "spent"
    spent.mkdir()
    if place == "bucket at its worst":
        gcs.faults.add_all(seed)
    drawn = [
        (
            dice.choice(KINDS),
            dice.choice(FUNCTIONS),
            int(40 ** dice.random()),
            dice.choice(("before", "after")),
            dice.choice(("self", "self", "parent")),
        )
        for _ in range(DRAWN)
    ]
    store = str(tmp_path / "store") if place == "directory" else f"gs://{gcs_bucket}/chain"
    runs, found = made(store, **crashing(*drawn, LYCEUM_CRASH_SPENT=str(spent)))
    assert found == undisturbed
    assert runs > 1 or not [one for one in spent.iterdir() if one.name.endswith("parent")]
