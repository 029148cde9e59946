"""The report's plots: matplotlib figures as SVG text to be placed inline in an HTML page.

Colours are CSS: matplotlib draws with placeholder colours, which `_svg` replaces by `currentColor`
and the page's custom properties (`--series-1` ... see style.css), so that one drawing is legible
in light and in dark mode. Text stays text (searchable, the page's font). Equal data give equal
bytes (a fixed hash salt, no date), so each plot is drawn once (`flows.report.drawings`). Figures
are narrow (288 pt) so that labels stay readable on a phone.
"""

import functools
import io
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from flows.report.blocks import Figure
from flows.report.drawings import P, drawn_once
from flows.report.html import tag
from flows.runs.effects import Direction
from tasks.statistics.intervals import Interval, Rate
from tasks.statistics.means import Mean

if TYPE_CHECKING:  # most runs find every plot drawn
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

INK, GRID, GOOD, BAD, MUTED, CARD = "#010101", "#020202", "#030303", "#040404", "#050505", "#0a0a0a"
SERIES = ("#060606", "#070707", "#080808", "#090909")
COLOURS = {"gain": GOOD, "loss": BAD, "unclear": MUTED}
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
    to it and whether that differs from 0."""

    label: str
    level: float
    text: str
    change: float = 0.0
    interval: Interval | None = None
    direction: Direction = "unclear"


@dataclass(frozen=True)
class Point:
    """A point with intervals on both axes; a control is drawn hollow."""

    label: str
    x: Rate | Mean
    y: Rate | Mean
    control: bool = False


@dataclass(frozen=True)
class Bar:
    """A difference with the ends of its interval, fractions of 1, and whether it is a gain, a loss
    or unclear."""

    label: str
    value: float
    low: float
    high: float
    direction: Direction


def _plot(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    @drawn_once
    @functools.wraps(draw)
    def styled(*given: P.args, **named: P.kwargs) -> Figure:
        import matplotlib

        with matplotlib.rc_context(_STYLE):
            return draw(*given, **named)

    return styled


@_plot
def waterfall(steps: Sequence[Step], title: str) -> Figure:
    """Each stage's contribution to a rate: the base's level, the gain or loss of each stage with
    its 95% interval, the final level.

    A change within chance is drawn in pale grey.
    """
    figure, axes = _figure(3.0)
    previous = highest = 0.0
    for position, step in enumerate(steps):
        top = step.level
        if step.interval is None:
            axes.bar(position, 100 * step.level, width=0.62, color=MUTED)
        else:
            low, high = step.interval.low, step.interval.high
            look: dict[str, Any] = {"width": 0.62, "color": COLOURS[step.direction]}
            look["alpha"] = 0.4 if step.direction == "unclear" else 1.0
            axes.bar(position, 100 * step.change, bottom=100 * previous, **look)
            since, level = [position - 1, position], [100 * previous] * 2
            axes.plot(since, level, color=MUTED, linewidth=0.8, linestyle=":")
            ends = [100 * (previous + low), 100 * (previous + high)]
            axes.plot([position] * 2, ends, color=INK, linewidth=1.2, marker="_", markersize=6)
            top = max(previous, step.level, previous + high)
        _label(axes, step.text, (position, 100 * top), (0, 4), ha="center")
        previous, highest = step.level, max(highest, top)
    width = max(5, 48 // len(steps))
    axes.set_xticks(range(len(steps)), [_wrapped(step.label, width) for step in steps])
    axes.grid(axis="x", visible=False)
    axes.set_ylabel("% of held-out prompts")
    axes.set_ylim(0, max(1.0, 114 * highest))
    return _svg(figure, title)


@_plot
def forest(title: str, bars: Sequence[Bar]) -> Figure:
    """Differences with their intervals, one row each, around a line at zero."""
    labels = [_wrapped(bar.label) for bar in bars]
    figure, axes = _figure(0.6 + (0.14 + 0.16 * _lines(labels)) * len(bars))
    axes.axvline(0, color=INK, linewidth=1)
    for position, bar in enumerate(bars):
        colour = COLOURS[bar.direction]
        axes.plot([100 * bar.low, 100 * bar.high], [position] * 2, color=colour, linewidth=2)
        axes.plot(100 * bar.value, position, color=colour, marker="o", markersize=6)
    axes.set_ylim(-0.5, len(bars) - 0.5)
    return _of_rows(figure, axes, labels, title)


@_plot
def curve(title: str, series: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """A training curve: one line per name, `(steps, values)` each. Few points have markers, so that
    a single one is visible. More than MOST_POINTS are averaged in runs of consecutive points, and
    the axis says so."""
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure(2.2, CURVE_MARGINS)
    window = max(1, *(-(-len(steps) // MOST_POINTS) for steps, _ in series.values()))
    for colour, (name, (steps, values)) in zip(SERIES, series.items(), strict=False):
        look: dict[str, Any] = {"marker": "o" if len(steps) < 25 else None, "markersize": 3}
        look |= {"linewidth": 1.4, "color": colour, "label": _wrapped(name)}
        axes.plot(_means(steps, window), _means(values, window), **look)
    axes.set_xlabel("step" if window == 1 else f"step (means of {window})")
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    if len(series) > 1:
        axes.legend(loc="best")
    return _svg(figure, title)


def _means(values: Sequence[float], window: int) -> list[float]:
    return [fmean(values[start : start + window]) for start in range(0, len(values), window)]


@_plot
def at_k(title: str, models: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Figure:
    """A rate over how many answers were sampled: model -> k -> `rate`, `low`, `high` as fractions
    of 1."""
    figure, axes = _figure(2.6, CURVE_MARGINS)
    for number, (name, by_k) in enumerate(models.items()):
        colour = SERIES[number % len(SERIES)]
        ks = [int(k) for k in by_k]
        rate, low, high = (
            [100 * one[field] for one in by_k.values()] for field in ("rate", "low", "high")
        )
        look: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "linewidth": 1.4}
        axes.plot(ks, rate, **look, label=_wrapped(name))
        axes.fill_between(ks, low, high, color=colour, alpha=0.15, linewidth=0)
    ks = sorted({int(k) for by_k in models.values() for k in by_k})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.set_xlabel("k")
    axes.set_ylabel("% of prompts")
    axes.set_ylim(-4, 104)
    axes.legend(loc="best")
    return _svg(figure, title)


@_plot
def reliability(title: str, bins: Sequence[Mapping[str, float]]) -> Figure:
    """A reliability diagram: the frequency of being right against the stated probability, bin by
    bin, beside the diagonal."""
    figure, axes = _figure(2.6, CURVE_MARGINS)
    axes.plot([0.5, 1], [0.5, 1], color=MUTED, linewidth=1, label="as often as said")
    said, was = ([one[field] for one in bins] for field in ("confidence", "accuracy"))
    axes.plot(said, was, color=SERIES[0], marker="o", markersize=4, label="held-out pairs")
    axes.set_xlabel("probability")
    axes.legend(loc="best")
    return _svg(figure, title)


@_plot
def paired_bars(
    title: str, labels: Sequence[str], requested: Sequence[float], achieved: Sequence[float]
) -> Figure:
    """Requested beside achieved counts, one pair of horizontal bars per label."""
    figure, axes = _figure(0.9 + 0.42 * len(labels))
    positions = range(len(labels))
    sides = (-0.19, requested, MUTED, "requested"), (0.19, achieved, SERIES[0], "achieved")
    for offset, counts, colour, side in sides:
        places = [position + offset for position in positions]
        axes.barh(places, counts, height=0.36, color=colour, label=side)
    axes.set_xlabel("examples")
    figure.legend(loc="outside lower center", ncols=2)
    return _of_rows(figure, axes, labels, title)


@_plot
def stage_times(title: str, stages: Sequence[tuple[str, float, str]]) -> Figure:
    """Seconds per stage as horizontal bars: `(name, seconds, status)`; cached stages are grey,
    failed ones red."""
    labels = [_wrapped(name) for name, _, _ in stages]
    figure, axes = _figure(0.6 + (0.1 + 0.16 * _lines(labels)) * len(stages))
    colours = {"ran": SERIES[0], "failed": BAD}
    longest = max((seconds for _, seconds, _ in stages), default=0.0) or 1.0
    for position, (_, seconds, status) in enumerate(stages):
        axes.barh(position, seconds, height=0.66, color=colours.get(status, MUTED))
        text = f"{seconds:.1f} s" if status == "ran" else f"{seconds:.1f} s, {status}"
        _label(axes, text, (seconds, position), (3, 0), va="center")
    axes.set_xlim(0, longest * 1.35)
    axes.set_xlabel("seconds in this run")
    return _of_rows(figure, axes, labels, title)


@_plot
def rate_plane(title: str, points: Sequence[Point], x_label: str, y_label: str) -> Figure:
    """Two rates against each other (safety against helpfulness), both with 95% intervals; the axes
    are percent."""
    figure, axes = _figure(3.3)
    for number, point in enumerate(points):
        colour = MUTED if point.control else SERIES[number % len(SERIES)]
        x, y, across, up = point.x.value, point.y.value, point.x.interval, point.y.interval
        axes.plot([100 * across.low, 100 * across.high], [100 * y] * 2, color=colour, linewidth=1)
        axes.plot([100 * x] * 2, [100 * up.low, 100 * up.high], color=colour, linewidth=1)
        inside = "none" if point.control else colour
        look: dict[str, Any] = {"marker": "o", "markersize": 7, "markerfacecolor": inside}
        axes.plot(100 * x, 100 * y, color=colour, **look)
        side = "right" if x > 0.5 else "left"
        above = (7 if y < 0.8 else -11) + 12 * (number % 2)  # neighbours do not cover each other
        offset = -8 if side == "right" else 8, above
        _label(axes, _wrapped(point.label, 18), (100 * x, 100 * y), offset, ha=side)
    axes.set(xlim=(-4, 104), ylim=(-4, 104), xlabel=x_label, ylabel=y_label)
    return _svg(figure, title)


def lineage(
    title: str,
    depth: Mapping[str, int],
    edges: Sequence[tuple[str, str]],
    status: Mapping[str, str],
) -> Figure:
    """Draw which artifact feeds which: stages from top to bottom by `depth` (0 = no inputs), one
    arrow per `(source, stage)`; a stage's frame tells its status."""
    drawn = _lineage(title, depth, edges)
    frames, svg = {"ran": _CSS[SERIES[0]], "failed": _CSS[BAD]}, str(drawn.svg)
    for number, stage in enumerate(depth):
        svg = svg.replace(_frame(number), frames.get(status.get(stage, ""), _CSS[MUTED]))
    return Figure(drawn.title, Markup(svg))


def _frame(number: int) -> str:
    """The placeholder of a stage's colour in a lineage."""
    return f"#0b{number:04x}"


@_plot
def _lineage(title: str, depth: Mapping[str, int], edges: Sequence[tuple[str, str]]) -> Figure:
    layers: dict[int, list[str]] = {}
    for stage, layer in depth.items():
        layers.setdefault(layer, []).append(stage)
    labels = {
        stage: _wrapped(stage, max(5, 60 // (len(stages) + 1) - 2))
        for stages in layers.values()
        for stage in stages
    }
    figure, axes = _figure(0.5 + (0.42 + 0.13 * _lines(labels.values())) * len(layers))
    place = {
        stage: ((index + 1) / (len(stages) + 1), -layer)
        for layer, stages in layers.items()
        for index, stage in enumerate(stages)
    }
    for source, stage in edges:
        # an arrow over several layers goes around the boxes between
        bend = 0.0 if depth[stage] - depth[source] == 1 else 0.25
        style: dict[str, Any] = {"arrowstyle": "->", "connectionstyle": f"arc3,rad={bend}"}
        style |= {"color": MUTED, "shrinkA": 9, "shrinkB": 9}
        axes.annotate("", place[stage], place[source], arrowprops=style)
    for number, stage in enumerate(depth):
        x, y = place[stage]
        box = {"boxstyle": "round,pad=0.35", "facecolor": CARD, "edgecolor": _frame(number)}
        axes.text(x, y, labels[stage], ha="center", va="center", fontsize=8, bbox=box)
    axes.set(xlim=(0, 1), ylim=(-max(layers, default=0) - 0.5, 0.5))
    axes.axis("off")
    return _svg(figure, title)


MOST_POINTS = 500
"""The most points of a line, on some 300 pixels: dozens of curves of a thousand steps would be most
of the page's bytes."""

CURVE_MARGINS = {"left": 0.17, "right": 0.985, "bottom": 0.2, "top": 0.9}
"""Room around a curve for ticks of eight characters. There are dozens of curves, and fitting
margins takes longer than drawing one."""


def _wrapped(label: str, width: int = 24) -> str:
    """A name in lines of at most `width` characters, which end after underscores where they can."""
    return "\n".join(textwrap.wrap(label.replace("_", "_ "), width)).replace("_ ", "_")


def _lines(labels: Iterable[str]) -> int:
    """The lines of the label that has most."""
    return max((label.count("\n") + 1 for label in labels), default=1)


def _label(
    axes: "Axes", text: str, at: tuple[float, float], offset: tuple[float, float], **align: Any
) -> None:
    axes.annotate(text, at, xytext=offset, textcoords="offset points", **align)


def _figure(height: float, margins: Mapping[str, float] | None = None) -> "tuple[Drawing, Axes]":
    """An empty figure 4 inches wide and `height` inches high, in the report's style; by default its
    margins fit."""
    from matplotlib.figure import Figure as Drawing

    figure = Drawing(figsize=(4.0, height), layout=None if margins else "constrained")
    if margins:
        figure.subplots_adjust(**margins)
    return figure, figure.add_subplot()


def _of_rows(figure: "Drawing", axes: "Axes", labels: Sequence[str], title: str) -> Figure:
    """A drawing whose rows have names, the first one at the top."""
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return _svg(figure, title)


def _svg(figure: "Drawing", title: str) -> Figure:
    """The drawing as an SVG that takes the width of its place."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": title}):
        FigureCanvasSVG(figure).print_svg(out, metadata={"Date": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' id="[A-Za-z][A-Za-z0-9.]*_\d+"', "", text)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    # a hundredth of a point is enough
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), text)
    for colour, css in _CSS.items():
        text = text.replace(colour, css)
    named = tag("svg", role="img", aria_label=title).removesuffix("></svg>")
    return Figure(title, Markup(text.replace("<svg", named, 1)))
