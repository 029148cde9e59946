"""MLflow: one of its runs per run, in the experiment `MLFLOW_EXPERIMENT_NAME` or of the recipe's
name.

Metrics are `<stage>/<name>`: curves over their steps, and `<stage>/metrics/<name>`: the numbers of
each stage's metrics, at the stage's place in the recipe. Parameters are the stages' configs; tags
say where the run lies.
"""

import os
import re
from typing import Any

from flows.recipe.explain import flat
from flows.runs.results import RunResults
from flows.scores.evaluations import curve, figures
from flows.trackers import Tracker

MOST_METRICS, MOST_PARAMETERS = 1000, 100
"""What one request may hold."""
_FORBIDDEN = re.compile(r"[^\w\-. :/]")
"""Characters that no name may have."""


def send(run: RunResults) -> None:
    """Send a run. Raises whatever mlflow raises."""
    # its own 7 wait four minutes for a server that is not there
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    import mlflow
    from mlflow.entities import Metric, Param

    record = run.record
    experiment = mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", record.recipe.name))
    client = mlflow.MlflowClient()
    began, ended = (
        int(1000 * seconds) for seconds in (record.started, record.finished or record.started)
    )
    tags = {
        "lyceum.run": record.run_id,
        "lyceum.store": record.store,
        "lyceum.target": record.target,
        "lyceum.report": record.report or "",
    }
    sent: str = client.create_run(
        experiment.experiment_id, start_time=began, tags=tags, run_name=record.run_id
    ).info.run_id
    metrics = [Metric(name, value, ended, step) for name, value, step in _metrics(run)]
    for first in range(0, len(metrics), MOST_METRICS):
        client.log_batch(sent, metrics=metrics[first : first + MOST_METRICS])
    parameters = [Param(name, value) for name, value in _parameters(run).items()]
    for first in range(0, len(parameters), MOST_PARAMETERS):
        client.log_batch(sent, params=parameters[first : first + MOST_PARAMETERS])
    client.set_terminated(sent, "FINISHED" if record.status == "succeeded" else "FAILED", ended)


def _metrics(run: RunResults) -> list[tuple[str, float, int]]:
    found = []
    for place, stage in enumerate(run.stages.values()):
        found += [
            (_name(stage.name, name), value, step)
            for step, values in curve(stage)
            for name, value in values.items()
        ]
        found += [
            (_name(stage.name, f"metrics/{name}"), value, place)
            for name, value in figures(stage).items()
        ]
    return found


def _parameters(run: RunResults) -> dict[str, str]:
    recipe = run.record.recipe
    configs: dict[str, Any] = {}
    for stage in recipe.stages:
        configs |= flat(stage.name, stage.config)
    found = {"model": recipe.model, "seed": recipe.seed, **configs}
    return {_FORBIDDEN.sub("_", name)[:250]: str(value)[:500] for name, value in found.items()}


def _name(stage: str, name: str) -> str:
    return _FORBIDDEN.sub("_", f"{stage}/{name}")[:250]


TRACKER = Tracker(variables=("MLFLOW_TRACKING_URI",), install="mlflow-skinny", send=send)
