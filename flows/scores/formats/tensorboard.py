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
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.summary import scalar

    count, ended = 0, run.record.finished or run.record.started
    for stage, metrics in zip(run.stages.values(), metric_points(run), strict=True):
        points = curve(stage) + [metrics] * bool(metrics.values)
        if not points:
            continue
        (directory / stage.name).mkdir()
        # the thread of a SummaryWriter keeps an error of the disk to itself
        events = EventsWriter(str(directory / stage.name / "events"))
        for _, step, values in points:
            for name, value in values.items():
                point = Event(wall_time=ended, step=step, summary=scalar(name, value))
                events.write_event(point)
        events.close()
        count += 1
    return count


FORMAT = Format(write=write)
