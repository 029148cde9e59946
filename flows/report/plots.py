"""The report's plots (`flows.report.chart`): what is drawn of effects, curves, rates, times."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.report.blocks import Figure
from flows.report.chart import BAD, GOOD, INK, MUTED, SERIES, Axis, Chart
from flows.runs.effects import Effect
from flows.runs.wording import percent, points
from tasks.statistics.intervals import Rate

COLOURS = {"gain": GOOD, "loss": BAD, "unclear": MUTED}
STATUSES = {"ran": SERIES[0], "failed": BAD}
"""What was reused, or not reached, is grey."""

MOST_POINTS = 500
"""Of one line, on some 300 pixels: dozens of curves of a thousand steps would be most of the page's
bytes."""


@dataclass(frozen=True)
class Point:
    """A point with intervals on both axes; a control is drawn hollow."""

    label: str
    x: Rate
    y: Rate
    control: bool = False


def waterfall(title: str, effects: Sequence[Effect]) -> Figure:
    """Each stage's contribution to a rate: the base's level, the gain or loss of each stage with
    its 95% interval, the final level.

    A change that cannot be told from chance is pale grey: it is drawn, and claims nothing.
    """
    changes = [one.change for one in effects]
    levels = [100 * changes[0].before.value, *(100 * one.after.value for one in changes)]
    ends = [
        [100 * end + level for end in (one.interval.low, one.interval.high)]
        for one, level in zip(changes, levels, strict=False)
    ]
    names = [effects[0].since, *(one.stage for one in effects), "final"]
    highest = max(1.0, 1.14 * max(*levels, *(high for _, high in ends)))
    chart = Chart(216, Axis.named(names), Axis.between(0, highest, "% of held-out prompts"))

    def labelled(place: float, level: float, text: str) -> None:
        chart.text(place, level, text, "middle", up=4)

    for place, level in ((0, levels[0]), (len(effects) + 1, levels[-1])):
        chart.bar((place - 0.31, place + 0.31), (0, level), MUTED)
        labelled(place, level, percent(level / 100))
    for place, (one, was, (low, high)) in enumerate(zip(effects, levels, ends, strict=False), 1):
        strength = 0.4 if one.direction == "unclear" else 1.0
        now = was + 100 * one.change.delta
        chart.bar((place - 0.31, place + 0.31), (was, now), COLOURS[one.direction], strength)
        chart.line([place - 1, place], [was, was], MUTED, 0.8, dashed=True)
        chart.line([place, place], [low, high], INK, 1.2)
        for end in (low, high):
            chart.line([place - 0.06, place + 0.06], [end, end], INK, 1.2)
        labelled(place, max(was, now, high), points(one.change.delta))
    return chart.figure(title)


def forest(title: str, bars: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Differences, as rows of `flows.runs.compare`, with their intervals, one line each, around a
    line at zero."""
    gaps = [{end: 100 * at for end, at in row["difference"].items()} for row in bars.values()]
    axis = Axis.of([0.0, *(end for gap in gaps for end in gap.values())])
    chart = Chart(43 + 22 * len(bars), axis, Axis.named([*bars], down=True))
    chart.line([0, 0], [-0.5, len(bars) - 0.5], INK, 1.0)
    for place, (gap, row) in enumerate(zip(gaps, bars.values(), strict=True)):
        colour = COLOURS[row["direction"]]
        chart.line([gap["low"], gap["high"]], [place, place], colour, 2.0)
        chart.line([gap["value"]], [place], colour, dots=6)
    return chart.figure(title)


def curve(title: str, series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """A training curve: one line per name, `(steps, values)` each. Few points are drawn with
    markers, so that a single one is visible; of more than MOST_POINTS, means of so many in a row
    that they are no more, and the axis says so."""
    window = max(1, *(-(-len(steps) // MOST_POINTS) for steps, _ in series.values()))
    lines = {name: [_means(one, window) for one in both] for name, both in series.items()}
    x, y = ([value for both in lines.values() for value in both[side]] for side in (0, 1))
    label = "step" if window == 1 else f"step (means of {window})"
    colours = dict(zip(lines, SERIES, strict=False))
    axes = Axis.of(x, label, whole=True), Axis.of(y)
    chart = Chart(158, *axes, colours if len(colours) > 1 else {})
    for name, colour in colours.items():
        steps, values = lines[name]
        chart.line(steps, values, colour, dots=3 if len(steps) < 25 else 0)
    return chart.figure(title)


def _means(values: Sequence[float], window: int) -> list[float]:
    parts = (values[at : at + window] for at in range(0, len(values), window))
    return [sum(part) / len(part) for part in parts]


def at_k(title: str, models: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """A rate over how many answers were sampled, on a logarithmic axis: model -> k -> `rate`,
    `low`, `high` as fractions of 1."""
    colours = {name: SERIES[n % len(SERIES)] for n, name in enumerate(models)}
    ks = {math.log2(int(k)): k for by_k in models.values() for k in by_k}
    ends = Axis.of(ks)
    x = Axis(ends.low, ends.high, ks, "k")
    chart = Chart(187, x, Axis.between(-4, 104, "% of prompts"), colours)
    for name, by_k in models.items():
        at = [math.log2(int(k)) for k in by_k]
        rate, low, high = ([100 * one[end] for one in by_k.values()] for end in _ENDS)
        around = [*zip(at, high, strict=True), *reversed([*zip(at, low, strict=True)])]
        chart.area(around, colours[name], 0.15)
        chart.line(at, rate, colours[name], dots=4)
    return chart.figure(title)


_ENDS = ("rate", "low", "high")


def reliability(title: str, bins: Sequence[Mapping[str, float]]) -> Figure:
    """A reliability diagram: how often what was said with a probability was so, bin by bin, beside
    the diagonal."""
    said, was = ([one[field] for one in bins] for field in ("confidence", "accuracy"))
    legend = {"as often as said": MUTED, "held-out pairs": SERIES[0]}
    axes = Axis.of([0.5, 1.0, *said], "probability"), Axis.of([0.5, 1.0, *was])
    chart = Chart(187, *axes, legend)
    chart.line([0.5, 1], [0.5, 1], MUTED, 1.0)
    chart.line(said, was, SERIES[0], dots=4)
    return chart.figure(title)


def paired_bars(
    title: str, labels: Sequence[str], requested: Sequence[float], achieved: Sequence[float]
) -> Figure:
    """Requested beside achieved counts, one pair of horizontal bars per label."""
    x = Axis.between(0, max(1.0, *requested, *achieved), "examples", whole=True)
    legend = {"requested": MUTED, "achieved": SERIES[0]}
    chart = Chart(45 + 30 * len(labels), x, Axis.named(labels, down=True), legend)
    for place, pair in enumerate(zip(requested, achieved, strict=True)):
        for count, colour, top in zip(pair, legend.values(), (-0.38, 0.0), strict=True):
            chart.bar((0, count), (place + top, place + top + 0.38), colour)
    return chart.figure(title)


def stage_times(title: str, stages: Sequence[tuple[str, float, str]]) -> Figure:
    """Seconds per stage as horizontal bars: `(name, seconds, status)`."""
    longest = max((seconds for _, seconds, _ in stages), default=0.0) or 1.0
    x = Axis.between(0, 1.35 * longest, "seconds in this run", few=True)
    names = Axis.named([name for name, _, _ in stages], down=True)
    chart = Chart(43 + 19 * len(stages), x, names)
    for place, (_, seconds, status) in enumerate(stages):
        chart.bar((0, seconds), (place - 0.33, place + 0.33), STATUSES.get(status, MUTED))
        text = f"{seconds:.1f} s" if status == "ran" else f"{seconds:.1f} s, {status}"
        chart.text(seconds, place, text, "start", right=3, up=-3)
    return chart.figure(title)


def rate_plane(title: str, shown: Sequence[Point], x_label: str, y_label: str) -> Figure:
    """Two rates against each other (safety against helpfulness), both with 95% intervals; the axes
    are percent."""
    chart = Chart(238, Axis.between(-4, 104, x_label), Axis.between(-4, 104, y_label))
    for number, point in enumerate(shown):
        colour = MUTED if point.control else SERIES[number % len(SERIES)]
        x, y, across, up = point.x.value, point.y.value, point.x.interval, point.y.interval
        chart.line([100 * across.low, 100 * across.high], [100 * y] * 2, colour, 1.0)
        chart.line([100 * x] * 2, [100 * up.low, 100 * up.high], colour, 1.0)
        chart.line([100 * x], [100 * y], colour, dots=7, hollow=point.control)
        anchor, right = ("end", -8) if x > 0.5 else ("start", 8)
        above = (7 if y < 0.8 else -15) + 12 * (number % 2)  # neighbours do not cover each other
        chart.text(100 * x, 100 * y, point.label, anchor, right, above)
    return chart.figure(title)


def lineage(
    title: str,
    depth: Mapping[str, int],
    edges: Sequence[tuple[str, str]],
    status: Mapping[str, str],
) -> Figure:
    """Which artifact feeds which: stages from top to bottom by `depth` (0 = no inputs), one arrow
    per `(source, stage)`."""
    layers: dict[int, list[str]] = {}
    for stage, layer in depth.items():
        layers.setdefault(layer, []).append(stage)
    place = {
        stage: ((index + 1) / (len(stages) + 1), layer)
        for layer, stages in layers.items()
        for index, stage in enumerate(stages)
    }
    lowest = max(layers, default=0) + 0.5
    chart = Chart(36 + 40 * len(layers), Axis(0, 1), Axis(lowest, -0.5))
    for source, stage in edges:
        # an arrow over several layers goes around the boxes between
        layered = depth[stage] - depth[source]
        chart.arrow(place[source], place[stage], 0 if layered == 1 else 10 * layered)
    for stage, (x, y) in place.items():
        chart.box(x, y, stage, STATUSES.get(status.get(stage, ""), MUTED))
    return chart.figure(title)
