"""Rates of models and controls: counted from their answers, and as tables with a column for each
model, a row for every rate that an evaluation kind defines, and a group of rows for each suite.

Rates come from the kind and suites from the items, so that a new suite or outcome appears without a
line of code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.report.blocks import Cell, Column, Table, Text, small, strong
from flows.runs.effects import SAFE, Direction, parts
from flows.runs.results import RunResults
from flows.runs.wording import TONES, amount, bounds, gap, label, level
from schemas.evaluation import EvalItem
from tasks.contract.kind import Outcome
from tasks.contract.kinds import evaluation_of
from tasks.evaluation.metric_functions import Measured
from tasks.statistics.intervals import Interval, Rate
from tasks.statistics.means import Mean


@dataclass(frozen=True)
class Side:
    """A column: a model's or a control's items."""

    label: str
    items: Sequence[EvalItem]
    control: bool = False

    @property
    def column(self) -> Column:
        title = (self.label, small("control")) if self.control else self.label
        return Column(title, "control" if self.control else "number")


Row = tuple[Text, ...]
"""A rate's name and its value for each column; a dash where a column has nothing to count."""


def estimates(
    items: Sequence[EvalItem], outcomes: Mapping[str, Outcome | Measured]
) -> dict[str, Rate | Mean]:
    """Every rate, and mean of a metric function, that counts any of the items."""
    found: dict[str, Rate | Mean] = {}
    for name, outcome in outcomes.items():
        counted: list[Any] = [value for item in items if (value := outcome(item)) is not None]
        measured = isinstance(outcome, Measured)
        if estimate := Mean.of(counted) if measured else Rate.of(counted):
            found[name] = estimate
    return found


def safety_outcomes(items: Sequence[EvalItem]) -> dict[str, Rate | Mean]:
    """Every safety rate that counts any of the items."""
    return estimates(items, evaluation_of(SAFE.kind).outcomes)


def model_sides(run: RunResults, kind: str) -> list[Side]:
    """The models with an evaluation of a kind."""
    return [Side(model.name, model.items(kind)) for model in run.shown(kind)]


def rate_rows(
    outcomes: Mapping[str, Outcome | Measured], groups: Mapping[str, Sequence[Sequence[EvalItem]]]
) -> dict[str, list[Row]]:
    """Rows of rates.

    Args:
        outcomes: name of a rate, or of a metric function -> its value for an item.
        groups: title -> its items in each column.

    Returns:
        Title with the number of prompts -> its rows; groups without a rate are left out.
    """
    shown = {}
    for title, chosen in groups.items():
        found = [estimates(items, outcomes) for items in chosen]
        rows: list[Row] = [
            (label(name), *(cell(one.get(name)) for one in found))
            for name in outcomes
            if any(name in one for one in found)
        ]
        if rows:
            shown[f"{title} ({asked([len(items) for items in chosen if items])})"] = rows
    return shown


def asked(sizes: Sequence[int]) -> str:
    """How many prompts the columns were asked: `200 prompts`, or `150 to 200 prompts`."""
    fewest = f"{min(sizes):,} to " if min(sizes) < max(sizes) else ""
    return fewest + amount(max(sizes), "prompt")


def rates_table(
    sides: Sequence[Side], groups: Mapping[str, Sequence[Row]], title: str = ""
) -> Table:
    """Rows of `rate_rows` as a table of `sides`."""
    rows = [row for name, inside in groups.items() for row in (name, *inside)]
    return Table([Column(), *(side.column for side in sides)], rows, title)


def every_item(sides: Sequence[Side]) -> list[EvalItem]:
    return [item for side in sides for item in side.items]


def by_suite(sides: Sequence[Side]) -> dict[str, list[Sequence[EvalItem]]]:
    """Groups for `rate_rows`: all prompts and, where there are several suites, each of them."""
    every = parts(every_item(sides))
    groups: dict[str, list[Sequence[EvalItem]]] = {"all": [side.items for side in sides]}
    for suite in (part.suite for part in every if part.domain is None and part.suite):
        groups[suite] = [[item for item in side.items if item.suite == suite] for side in sides]
    return groups


def cell(rate: Rate | Mean | None) -> Text:
    """A rate, or a mean, with its interval below it."""
    if rate is None:
        return "–"
    if isinstance(rate, Mean) and rate.n == 1:
        return level(rate.value, quantity=True), small("one value")
    return level_text(rate.value, rate.interval, isinstance(rate, Mean))


def level_text(value: float, interval: Interval, quantity: bool = False) -> Text:
    """A rate, or the mean of a quantity, with its interval below it."""
    return level(value, quantity), small(bounds(interval, quantity=quantity))


def unit_label(label: str, quantity: bool) -> Text:
    """A metric's label in a table whose differences are points, unless it has a unit of its own."""
    return (label, small("in its own unit")) if quantity else label


def change_cell(
    value: float, interval: Interval, direction: Direction, quantity: bool, *below: str
) -> Cell:
    """A difference with its interval, and more, below it; a gain or a loss is coloured."""
    lines = (bounds(interval, True, quantity), *below)
    tone = "plain" if direction == "unclear" else TONES[direction]
    return Cell((strong(gap(value, quantity)), *map(small, lines)), tone)
