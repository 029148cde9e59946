"""Tables of rates: models (and controls) as columns, every rate that an evaluation kind defines as
rows, one group of rows for each suite.

Rates come from the kind and suites from the items, so a new suite or a new outcome has its place
here without a line of code.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flows.runs.effects import parts
from flows.runs.wording import bounds, label, percent
from schemas.evaluation import EvalItem
from tasks.contract.kind import Outcome
from tasks.statistics.intervals import Rate


@dataclass(frozen=True)
class Side:
    """A column: a model's or a control's items."""

    label: str
    items: Sequence[EvalItem]
    control: bool = False


@dataclass(frozen=True)
class Row:
    """A rate, `(rate, interval)` as text for each column; empty text where a column has nothing to
    count."""

    label: str
    cells: list[tuple[str, str]]


@dataclass(frozen=True)
class Table:
    """Rates by group of prompts. `groups`: (what the prompts are, how many of them in each column
    if that differs, rows)."""

    columns: list[tuple[str, bool]]
    groups: list[tuple[str, list[Row]]]


def counts(items: Sequence[EvalItem], outcomes: Mapping[str, Outcome]) -> dict[str, Rate]:
    """Every rate that counts any of the items."""
    found = {}
    for name, outcome in outcomes.items():
        counted = [judged for item in items if (judged := outcome(item)) is not None]
        if rate := Rate.of(counted):
            found[name] = rate
    return found


def table(
    sides: Sequence[Side],
    outcomes: Mapping[str, Outcome],
    groups: Mapping[str, Sequence[Sequence[EvalItem]]],
) -> Table:
    """The table of `sides`.

    Args:
        sides: the columns.
        outcomes: name of a rate -> what it counts.
        groups: title -> the items of each side that belong to it, in the order of `sides`.
    """
    shown = []
    for title, chosen in groups.items():
        found = [counts(items, outcomes) for items in chosen]
        rows = [
            Row(label(name), [_cell(rates.get(name)) for rates in found])
            for name in outcomes
            if any(name in rates for rates in found)
        ]
        sizes = {len(items) for items in chosen if items}
        asked = (
            " to ".join(f"{size:,}" for size in sorted({min(sizes), max(sizes)})) if sizes else "no"
        )
        if rows:
            shown.append((f"{title} ({asked} prompts)", rows))
    return Table([(side.label, side.control) for side in sides], shown)


def by_suite(sides: Sequence[Side]) -> dict[str, list[Sequence[EvalItem]]]:
    """Groups for `table`: all prompts and, where there are several suites, each of them."""
    suites = [
        part.suite
        for part in parts([item for side in sides for item in side.items])
        if part.domain is None
    ]
    groups: dict[str, list[Sequence[EvalItem]]] = {"all": [side.items for side in sides]}
    for suite in suites:
        if suite is not None:
            groups[suite] = [[item for item in side.items if item.suite == suite] for side in sides]
    return groups


def _cell(rate: Rate | None) -> tuple[str, str]:
    return (percent(rate.value), bounds(rate.interval)) if rate else ("–", "")
