"""The GRPO stage: a reward that rises."""

from pathlib import Path

import pytest

from tasks.contract.job import read_rows, write_jsonl
from tasks.models.loading import LoadedModel, save_model
from tasks.stages import grpo
from tests.tasks.jobs import job_at
from tests.tasks.stages.test_grpo import EXAMPLES, config, loaded  # noqa: F401


def test_the_reward_rises(tmp_path: Path, loaded: LoadedModel):
    """From random weights, with partial credit for tags in place: a random response has a tag in
    place once in a while."""
    inputs = {name: tmp_path / name for name in ("policy", "prompts")}
    for directory in inputs.values():
        directory.mkdir()
    save_model(loaded, inputs["policy"])
    write_jsonl(inputs["prompts"] / "prompts.jsonl", [row.as_prompt() for row in EXAMPLES])
    write_jsonl(inputs["prompts"] / "train.jsonl", EXAMPLES)
    job = job_at(tmp_path, config(seed=3), inputs)
    metrics = grpo.run(job)
    assert metrics["reward_last"] > 3 * metrics["reward_first"]
    assert metrics["reward_last"] > 0.1
    curve = list(read_rows(job.out / "curves.jsonl"))
    assert [row["step"] for row in curve] == [1, 10, 20, 30]
    named = "loss kl entropy pg_clipfrac reward reward/format zero_variance sampler_gap"
    assert set(named.split()) <= set(curve[0])
    assert curve[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert curve[-1]["kl"] > 0
    shown = {row["step"] for row in read_rows(job.out / "rollouts.jsonl")}
    assert shown == {1, 10, 20, 30}
