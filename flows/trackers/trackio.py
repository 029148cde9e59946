"""Trackio: one of its runs per run, in the project `TRACKIO_PROJECT` or `lyceum`; a local file that
`trackio show` draws, a server (`TRACKIO_SERVER_URL`), or a private Space of the Hugging Face hub
(`TRACKIO_SPACE_ID`).

Values are `<stage>/<name>` over the stage's own steps; the numbers of each stage's metrics are
`<stage>/metrics/<name>`, at the stage's place in the recipe; the recipe is the config.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from flows.recipe.explain import flat
from flows.runs.results import RunResults
from flows.scores.evaluations import figures
from flows.trackers import Point, Session, Tracker
from schemas.reports import RunRecord


class _Session:
    """One of its runs, which lasts until ours has ended."""

    def __init__(self, sent: Any, places: Mapping[str, int]) -> None:
        self._sent, self._places = sent, places

    def log(self, points: Sequence[Point]) -> None:
        """Send points of curves."""
        for stage, step, values in points:
            self._sent.log({f"{stage}/{name}": value for name, value in values.items()}, step=step)

    def end(self, record: RunRecord, run: RunResults | None) -> None:
        """Send the metrics."""
        for stage in run.stages.values() if run else ():
            values = {f"{stage.name}/metrics/{name}": one for name, one in figures(stage).items()}
            self._sent.log(values, step=self._places[stage.name])
        self._sent.finish()


def open_run(record: RunRecord, name: str) -> Session:
    """Begin a run, or go on with the one of this name. Raises whatever trackio raises."""
    import trackio

    stages = record.recipe.stages
    config = {"model": record.recipe.model, "target": record.target, "store": record.store}
    for stage in stages:
        config |= {key: str(value) for key, value in flat(stage.name, stage.config).items()}
    sent = trackio.init(
        project=os.environ.get("TRACKIO_PROJECT", "lyceum"),
        name=name,
        group=record.recipe.name,
        config=config,
        resume="allow",
        private=True,
        embed=False,
        auto_log_gpu=False,
        auto_log_cpu=False,
    )
    return _Session(sent, {stage.name: place for place, stage in enumerate(stages)})


TRACKER = Tracker(
    variables=("TRACKIO_PROJECT", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"),
    install="trackio",
    open=open_run,
)
