"""Weights & Biases: one of its runs per run, in the project `WANDB_PROJECT` or `lyceum`.

Values are `<stage>/<name>`, curves over `<stage>/step`; the numbers of each stage's metrics are in
the summary, the recipe is the config. `WANDB_MODE=offline` keeps runs in files for `wandb sync`.
"""

import os
from collections.abc import Sequence
from typing import Any

from flows.scores.evaluations import Point
from flows.trackers import Session, Tracker
from schemas.reports import RunRecord


class _Session:
    """One of its runs, which lasts until ours has ended."""

    def __init__(self, sent: Any) -> None:
        self._sent = sent

    def log(self, points: Sequence[Point]) -> None:
        """Send points of curves."""
        for stage, step, values in points:
            row = {f"{stage}/{name}": value for name, value in values.items()}
            self._sent.log({**row, f"{stage}/step": step})

    def end(self, record: RunRecord, metrics: Sequence[Point] | None) -> None:
        """Send the metrics."""
        for stage, _, values in metrics or ():
            self._sent.summary.update({f"{stage}/{name}": one for name, one in values.items()})
        if metrics is not None:
            self._sent.summary.update({"report": record.report})
        self._sent.finish(exit_code=0 if record.status == "succeeded" else 1)


def open_run(record: RunRecord, name: str) -> Session:
    """Begin a run, or go on with the one of this name. Raises whatever wandb raises."""
    # it asks for a key where there is none, and at a terminal waits for ever
    os.environ.setdefault("WANDB_LOGIN_TIMEOUT", "30")
    import wandb

    sent = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "lyceum"),
        id=name,
        name=name,
        resume="allow",
        group=record.recipe.name,
        config={
            **record.recipe.model_dump(mode="json"),
            "target": record.target,
            "store": record.store,
        },
        settings=wandb.Settings(console="off", quiet=True),
    )
    for stage in record.recipe.stages:
        sent.define_metric(f"{stage.name}/step", hidden=True)
        sent.define_metric(f"{stage.name}/*", step_metric=f"{stage.name}/step")
    return _Session(sent)


TRACKER = Tracker(variables=("WANDB_PROJECT", "WANDB_API_KEY"), install="wandb", open=open_run)
