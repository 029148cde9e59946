"""A drawing with two axes as SVG, to stand inline in a page: its colours are the style sheet's, so
that one drawing is legible in light and in dark mode, and its text is text in the page's font.

Written by hand: matplotlib takes 37 ms for a curve and this 1.3, and a run of a hundred stages has
a hundred curves (docs/measurements.md). Lengths are points, of which a drawing has 288 in its
width, so that labels stay readable on a phone.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from flows.report.blocks import Figure
from flows.report.html import tag

WIDTH = 288.0
FONT = 9.5
_CHARACTER = 0.62 * FONT
"""The width of a character: labels are given so much room, since no font is at hand to ask."""
_EDGE, _ROW = 6.0, FONT + 4

INK, MUTED, GRID, CARD = "currentColor", "var(--muted)", "var(--line)", "var(--card)"
GOOD, BAD = "var(--good)", "var(--bad)"
SERIES = tuple(f"var(--series-{number})" for number in range(1, 5))


@dataclass(frozen=True)
class Axis:
    """From `low` to `high`, which may be the smaller one; `ticks`: value -> text."""

    low: float
    high: float
    ticks: Mapping[float, str] = field(default_factory=dict)
    label: str = ""
    grid: bool = True

    @classmethod
    def of(cls, values: Iterable[float], label: str = "", *, whole: bool = False) -> "Axis":
        """An axis around values; `whole`: ticks at whole numbers only."""
        found = list(values) or [0.0]
        low, high = min(found), max(found)
        room = 0.05 * (high - low) or 0.05 * abs(high) or 0.5
        return cls.between(low - room, high + room, label, whole=whole)

    @classmethod
    def between(
        cls, low: float, high: float, label: str = "", *, whole: bool = False, few: bool = False
    ) -> "Axis":
        """An axis with some five ticks, or `few`, at round numbers."""
        least = (high - low) / (2.5 if few else 5.8)
        power = math.floor(math.log10(least))
        step = next(n * 10.0**power for n in (1, 2, 5, 10) if n * 10.0**power >= least)
        step = max(1.0, step) if whole else step
        ends = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        values = [number * step for number in range(ends[0], ends[1] + 1)]
        return cls(low, high, dict(zip(values, _texts(values, step), strict=True)), label)

    @classmethod
    def named(cls, names: Sequence[str], *, down: bool = False) -> "Axis":
        """A place for each name, from 0 on; `down`: the first one stands above."""
        ends = (len(names) - 0.5, -0.5) if down else (-0.5, len(names) - 0.5)
        return cls(*ends, dict(enumerate(names)), grid=False)


def _texts(values: Sequence[float], step: float) -> list[str]:
    """As many digits as tell neighbours apart."""
    largest = max(map(abs, values), default=0.0) or 1.0
    power = math.floor(math.log10(step) + 1e-9)
    kind = f".{max(0, -power)}f"
    if step < 1e-4 or largest >= 1e6:
        kind = f".{1 + math.floor(math.log10(largest) + 1e-9) - power}g"
    return [format(value, kind).replace("-", "−") for value in values]


class Chart:
    """A drawing. Marks are placed by values on the axes, and the later ones lie above.

    Args:
        height: of all but the legend.
        legend: name -> colour, below the plot.
    """

    def __init__(
        self, height: float, x: Axis, y: Axis, legend: Mapping[str, str] | None = None
    ) -> None:
        self._x, self._y, self._height, self._marks = x, y, height, list[Markup]()
        widest = _CHARACTER * max(map(len, y.ticks.values()), default=0)
        self._left = min(_EDGE + widest + _ROW * bool(y.label), 0.7 * WIDTH)
        last = [*x.ticks.values()][-1:] if x.grid else []
        self._right = WIDTH - max(_EDGE, _CHARACTER * len("".join(last)) / 2)
        self._bottom = height - _EDGE / 2 - _ROW * (bool(x.ticks) + bool(x.label))
        for value, text in x.ticks.items():
            if x.grid:
                self.line([value] * 2, [y.low, y.high], GRID, 0.6)
            self.text(value, y.low, text, "middle", up=-FONT - 2)
        for value, text in y.ticks.items():
            if y.grid:
                self.line([x.low, x.high], [value] * 2, GRID, 0.6)
            self.text(x.low, value, text, "end", right=-4, up=-FONT / 3)
        if x.ticks or y.ticks:
            self.line([x.low, x.low, x.high], [y.high, y.low, y.low], MUTED, 0.8)
        self.text((x.low + x.high) / 2, y.low, x.label, "middle", up=-FONT - 2 - _ROW)
        middle = (_EDGE + self._bottom) / 2
        turned = f"translate({FONT} {middle:.1f}) rotate(-90)"
        self._mark("text", y.label, text_anchor="middle", transform=turned)
        self._legend(legend or {})

    def _legend(self, legend: Mapping[str, str]) -> None:
        """In as many rows as it takes."""
        across = WIDTH
        for name, colour in legend.items():
            if across + 30 + _CHARACTER * len(name) > WIDTH:
                across, self._height = self._left, self._height + _ROW
            low = self._height
            self._mark("rect", x=across, y=low - 11, width=14.0, height=4.0, fill=colour)
            self._mark("text", name, x=across + 18, y=low - 6)
            across += 30 + _CHARACTER * len(name)

    def line(
        self,
        xs: Iterable[float],
        ys: Iterable[float],
        colour: str,
        width: float = 1.4,
        *,
        dots: float = 0.0,
        hollow: bool = False,
        dashed: bool = False,
    ) -> None:
        """A line through points, which are `dots` wide."""
        places = [self._at(*point) for point in zip(xs, ys, strict=True)]
        style = f"fill: none; stroke: {colour}; stroke-width: {width}"
        style += "; stroke-dasharray: 1 2" if dashed else ""
        self._mark("polyline", points=_points(places), style=style)
        inside = "none" if hollow else colour
        for x, y in places if dots else ():
            self._mark("circle", cx=x, cy=y, r=dots / 2, stroke=colour, fill=inside)

    def area(self, points: Iterable[tuple[float, float]], colour: str, strength: float) -> None:
        """What a line around points encloses, so opaque (0 to 1)."""
        places = _points(self._at(*point) for point in points)
        self._mark("polygon", points=places, style=f"fill: {colour}; opacity: {strength}")

    def bar(
        self, x: tuple[float, float], y: tuple[float, float], colour: str, strength: float = 1.0
    ) -> None:
        """A rectangle."""
        self.area([(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1])], colour, strength)

    def text(
        self, x: float, y: float, text: str, anchor: str, right: float = 0.0, up: float = 0.0
    ) -> None:
        """Text beside a point: its `start`, `middle` or `end` is there, so far to the right and
        up."""
        across, height = self._at(x, y)
        self._mark("text", text, x=across + right, y=height - up, text_anchor=anchor)

    def box(self, x: float, y: float, text: str, colour: str) -> None:
        """Text in a frame around a point."""
        (across, up), wide = self._at(x, y), _CHARACTER * len(text)
        place = {"x": across - wide / 2, "y": up - 8, "width": wide, "height": 16.0, "rx": 3.0}
        self._mark("rect", **place, fill=CARD, stroke=colour)
        self._mark("text", text, x=across, y=up + 3, text_anchor="middle", font_size=8.0)

    def arrow(self, start: tuple[float, float], end: tuple[float, float], bend: float) -> None:
        """From below one box to above another, bent to the left by so much."""
        (x, y), (to_x, to_y) = self._at(*start), self._at(*end)
        curve = [((x + to_x) / 2 - bend, (y + to_y) / 2), (to_x, to_y - 9)]
        drawn = f"M{x:.1f},{y + 8:.1f} Q{_points(curve)} m-3,-5 l3,5 l3,-5"
        self._mark("path", d=drawn, style=f"fill: none; stroke: {MUTED}")

    def figure(self, title: str) -> Figure:
        """The drawing as it is now. Equal marks give equal bytes."""
        shape = {"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria_label": title}
        size = f"0 0 {WIDTH:.0f} {self._height:.0f}"
        return Figure(
            title,
            tag("svg", *self._marks, **shape, viewBox=size, font_size=f"{FONT}", fill=INK),
        )

    def _at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self._x.low) / (self._x.high - self._x.low)
        up = (y - self._y.low) / (self._y.high - self._y.low)
        left, bottom = self._left, self._bottom
        return left + across * (self._right - left), bottom - up * (bottom - _EDGE)

    def _mark(self, element: str, *inside: str, **attributes: str | float) -> None:
        written = {
            name: value if isinstance(value, str) else f"{value:.1f}"
            for name, value in attributes.items()
        }
        self._marks.append(tag(element, *inside, **written))


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
