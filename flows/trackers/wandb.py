"""Weights & Biases: one of its runs per run, in the project `WANDB_PROJECT` or `lyceum`.

Values are `<stage>/<name>`, curves over `<stage>/step`; the numbers of each stage's metrics are in
the summary, the recipe is the config. `WANDB_MODE=offline` keeps runs in files for `wandb sync`.
"""

import os
from collections.abc import Sequence

from flows.scores.evaluations import Point
from flows.trackers import Session, Tracker
from schemas.reports import RunRecord


def open_run(record: RunRecord, name: str) -> Session:
    # it asks for a key where there is none, and at a terminal waits for ever
    os.environ.setdefault("WANDB_LOGIN_TIMEOUT", "30")
    import wandb

    sent = wandb.init(
        project=os.environ.get("WANDB_PROJECT") or "lyceum",
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

    def log(points: Sequence[Point]) -> None:
        for stage, step, values in points:
            row = {f"{stage}/{name}": value for name, value in values.items()}
            sent.log({**row, f"{stage}/step": step})

    def end(record: RunRecord, metrics: Sequence[Point] | None) -> None:
        for stage, _, values in metrics or ():
            sent.summary.update({f"{stage}/{name}": one for name, one in values.items()})
        if metrics is not None:
            sent.summary.update({"report": record.report})
        sent.finish(exit_code=0 if record.status == "succeeded" else 1)

    return Session(log, end)


TRACKER = Tracker(variables=("WANDB_PROJECT", "WANDB_API_KEY"), install="wandb", open=open_run)
