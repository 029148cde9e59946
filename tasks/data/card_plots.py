"""The plots of a data card: SVG files that are the same bytes for the same counts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.data.row_counts import RowCounts

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "lyceum",
    "text.parse_math": False,
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dfe3e8",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
}
_LEVELS = ("#c6dbef", "#9ecae1", "#6baed6", "#3182bd", "#08519c")
_SERIES = ("#2f6fc0", "#d07a1f")


def draw(directory: Path, counts: RowCounts, dropped: Mapping[str, int]) -> dict[str, str]:
    """Write the plots; returns their paths beside the card: `cells`, `lengths` and, where rows were
    dropped, `dropped`."""
    import matplotlib

    directory.mkdir()
    with matplotlib.rc_context(_STYLE):
        figures = {"cells": _cells(counts), "lengths": _lengths(counts.lengths)}
        if dropped:
            figures["dropped"] = _dropped(dropped)
        for name, figure in figures.items():
            undated = {"Date": None, "Creator": None}
            figure.savefig(directory / f"{name}.svg", format="svg", metadata=undated)
    return {name: f"{directory.name}/{name}.svg" for name in figures}


def _figure(height: float, columns: int = 1) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * columns + 1.4, height), layout="constrained", facecolor="white")
    return figure, figure.subplots(1, columns, squeeze=False)[0]


def _cells(of: RowCounts) -> Any:
    """Rows of each group as a horizontal bar, stacked by difficulty."""
    groups = of.groups()
    figure, (axes,) = _figure(1.2 + 0.32 * len(groups))
    left = [0] * len(groups)
    for level, colour in enumerate(_LEVELS, start=1):
        counts = [of.cells[group, level] for group in groups]
        axes.barh(range(len(groups)), counts, left=left, height=0.7, color=colour, label=str(level))
        left = [before + count for before, count in zip(left, counts, strict=True)]
    _name_bars(axes, groups)
    figure.legend(title="difficulty", loc="outside lower center", ncols=5)
    return figure


def _name_bars(axes: Any, names: Sequence[str]) -> None:
    """Name horizontal bars of rows, the first on top."""
    axes.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("rows")


def _lengths(lengths: Mapping[str, Counter[int]]) -> Any:
    """Histograms of prompts and responses over a logarithmic axis; a panel for characters, and one
    for tokens where they were counted."""
    units = sorted({what.partition(", ")[2] for what in lengths})
    figure, panels = _figure(2.8, max(1, len(units)))
    for axes, unit in zip(panels, units, strict=False):
        for colour, part in zip(_SERIES, ("prompt", "response"), strict=True):
            counts = lengths[f"{part}, {unit}"]
            low, high = 2 * min(counts).bit_length() - 2, 2 * max(counts).bit_length() + 2
            bins = [2 ** (edge / 2) for edge in range(low, high)]
            look = {"histtype": "step", "linewidth": 1.5, "color": colour, "label": part}
            axes.hist(list(counts), bins=bins, weights=list(counts.values()), **look)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.set_xlabel(f"length, {unit}")
        axes.set_ylabel("rows")
    if units:
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _dropped(dropped: Mapping[str, int]) -> Any:
    """Rows dropped by cause, most first."""
    causes = sorted(dropped.items(), key=lambda item: (-item[1], item[0]))
    figure, (axes,) = _figure(0.9 + 0.3 * len(causes))
    axes.barh(range(len(causes)), [count for _, count in causes], height=0.7, color="#c53a32")
    _name_bars(axes, [cause for cause, _ in causes])
    return figure
