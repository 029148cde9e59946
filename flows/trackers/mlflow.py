"""MLflow: one of its runs per run, in the experiment `MLFLOW_EXPERIMENT_NAME` or of the recipe's
name.

Metrics are `<stage>/<name>`: curves over their steps, and `<stage>/metrics/<name>`: the numbers of
each stage's metrics, at the stage's place in the recipe. Parameters are the stages' configs; tags
say where the run lies.
"""

import os
import re
import time
from collections.abc import Sequence
from typing import Any

from flows.recipe.explain import flat
from flows.scores.evaluations import Point
from flows.trackers import Session, Tracker
from schemas.reports import RunRecord

MOST_METRICS, MOST_PARAMETERS = 1000, 100
"""The most that one request may hold."""
_FORBIDDEN = re.compile(r"[^\w\-. :/]")
"""Characters that no name may have."""


class _Session:
    """One of its runs, which lasts until ours has ended."""

    def __init__(self, client: Any, run: str) -> None:
        self._client, self._run = client, run

    def log(self, points: Sequence[Point]) -> None:
        """Send points of curves."""
        self._send(points, int(1000 * time.time()))

    def end(self, record: RunRecord, metrics: Sequence[Point] | None) -> None:
        """Send the metrics."""
        ended = int(1000 * (record.finished or record.started))
        if metrics is not None:
            self._send(metrics, ended)
            self._client.set_tag(self._run, "lyceum.report", record.report or "")
        status = {"succeeded": "FINISHED", "failed": "FAILED"}.get(record.status, "KILLED")
        self._client.set_terminated(self._run, status, ended)

    def _send(self, points: Sequence[Point], when: int) -> None:
        """Send points of a time in milliseconds."""
        from mlflow.entities import Metric

        metrics = [
            Metric(_name(stage, name), value, when, step)
            for stage, step, values in points
            for name, value in values.items()
        ]
        for first in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[first : first + MOST_METRICS])


def open_run(record: RunRecord, name: str) -> Session:
    """Begin a run, or go on with the one of this name. Raises whatever mlflow raises."""
    # its own 7 wait four minutes for a server that is not there
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    import mlflow
    from mlflow.entities import Param

    experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", record.recipe.name))
    client = mlflow.MlflowClient()
    found = client.search_runs([experiment.experiment_id], f"tags.`lyceum.run` = '{name}'")
    if found:
        client.update_run(found[0].info.run_id, status="RUNNING")
        return _Session(client, found[0].info.run_id)
    tags = {"lyceum.run": name, "lyceum.store": record.store, "lyceum.target": record.target}
    sent: str = client.create_run(
        experiment.experiment_id, start_time=int(1000 * record.started), tags=tags, run_name=name
    ).info.run_id
    parameters = [Param(name, value) for name, value in _parameters(record).items()]
    for first in range(0, len(parameters), MOST_PARAMETERS):
        client.log_batch(sent, params=parameters[first : first + MOST_PARAMETERS])
    return _Session(client, sent)


def _parameters(record: RunRecord) -> dict[str, str]:
    recipe = record.recipe
    configs: dict[str, Any] = {}
    for stage in recipe.stages:
        configs |= flat(stage.name, stage.config)
    found = {"model": recipe.model, "seed": recipe.seed, **configs}
    return {_FORBIDDEN.sub("_", name)[:250]: str(value)[:500] for name, value in found.items()}


def _name(stage: str, name: str) -> str:
    return _FORBIDDEN.sub("_", f"{stage}/{name}")[:250]


TRACKER = Tracker(variables=("MLFLOW_TRACKING_URI",), install="mlflow-skinny", open=open_run)
