"""MLflow: one of its runs per run, in the experiment `MLFLOW_EXPERIMENT_NAME` or of the recipe's
name.

Metrics are `<stage>/<name>`: curves over their steps, and `<stage>/metrics/<name>`: the numbers of
each stage's metrics, at the stage's place in the recipe. Parameters are the stages' configs; tags
say where the run lies.
"""

import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flows.recipe.explain import flat
from flows.runs.results import RunResults
from flows.scores.evaluations import figures
from flows.trackers import Point, Session, Tracker
from schemas.reports import RunRecord

MOST_METRICS, MOST_PARAMETERS = 1000, 100
"""The most that one request may hold."""
_FORBIDDEN = re.compile(r"[^\w\-. :/]")
"""Characters that no name may have."""


class _Session:
    """One of its runs, which lasts until ours has ended."""

    def __init__(self, client: Any, run: str, places: Mapping[str, int]) -> None:
        self._client, self._run, self._places = client, run, places

    def log(self, points: Sequence[Point]) -> None:
        """Send points of curves."""
        now = int(1000 * time.time())
        self._metrics(
            (_name(point.stage, name), value, now, point.step)
            for point in points
            for name, value in point.values.items()
        )

    def end(self, record: RunRecord, run: RunResults | None) -> None:
        """Send the metrics, each at its stage's place in the recipe."""
        ended = int(1000 * (record.finished or record.started))
        if run is not None:
            self._metrics(
                (_name(stage.name, f"metrics/{name}"), value, ended, self._places[stage.name])
                for stage in run.stages.values()
                for name, value in figures(stage).items()
            )
            self._client.set_tag(self._run, "lyceum.report", record.report or "")
        status = {"succeeded": "FINISHED", "failed": "FAILED"}.get(record.status, "KILLED")
        self._client.set_terminated(self._run, status, ended)

    def _metrics(self, listed: Iterable[tuple[str, float, int, int]]) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(*one) for one in listed]
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
    places = {stage.name: place for place, stage in enumerate(record.recipe.stages)}
    found = client.search_runs([experiment.experiment_id], f"tags.`lyceum.run` = '{name}'")
    if found:
        client.update_run(found[0].info.run_id, status="RUNNING")
        return _Session(client, found[0].info.run_id, places)
    tags = {"lyceum.run": name, "lyceum.store": record.store, "lyceum.target": record.target}
    sent: str = client.create_run(
        experiment.experiment_id, start_time=int(1000 * record.started), tags=tags, run_name=name
    ).info.run_id
    parameters = [Param(name, value) for name, value in _parameters(record).items()]
    for first in range(0, len(parameters), MOST_PARAMETERS):
        client.log_batch(sent, params=parameters[first : first + MOST_PARAMETERS])
    return _Session(client, sent, places)


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
