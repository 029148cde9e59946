"""MLflow, Weights & Biases and Trackio, as far as they are used."""

import sys
import threading
import types
from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Mlflow:
    """mlflow, as far as it is used; a request that is too large is refused as the server does."""

    experiments: list[str] = field(default_factory=list)
    created: dict[str, Any] = field(default_factory=dict)
    metrics: dict[tuple[str, int], float] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    ended: tuple[str, int] | None = None

    def search_runs(self, experiments: list[str], wanted: str) -> list[Any]:
        known = self.created and wanted == f"tags.`lyceum.run` = '{self.created['run_name']}'"
        return [types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))] if known else []

    def update_run(self, run_id: str, status: str) -> None:
        self.ended = None

    def set_tag(self, run_id: str, name: str, value: str) -> None:
        self.created["tags"][name] = value

    def set_experiment(self, name: str) -> Any:
        self.experiments.append(name)
        return types.SimpleNamespace(experiment_id="5")

    def create_run(self, experiment_id: str, **given: Any) -> Any:
        print("View run at http://...")  # noqa: T201  as it does
        self.created = {"experiment_id": experiment_id, **given}
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))

    def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        assert run_id == "r1"
        assert len(metrics) <= 1000
        assert len(params) <= 100
        for name, value, _, step in metrics:
            assert (name, step) not in self.metrics
            self.metrics[name, step] = value
        self.parameters |= dict(params)

    def set_terminated(self, run_id: str, status: str, end_time: int) -> None:
        self.ended = (status, end_time)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module, entities = types.ModuleType("mlflow"), types.ModuleType("mlflow.entities")
        module.set_experiment = self.set_experiment  # type: ignore[attr-defined]
        module.MlflowClient = lambda: self  # type: ignore[attr-defined]
        entities.Metric = entities.Param = lambda *values: values  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "mlflow", module)
        monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")


@dataclass
class Wandb:
    """A wandb run, as far as it is used."""

    given: dict[str, Any] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)
    rows: list[dict[str, float]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    code: int | None = None

    def define_metric(self, name: str, step_metric: str = "", hidden: bool = False) -> None:
        self.steps[name] = step_metric

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)

    def finish(self, exit_code: int) -> None:
        self.code = exit_code

    def install(self, monkeypatch: pytest.MonkeyPatch, variable: str = "WANDB_PROJECT") -> None:
        module = types.ModuleType("wandb")

        def init(**given: Any) -> Wandb:
            self.given = given
            return self

        module.init, module.Settings = init, dict  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "wandb", module)
        monkeypatch.setenv(variable, "science")


@dataclass
class Trackio:
    """trackio, as far as it is used: projects of runs by name, which live on when they finish."""

    runs: dict[str, list[tuple[int, dict[str, float]]]] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)
    finished: int = 0
    away: bool = False
    logged: threading.Event = field(default_factory=threading.Event)

    def init(self, **given: Any) -> Any:
        assert given["resume"] == "allow"
        self.given = given
        rows = self.runs.setdefault(given["name"], [])

        def log(values: dict[str, float], step: int) -> None:
            if self.away:
                raise ConnectionError("no route to host")
            rows.append((step, values))
            self.logged.set()

        def finish() -> None:
            self.finished += 1

        return types.SimpleNamespace(log=log, finish=finish)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = types.ModuleType("trackio")
        module.init = self.init  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "trackio", module)
        monkeypatch.setenv("TRACKIO_PROJECT", "science")

    def curve(self, name: str, run: str = "demo-1") -> list[tuple[int, float]]:
        return [(step, row[name]) for step, row in self.runs[run] if name in row]
