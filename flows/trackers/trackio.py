"""Trackio: one of its runs per run, in the project `TRACKIO_PROJECT` or `lyceum`; a local file that
`trackio show` draws, a server (`TRACKIO_SERVER_URL`), or a private Space of the Hugging Face hub
(`TRACKIO_SPACE_ID`).

Values are `<stage>/<name>` over the stage's own steps; the numbers of each stage's metrics are
`<stage>/metrics/<name>`, at the stage's place in the recipe; the recipe is the config.
"""

import os
from collections.abc import Sequence

from flows.recipe.explain import flat
from flows.scores.evaluations import Point
from flows.trackers import Session, Tracker
from schemas.reports import RunRecord


def open_run(record: RunRecord, name: str) -> Session:
    import trackio

    config = {"model": record.recipe.model, "target": record.target, "store": record.store}
    for stage in record.recipe.stages:
        config |= {key: str(value) for key, value in flat(stage.name, stage.config).items()}
    sent = trackio.init(
        project=os.environ.get("TRACKIO_PROJECT") or "lyceum",
        name=name,
        group=record.recipe.name,
        config=config,
        resume="allow",
        private=True,
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )

    def log(points: Sequence[Point]) -> None:
        for stage, step, values in points:
            sent.log({f"{stage}/{name}": value for name, value in values.items()}, step=step)

    def end(record: RunRecord, metrics: Sequence[Point] | None) -> None:
        log(metrics or ())
        sent.finish()

    return Session(log, end)


TRACKER = Tracker(
    variables=("TRACKIO_PROJECT", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"),
    install="trackio",
    open=open_run,
)
