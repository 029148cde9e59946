"""MLflow and Weights & Biases themselves, where they are installed, take a run."""

from pathlib import Path

import pytest

from flows.runs.results import RunResults
from tests.flows.trackers import test_trackers
from tests.flows.trackers.test_trackers import sent

run = test_trackers.run


def test_mlflow_itself_takes_a_run(
    run: RunResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///runs.db")
    assert sent(run) == []
    client = mlflow.MlflowClient("sqlite:///runs.db")
    [found] = client.search_runs([client.get_experiment_by_name("demo").experiment_id])
    assert (found.info.run_name, found.info.status) == ("demo-1", "FINISHED")
    assert [
        point.step for point in client.get_metric_history(found.info.run_id, "sft/loss")
    ] == list(range(1, 40))
    assert found.data.metrics["grpo_eval/metrics/exact_answer"] == 0.75
    assert found.data.params["sft.a b_.0"] == "1"


def test_wandb_itself_takes_a_run(
    run: RunResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_PROJECT", "science")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert sent(run) == []
    [file] = (tmp_path / "wandb").glob("offline-run-*-demo-1/run-demo-1.wandb")
    assert b"grpo_eval/metrics/exact_answer" in file.read_bytes()
