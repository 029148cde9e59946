"""Kill a worker at more points than tests/end_to_end/test_crash.py does: its successor ends with
the same bytes."""

import pytest

from tests.end_to_end import test_crash
from tests.end_to_end.test_crash import killed_and_resumed

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
