"""Weights & Biases: one of its runs per run, in the project `WANDB_PROJECT` or `lyceum`.

Values are `<stage>/<name>`, curves over `<stage>/step`; the numbers of each stage's metrics are in
the summary, the recipe is the config. `WANDB_MODE=offline` keeps runs in files for `wandb sync`.
"""

import os

from flows.runs.results import RunResults
from flows.scores.evaluations import curve, figures
from flows.trackers import Tracker


def send(run: RunResults) -> None:
    """Send a run. Raises whatever wandb raises."""
    # it asks for a key where there is none, and at a terminal waits for ever
    os.environ.setdefault("WANDB_LOGIN_TIMEOUT", "30")
    import wandb

    record = run.record
    sent = wandb.init(
        project=os.environ.get("WANDB_PROJECT", "lyceum"),
        id=record.run_id,
        name=record.run_id,
        group=record.recipe.name,
        config={
            **record.recipe.model_dump(mode="json"),
            "target": record.target,
            "store": record.store,
            "report": record.report,
        },
        settings=wandb.Settings(console="off", quiet=True),
    )
    for stage in run.stages.values():
        sent.define_metric(f"{stage.name}/step", hidden=True)
        sent.define_metric(f"{stage.name}/*", step_metric=f"{stage.name}/step")
        for step, values in curve(stage):
            sent.log(
                {f"{stage.name}/{name}": value for name, value in values.items()}
                | {f"{stage.name}/step": step}
            )
        sent.summary.update(
            {f"{stage.name}/metrics/{name}": value for name, value in figures(stage).items()}
        )
    sent.finish(exit_code=0 if record.status == "succeeded" else 1)


TRACKER = Tracker(variables=("WANDB_PROJECT", "WANDB_API_KEY"), install="wandb", send=send)
