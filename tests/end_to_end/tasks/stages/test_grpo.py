"""The GRPO stage: a reward that rises."""

from pathlib import Path

import pytest

from infra.store.store import open_store
from infra.store.workspace import Workspace
from tasks.contract.job import Job, read_rows, write_jsonl
from tasks.models.loading import LoadedModel, save_model
from tasks.stages import grpo
from tests.tasks.stages.test_grpo import EXAMPLES, config, loaded  # noqa: F401


def job(tmp_path: Path, loaded: LoadedModel) -> Job:
    for name in ("policy", "prompts", "out"):
        (tmp_path / name).mkdir()
    save_model(loaded, tmp_path / "policy")
    write_jsonl(tmp_path / "prompts" / "prompts.jsonl", [row.as_prompt() for row in EXAMPLES])
    write_jsonl(tmp_path / "prompts" / "train.jsonl", EXAMPLES)
    return Job(
        config(),
        {"policy": tmp_path / "policy", "prompts": tmp_path / "prompts"},
        tmp_path / "out",
        Workspace(open_store(tmp_path / "store"), "key", "1"),
    )


def test_the_reward_rises(tmp_path: Path, loaded: LoadedModel):
    """From random weights, with partial credit for tags in place: a random response has a tag in
    place once in a while."""
    metrics = grpo.run(job(tmp_path, loaded))
    assert metrics["reward_last"] > 3 * metrics["reward_first"]
    assert metrics["reward_last"] > 0.1
    curve = list(read_rows(tmp_path / "out" / "curves.jsonl"))
    assert [row["step"] for row in curve] == [1, 10, 20, 30]
    named = "loss kl entropy pg_clipfrac reward reward/format zero_variance sampler_gap"
    assert set(named.split()) <= set(curve[0])
    assert curve[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert curve[-1]["kl"] > 0
    shown = {row["step"] for row in read_rows(tmp_path / "out" / "rollouts.jsonl")}
    assert shown == {1, 10, 20, 30}
