"""A drawing with two axes as SVG, to stand inline in a page: its colours are the style sheet's, so
that one drawing is legible in light and in dark mode, and its text is text in the page's font.

Written by hand: matplotlib takes 43 ms for a curve and this three, and a run of a hundred stages
has a hundred curves. Lengths are points, of which a drawing has 288 in its width, so that
labels stay readable on a phone.
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
_EDGE, _LINE = 6.0, FONT + 4

INK, MUTED, CARD = "currentColor", "var(--muted)", "var(--card)"
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
    def between(cls, low: float, high: float, label: str = "", *, whole: bool = False) -> "Axis":
        """An axis with some five ticks, at round numbers."""
        least = (high - low) / 5.5
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
        self._x, self._y, self._marks = x, y, list[Markup]()
        widest = _CHARACTER * max(map(len, y.ticks.values()), default=0)
        last = _CHARACTER * len(list(x.ticks.values())[-1]) / 2 if x.ticks else 0.0
        self._left = min(_EDGE + widest + (_LINE if y.label else 0), 0.7 * WIDTH)
        self._right = WIDTH - max(_EDGE, last if x.grid else 0.0)
        self._top = _EDGE
        self._bottom = height - _EDGE / 2 - _LINE * (bool(x.ticks) + bool(x.label))
        self._height = height
        self._frame()
        self._legend(legend or {})

    def line(
        self,
        xs: Iterable[float],
        ys: Iterable[float],
        colour: str,
        width: float = 1.4,
        *,
        dots: float = 0.0,
        dashed: bool = False,
    ) -> None:
        """A line through points, which are `dots` wide."""
        places = [self._at(*point) for point in zip(xs, ys, strict=True)]
        dash = "; stroke-dasharray: 1 2" if dashed else ""
        style = f"fill: none; stroke: {colour}; stroke-width: {width}{dash}"
        self._mark("polyline", points=_points(places), style=style)
        for x, y in places if dots else ():
            self._mark("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=f"{dots / 2}", fill=colour)

    def area(self, points: Iterable[tuple[float, float]], colour: str, strength: float) -> None:
        """What a line around points encloses, so opaque (0 to 1)."""
        places = _points(self._at(*point) for point in points)
        self._mark("polygon", points=places, style=f"fill: {colour}; opacity: {strength}")

    def bar(
        self, x: tuple[float, float], y: tuple[float, float], colour: str, strength: float = 1.0
    ) -> None:
        """A rectangle."""
        self.area([(x[0], y[0]), (x[1], y[0]), (x[1], y[1]), (x[0], y[1])], colour, strength)

    def ring(self, x: float, y: float, colour: str, *, filled: bool) -> None:
        """A large point."""
        across, up = self._at(x, y)
        style = f"stroke: {colour}; fill: {colour if filled else 'none'}"
        self._mark("circle", cx=f"{across:.1f}", cy=f"{up:.1f}", r="3.5", style=style)

    def text(
        self, x: float, y: float, text: str, anchor: str, right: float = 0.0, up: float = 0.0
    ) -> None:
        """Text beside a point: `start`, `middle` or `end` of it there, so far to the right and
        up."""
        across, height = self._at(x, y)
        self._text(across + right, height - up, text, anchor)

    def box(self, x: float, y: float, text: str, colour: str) -> None:
        """Text in a frame around a point."""
        (across, up), wide = self._at(x, y), _CHARACTER * len(text) + 8
        place = {"x": across - wide / 2, "y": up - 8, "width": wide, "height": 16, "rx": 3}
        style = f"fill: {CARD}; stroke: {colour}"
        self._mark("rect", **{key: f"{at:.1f}" for key, at in place.items()}, style=style)
        self._text(across, up + FONT / 3, text, "middle")

    def arrow(self, start: tuple[float, float], end: tuple[float, float], bend: float) -> None:
        """From below one box to above another, bent to the left by so much."""
        (x, y), (to_x, to_y) = self._at(*start), self._at(*end)
        y, to_y = y + 8, to_y - 9
        middle = f"{(x + to_x) / 2 - bend:.1f},{(y + to_y) / 2:.1f}"
        head = f"M{to_x - 3:.1f},{to_y - 5:.1f} L{to_x:.1f},{to_y:.1f} l3,-5"
        drawn = f"M{x:.1f},{y:.1f} Q{middle} {to_x:.1f},{to_y:.1f} {head}"
        self._mark("path", d=drawn, style=f"fill: none; stroke: {MUTED}")

    def figure(self, title: str) -> Figure:
        """The drawing as it is now. Equal marks give equal bytes."""
        svg = tag(
            "svg",
            *self._marks,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {WIDTH:.0f} {self._height:.0f}",
            font_size=f"{FONT}",
            fill=INK,
            role="img",
            aria_label=title,
        )
        return Figure(title, svg)

    def _at(self, x: float, y: float) -> tuple[float, float]:
        across = (x - self._x.low) / (self._x.high - self._x.low)
        up = (y - self._y.low) / (self._y.high - self._y.low)
        left, bottom = self._left, self._bottom
        return left + across * (self._right - left), bottom - up * (bottom - self._top)

    def _mark(self, element: str, *inside: str, **attributes: str) -> None:
        self._marks.append(tag(element, *inside, **attributes))

    def _text(self, x: float, y: float, text: str, anchor: str, turned: str = "") -> None:
        place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text_anchor": anchor, "transform": turned}
        self._mark("text", text, **place)

    def _frame(self) -> None:
        """Both axes, their ticks, labels and grids."""
        x, y, bottom = self._x, self._y, self._bottom
        grid = "fill: none; stroke-width: 0.6; stroke: var(--line)"
        for value, text in x.ticks.items():
            at, _ = self._at(value, y.low)
            if x.grid:
                ends = [(at, self._top), (at, bottom)]
                self._mark("polyline", points=_points(ends), style=grid)
            self._text(at, bottom + FONT + 2, text, "middle")
        for value, text in y.ticks.items():
            _, at = self._at(x.low, value)
            if y.grid:
                ends = [(self._left, at), (self._right, at)]
                self._mark("polyline", points=_points(ends), style=grid)
            self._text(self._left - 4, at + FONT / 3, text, "end")
        if x.ticks or y.ticks:
            corner = [(self._left, self._top), (self._left, bottom), (self._right, bottom)]
            style = f"fill: none; stroke: {MUTED}; stroke-width: 0.8"
            self._mark("polyline", points=_points(corner), style=style)
        if x.label:
            self._text((self._left + self._right) / 2, self._height - 5, x.label, "middle")
        if y.label:
            up = (self._top + bottom) / 2
            self._text(FONT, up, y.label, "middle", f"rotate(-90 {FONT} {up:.1f})")

    def _legend(self, legend: Mapping[str, str]) -> None:
        """Below the plot, in as many lines as it takes."""
        across, needed = WIDTH, 0.0
        for name, colour in legend.items():
            needed = 30 + _CHARACTER * len(name)
            if across + needed > WIDTH:
                across, self._height = self._left, self._height + _LINE
            place = {"x": f"{across:.1f}", "y": f"{self._height - 11:.1f}"}
            self._mark("rect", **place, width="14", height="4", fill=colour)
            self._text(across + 18, self._height - 6, name, "start")
            across += needed


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
