"""The report's plots: matplotlib figures as SVG text to be placed inline in an HTML page.

Colours are CSS: matplotlib draws with placeholder colours, which `_svg` replaces by `currentColor`
and the page's custom properties (`--series-1` ... see style.css.j2), so that one drawing is legible
in light and in dark mode. Text stays text (searchable, the page's font). Equal data gives equal
bytes: a fixed hash salt, no date. Figures are narrow (288 pt) so that labels stay readable on a
phone.
"""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tasks.statistics.intervals import Interval

INK, GRID, GOOD, BAD, MUTED, CARD = "#010101", "#020202", "#030303", "#040404", "#050505", "#0a0a0a"
SERIES = ("#060606", "#070707", "#080808", "#090909")
_CSS = {
    INK: "currentColor",
    GRID: "var(--line)",
    GOOD: "var(--good)",
    BAD: "var(--bad)",
    MUTED: "var(--muted)",
    CARD: "var(--card)",
}
_CSS |= {colour: f"var(--series-{number})" for number, colour in enumerate(SERIES, start=1)}

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "axes.formatter.use_mathtext": False,
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
}


@dataclass(frozen=True)
class Step:
    """One bar of a waterfall, in fractions of 1: a level or, with `interval`, the change that led
    to it and whether it is one."""

    label: str
    level: float
    text: str
    change: float = 0.0
    interval: Interval | None = None
    direction: Literal["gain", "loss", "unclear"] = "unclear"


@dataclass(frozen=True)
class Point:
    """A point with intervals on both axes, fractions of 1; a control is drawn hollow."""

    label: str
    x: float
    y: float
    x_interval: Interval
    y_interval: Interval
    control: bool = False


@dataclass(frozen=True)
class Bar:
    """A difference with the ends of its interval, fractions of 1, and whether it is a gain, a loss
    or unclear."""

    label: str
    value: float
    low: float
    high: float
    direction: Literal["gain", "loss", "unclear"]


@matplotlib.rc_context(_STYLE)
def waterfall(steps: Sequence[Step], title: str) -> Markup:
    """Each stage's contribution to a rate: the base's level, the gain or loss of each stage with
    its 95% interval, the final level.

    A change that cannot be told from chance is pale grey: it is drawn, and claims nothing.
    """
    figure, axes = _figure(3.0)
    previous = highest = 0.0
    for position, step in enumerate(steps):
        top = step.level
        if step.interval is None:
            axes.bar(position, 100 * step.level, width=0.62, color=MUTED)
        else:
            low, high = step.interval.low, step.interval.high
            colour, alpha = {"gain": (GOOD, 1.0), "loss": (BAD, 1.0), "unclear": (MUTED, 0.4)}[
                step.direction
            ]
            axes.bar(
                position,
                100 * step.change,
                bottom=100 * previous,
                width=0.62,
                color=colour,
                alpha=alpha,
            )
            axes.plot(
                [position - 1, position],
                [100 * previous] * 2,
                color=MUTED,
                linewidth=0.8,
                linestyle=":",
            )
            ends = [100 * (previous + low), 100 * (previous + high)]
            axes.plot(
                [position, position], ends, color=INK, linewidth=1.2, marker="_", markersize=6
            )
            top = max(previous, step.level, previous + high)
        axes.annotate(
            step.text, (position, 100 * top), xytext=(0, 4), textcoords="offset points", ha="center"
        )
        previous, highest = step.level, max(highest, top)
    axes.set_xticks(range(len(steps)), [step.label for step in steps])
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("% of held-out prompts")
    axes.set_ylim(0, max(1.0, 114 * highest))
    return _svg(figure, title)


@matplotlib.rc_context(_STYLE)
def forest(title: str, bars: Sequence[Bar]) -> Markup:
    """Differences with their intervals, one row each, around a line at zero."""
    figure, axes = _figure(0.6 + 0.3 * len(bars))
    axes.axvline(0, color=INK, linewidth=1)
    colours = {"gain": GOOD, "loss": BAD, "unclear": MUTED}
    for position, bar in enumerate(bars):
        colour = colours[bar.direction]
        axes.plot([100 * bar.low, 100 * bar.high], [position] * 2, color=colour, linewidth=2)
        axes.plot(100 * bar.value, position, color=colour, marker="o", markersize=6)
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    return _svg(figure, title)


@matplotlib.rc_context(_STYLE)
def curve(title: str, series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Markup:
    """A training curve: one line per name, `(steps, values)` each. Few points are drawn with
    markers, so that a single one is visible; of more than MOST_POINTS, means of so many in a row
    that they are no more, and the axis says so."""
    figure, axes = _figure(2.2, CURVE_MARGINS)
    window = max(-(-len(steps) // MOST_POINTS) for steps, _ in series.values())
    for colour, (name, (steps, values)) in zip(SERIES, series.items(), strict=False):
        axes.plot(
            _means(steps, window),
            _means(values, window),
            color=colour,
            linewidth=1.4,
            label=name,
            marker="o" if len(steps) < 25 else None,
            markersize=3,
        )
    axes.set_xlabel("step" if window == 1 else f"step (means of {window})")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if len(series) > 1:
        axes.legend(loc="best")
    return _svg(figure, title)


def _means(values: Sequence[float], window: int) -> list[float]:
    return [fmean(values[start : start + window]) for start in range(0, len(values), window)]


@matplotlib.rc_context(_STYLE)
def at_k(title: str, models: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Markup:
    """A rate over how many answers were sampled: model -> k -> `rate`, `low`, `high` as fractions
    of 1."""
    figure, axes = _figure(2.6, CURVE_MARGINS)
    for number, (name, by_k) in enumerate(models.items()):
        colour = SERIES[number % len(SERIES)]
        ks = [int(k) for k in by_k]
        axes.plot(
            ks,
            [100 * one["rate"] for one in by_k.values()],
            color=colour,
            marker="o",
            markersize=4,
            linewidth=1.4,
            label=name,
        )
        axes.fill_between(
            ks,
            [100 * one["low"] for one in by_k.values()],
            [100 * one["high"] for one in by_k.values()],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.set_xlabel("k")
    axes.set_ylabel("% of prompts")
    axes.set_ylim(-4, 104)
    axes.legend(loc="best")
    return _svg(figure, title)


@matplotlib.rc_context(_STYLE)
def reliability(title: str, bins: Sequence[Mapping[str, float]]) -> Markup:
    """A reliability diagram: how often what was said with a probability was so, bin by bin, beside
    the diagonal."""
    figure, axes = _figure(2.6, CURVE_MARGINS)
    axes.plot([0.5, 1], [0.5, 1], color=MUTED, linewidth=1, label="as often as said")
    axes.plot(
        [one["confidence"] for one in bins],
        [one["accuracy"] for one in bins],
        color=SERIES[0],
        marker="o",
        markersize=4,
        label="held-out pairs",
    )
    axes.set_xlabel("probability")
    axes.legend(loc="best")
    return _svg(figure, title)


@matplotlib.rc_context(_STYLE)
def paired_bars(
    title: str, labels: Sequence[str], requested: Sequence[float], achieved: Sequence[float]
) -> Markup:
    """Requested beside achieved counts, one pair of horizontal bars per label."""
    figure, axes = _figure(0.9 + 0.42 * len(labels))
    positions = range(len(labels))
    axes.barh(
        [position - 0.19 for position in positions],
        requested,
        height=0.36,
        color=MUTED,
        label="requested",
    )
    axes.barh(
        [position + 0.19 for position in positions],
        achieved,
        height=0.36,
        color=SERIES[0],
        label="achieved",
    )
    axes.set_yticks(list(positions), labels)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("examples")
    figure.legend(loc="outside lower center", ncols=2)
    return _svg(figure, title)


@matplotlib.rc_context(_STYLE)
def stage_times(title: str, stages: Sequence[tuple[str, float, str]]) -> Markup:
    """Seconds per stage as horizontal bars: `(name, seconds, status)`; what was reused is grey,
    what failed red."""
    figure, axes = _figure(0.6 + 0.26 * len(stages))
    colours = {"ran": SERIES[0], "failed": BAD}
    longest = max((seconds for _, seconds, _ in stages), default=0.0) or 1.0
    for position, (_, seconds, status) in enumerate(stages):
        axes.barh(position, seconds, height=0.66, color=colours.get(status, MUTED))
        text = f"{seconds:.1f} s" if status == "ran" else f"{seconds:.1f} s, {status}"
        axes.annotate(
            text, (seconds, position), xytext=(3, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(stages)), [name for name, _, _ in stages])
    axes.set_xlim(0, longest * 1.35)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("seconds in this run")
    return _svg(figure, title)


@matplotlib.rc_context(_STYLE)
def rate_plane(title: str, points: Sequence[Point], x_label: str, y_label: str) -> Markup:
    """Two rates against each other (safety against helpfulness), both with 95% intervals; the axes
    are percent."""
    figure, axes = _figure(3.3)
    for number, point in enumerate(points):
        colour = MUTED if point.control else SERIES[number % len(SERIES)]
        axes.plot(
            [100 * point.x_interval.low, 100 * point.x_interval.high],
            [100 * point.y] * 2,
            color=colour,
            linewidth=1,
        )
        axes.plot(
            [100 * point.x] * 2,
            [100 * point.y_interval.low, 100 * point.y_interval.high],
            color=colour,
            linewidth=1,
        )
        axes.plot(
            100 * point.x,
            100 * point.y,
            marker="o",
            markersize=7,
            color=colour,
            markerfacecolor="none" if point.control else colour,
        )
        side = "right" if point.x > 0.5 else "left"
        offset = (
            -8 if side == "right" else 8,
            (7 if point.y < 0.8 else -11) + 12 * (number % 2),
        )  # neighbours do not cover each other
        axes.annotate(
            point.label,
            (100 * point.x, 100 * point.y),
            xytext=offset,
            textcoords="offset points",
            ha=side,
        )
    axes.set(xlim=(-4, 104), ylim=(-4, 104), xlabel=x_label, ylabel=y_label)
    return _svg(figure, title)


@matplotlib.rc_context(_STYLE)
def lineage(
    title: str,
    depth: Mapping[str, int],
    edges: Sequence[tuple[str, str]],
    status: Mapping[str, str],
) -> Markup:
    """Which artifact feeds which: stages from top to bottom by `depth` (0 = no inputs), one arrow
    per `(source, stage)`."""
    layers: dict[int, list[str]] = {}
    for stage, layer in depth.items():
        layers.setdefault(layer, []).append(stage)
    figure, axes = _figure(0.5 + 0.55 * len(layers))
    place = {
        stage: ((index + 1) / (len(stages) + 1), -layer)
        for layer, stages in layers.items()
        for index, stage in enumerate(stages)
    }
    for source, stage in edges:
        bend = (
            0.0 if depth[stage] - depth[source] == 1 else 0.25
        )  # an arrow over several layers goes around the boxes between
        style = {
            "arrowstyle": "->",
            "color": MUTED,
            "shrinkA": 9,
            "shrinkB": 9,
            "connectionstyle": f"arc3,rad={bend}",
        }
        axes.annotate("", place[stage], place[source], arrowprops=style)
    edge = {"ran": SERIES[0], "failed": BAD}
    for stage, (x, y) in place.items():
        box = {
            "boxstyle": "round,pad=0.35",
            "facecolor": CARD,
            "edgecolor": edge.get(status.get(stage, ""), MUTED),
        }
        axes.text(x, y, stage, ha="center", va="center", fontsize=8, bbox=box)
    axes.set(xlim=(0, 1), ylim=(-max(layers, default=0) - 0.5, 0.5))
    axes.axis("off")
    return _svg(figure, title)


MOST_POINTS = 500
"""Of one line, on some 300 pixels: dozens of curves of a thousand steps would be most of the page's
bytes."""

CURVE_MARGINS = {"left": 0.17, "right": 0.985, "bottom": 0.2, "top": 0.9}
"""Room around a curve for ticks of eight characters. There are dozens of curves, and fitting
margins takes longer than drawing one."""


def _figure(height: float, margins: Mapping[str, float] | None = None) -> tuple[Figure, Axes]:
    """An empty figure 4 inches wide and `height` inches high, in the report's style; without
    margins they are made to fit."""
    figure = Figure(figsize=(4.0, height), layout=None if margins else "constrained")
    if margins:
        figure.subplots_adjust(**margins)
    return figure, figure.add_subplot()


def _svg(figure: Figure, title: str) -> Markup:
    """The figure as an HTML figure: `title` above an SVG that takes the width of its place."""
    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title}):
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[A-Za-z][A-Za-z0-9.]*_\d+"', "", text)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(
        r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text
    )  # a hundredth of a point is enough
    for colour, css in _CSS.items():
        text = text.replace(colour, css)
    drawn = Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1))
    return Markup('<figure class="plot"><figcaption>{}</figcaption>{}</figure>').format(
        title, drawn
    )
