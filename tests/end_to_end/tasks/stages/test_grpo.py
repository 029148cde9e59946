"""The GRPO stage: a reward that rises."""

from pathlib import Path

import pytest

from tasks.contract.job import read_rows
from tasks.models.loading import LoadedModel
from tasks.stages import grpo
from tests.tasks.stages.test_grpo import config, loaded, stage  # noqa: F401


def test_the_reward_rises(tmp_path: Path, loaded: LoadedModel):
    """From random weights, with partial credit for tags in place: a random response has a tag in
    place once in a while."""
    metrics = grpo.run(stage(tmp_path, loaded, config()))
    assert metrics["reward_last"] > 3 * metrics["reward_first"]
    assert metrics["reward_last"] > 0.1
    assert metrics["compiles"] == {"train_step": 1, "sampler": 1, "token_logps": 1}
    curve = list(read_rows(tmp_path / "out" / "curves.jsonl"))
    assert [row["step"] for row in curve] == [1, 10, 20, 30]
    named = "loss kl entropy pg_clipfrac reward reward/format zero_variance sampler_gap"
    assert set(named.split()) <= set(curve[0])
    assert curve[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert curve[-1]["kl"] > 0
    shown = {row["step"] for row in read_rows(tmp_path / "out" / "rollouts.jsonl")}
    assert shown == {1, 10, 20, 30}
