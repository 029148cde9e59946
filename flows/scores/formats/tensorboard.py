"""Curves and metrics for TensorBoard: `tensorboard --logdir DIR/tensorboard`. One of its runs per
stage.

A trained stage's curves are scalars by their own names, over steps. Every number in a stage's
metrics is `metrics/<name>`, one point at the stage's place in the recipe, so that the same metric
of several evaluations stands from left to right.
"""

from pathlib import Path

from flows.runs.results import RunResults
from flows.scores import Format
from flows.scores.evaluations import curve, metric_points


def write(run: RunResults, directory: Path) -> int:
    """Write `<stage>/events.out.tfevents.*` for each stage that has numbers; returns the number of
    files."""
    from tensorboardX import SummaryWriter

    count, ended = 0, run.record.finished or run.record.started
    for stage, metrics in zip(run.stages.values(), metric_points(run), strict=True):
        points = curve(stage) + [metrics] * bool(metrics.values)
        if not points:
            continue
        with SummaryWriter(logdir=str(directory / stage.name)) as events:
            for _, step, values in points:
                for name, value in values.items():
                    events.add_scalar(name, value, step, walltime=ended)
        count += 1
    return count


FORMAT = Format(write=write)
