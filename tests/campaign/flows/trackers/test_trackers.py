"""MLflow, Trackio and Weights & Biases themselves, where they are installed, take a run."""

import pytest

from flows import trackers
from tasks.running.watch import Watch
from tests.flows.trackers import test_trackers
from tests.flows.trackers.test_trackers import sent, training

made, run = test_trackers.made, test_trackers.run


def test_mlflow_itself_takes_a_run(run, tmp_path, monkeypatch):
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


def test_wandb_itself_takes_a_run(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_PROJECT", "science")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert sent(run) == []
    [file] = (tmp_path / "wandb").glob("offline-run-*-demo-1/run-demo-1.wandb")
    assert b"grpo_eval/metrics/exact_answer" in file.read_bytes()


def test_trackio_itself_takes_a_run_while_it_goes_on(run, tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # it is read when the package is imported
    trackio = pytest.importorskip("trackio")
    monkeypatch.setenv("TRACKIO_PROJECT", "science")
    watch = trackers.followed(Watch())
    watch.record(run.record.model_copy(update={"status": "running"}))
    watch.progress("sft", training(2, loss=1.5))
    assert sent(run) == []
    logs = trackio.SQLiteStorage.get_logs("science", "demo-1")
    curve = sorted((row["step"], row["sft/loss"]) for row in logs if "sft/loss" in row)
    assert [step for step, _ in curve] == list(range(1, 40))
    assert sent(run) == [], "the same run again goes on"
    assert trackio.SQLiteStorage.get_runs("science") == ["demo-1"]
    [figure] = {
        row["grpo_eval/metrics/exact_answer"]
        for row in logs
        if "grpo_eval/metrics/exact_answer" in row
    }
    assert figure == 0.75
