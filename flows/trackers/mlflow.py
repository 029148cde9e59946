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


def open_run(record: RunRecord, name: str) -> Session:
    # its own 7 wait four minutes for a server that is not there
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    import mlflow
    from mlflow.entities import Metric, Param

    named = os.environ.get("MLFLOW_EXPERIMENT_NAME")
    experiment = mlflow.set_experiment(named or record.recipe.name)
    client = mlflow.MlflowClient()
    begun = client.search_runs([experiment.experiment_id], f"tags.`lyceum.run` = '{name}'")
    if begun:
        run = begun[0].info.run_id
        client.update_run(run, status="RUNNING")
    else:
        tags = {"lyceum.run": name, "lyceum.store": record.store, "lyceum.target": record.target}
        told = {"start_time": int(1000 * record.started), "tags": tags, "run_name": name}
        run = client.create_run(experiment.experiment_id, **told).info.run_id
        found: dict[str, Any] = {"model": record.recipe.model, "seed": record.recipe.seed}
        for stage in record.recipe.stages:
            found |= flat(stage.name, stage.config)
        values = {_FORBIDDEN.sub("_", key)[:250]: str(value)[:500] for key, value in found.items()}
        parameters = [Param(*one) for one in values.items()]
        for first in range(0, len(parameters), MOST_PARAMETERS):
            client.log_batch(run, params=parameters[first : first + MOST_PARAMETERS])

    def send(points: Sequence[Point], when: float) -> None:
        """Send points of a time in seconds."""
        metrics = [
            Metric(_FORBIDDEN.sub("_", f"{stage}/{name}")[:250], value, int(1000 * when), step)
            for stage, step, values in points
            for name, value in values.items()
        ]
        for first in range(0, len(metrics), MOST_METRICS):
            client.log_batch(run, metrics=metrics[first : first + MOST_METRICS])

    def end(record: RunRecord, metrics: Sequence[Point] | None) -> None:
        ended = record.finished or record.started
        if metrics is not None:
            send(metrics, ended)
            client.set_tag(run, "lyceum.report", record.report or "")
        status = {"succeeded": "FINISHED", "failed": "FAILED"}.get(record.status, "KILLED")
        client.set_terminated(run, status, int(1000 * ended))

    return Session(lambda points: send(points, time.time()), end)


TRACKER = Tracker(variables=("MLFLOW_TRACKING_URI",), install="mlflow-skinny", open=open_run)
