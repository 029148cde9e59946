"""Shows runs side by side, as a page and on a terminal: the results of `flows.runs.compare`, one
column a run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.report import blocks as ui
from flows.report import plots
from flows.report.html import page, write_page
from flows.report.page import missing
from flows.report.rates import change_cell, level_text, unit_label
from flows.runs.compare import ABSENT_STAGE, pairing_text
from flows.runs.effects import ALL, Part
from flows.runs.record import run_folder
from flows.runs.wording import amount, bounds, duration, gap, level
from infra.store.store import Store
from schemas.base import digest
from tasks.statistics.intervals import Interval

ABSENT = "–"
"""Stands for a field that one side lacks; an existing null shows as None."""


def render_comparison(store: Store, comparisons: Sequence[dict[str, Any]]) -> str:
    """Write the result of `compare_runs` as `runs/<a>/compare-<b>.html` and return its place: a
    path, or a `gs://` URI.

    Raises:
        InputError: the store is full or cannot be written.
    """
    runs = [comparisons[0]["a"]["run_id"], *(one["b"]["run_id"] for one in comparisons)]
    last = runs[1] if len(runs) == 2 else f"{len(runs) - 1}-runs-{digest(runs[1:])[:8]}"
    name = f"{run_folder(runs[0])}/compare-{last}.html"
    words = {2: "Two", 3: "Three", 4: "Four"}.get(len(runs), str(len(runs)))
    head = [ui.Heading(f"{words} runs compared", 1)]
    written = page(", ".join(runs), head, list(comparison_blocks(comparisons)))
    return write_page(store, name, written)


def comparison_blocks(comparisons: Sequence[dict[str, Any]]) -> Iterator[ui.Block]:
    """The result of `compare_runs`, with a column for each run."""
    runs = [comparisons[0]["a"], *(one["b"] for one in comparisons)]
    rows = [_run_row(number, run) for number, run in enumerate(runs, start=1)]
    yield ui.card(ui.Table(("", *ui.words(*_WORDS), "time", "list price, USD"), rows))
    for one in comparisons:
        for stage, why in one["left_out"].items():
            yield missing(stage, why, "comparison")
    yield ui.Heading("Verdict")
    rates = list(rate_tables(comparisons))
    for number, one in enumerate(comparisons, start=2):
        if len(comparisons) > 1 and rates:
            yield ui.Heading((f"{number}: ", ui.code(one["b"]["run_id"]), " against the first"), 3)
        if said := pairing_text(one["pairing"]):
            yield said
        yield ui.Sentences([(sentence["tone"], sentence["text"]) for sentence in one["verdict"]])
        if one["over_seeds"] and one["over_seeds"]["metrics"]:
            yield "These sentences compare one run with one. Over the seeds of both groups:"
            yield ui.card(seeds_table(one["over_seeds"]))
    yield from ui.grid(forests(comparisons))
    for title, table in rates:
        yield ui.Details(title, [table], open=title == _OVERALL)
    yield ui.Paragraph(_DIFFERENCE, "note") if rates else "The runs have no evaluation in common."
    yield ui.Heading("Recipes")
    recipes = recipe_table(comparisons)
    if count := len(recipes.rows):
        yield f"Fields that differ: {count:,}."
        yield ui.Details("The fields", [recipes], open=count <= _MOST_FIELDS)
    else:
        yield "The recipes are the same."
    yield ui.Heading("Time and cost")
    yield ui.card(stage_table(comparisons))


_MOST_FIELDS = 40
"""More are folded: of two recipes that have little in common nearly every field differs."""
_WORDS = ("run", "recipe", "model", "target", "status")
_OVERALL, _INSIDE = "Over all prompts", "By suite and domain"
_OWN = "Metric functions, in their own units"
_DIFFERENCE = (
    "A difference is a run minus the first, over the prompts that both asked where nothing else is"
    " said, in which case the rates are theirs alone; “against” is the first run's over them,"
    " where it is not that of column 1. A difference is coloured where its 95% interval leaves"
    " out zero and its p-value is at most 5% after Holm's correction: over all prompts, over every"
    " metric and model of this comparison, and the verdict's sentences count as their rows do; by"
    " suite and domain, over those of its metric. Intervals: a bootstrap over the shared prompts;"
    " unpaired, Newcombe's; over seeds, Student's, and unpaired, Welch's."
)
Row = dict[str, Any]


def _run_row(number: int, run: Row) -> tuple[ui.Text, ...]:
    took = "" if run["seconds"] is None else duration(run["seconds"])
    cost = ABSENT if run["cost_usd"] is None else f"{run['cost_usd']:.2f}"
    texts = (run[field] for field in _WORDS[1:])
    return str(number), ui.code(run["run_id"]), *texts, took, cost


def seeds_table(found: Row) -> ui.Table:
    """Differences over seeds, paired, and for comparison unpaired."""
    seeds = ", ".join(map(str, found["seeds"]))
    title = f"Over seeds, paired: {seeds}" if seeds else "Over seeds, which differ: unpaired"
    rows: list[Sequence[ui.Text | ui.Cell]] = []
    for row in found["metrics"]:
        quantity, interval = row["quantity"], Interval(row["low"], row["high"])
        alone = ["unpaired"] * (not row["paired"])
        value = change_cell(row["value"], interval, row["direction"], quantity, *alone)
        floor = ABSENT if row["sd"] is None else gap(row["sd"], quantity).removeprefix("+")
        unpaired = bounds(Interval(**row["unpaired"]), True, quantity)
        label = unit_label(row["label"], quantity)
        if row["same_answers"]:
            same = ui.small("the same answers")
            rows.append((label, row["model"], str(row["n"]), same, ABSENT, ABSENT))
            continue
        rows.append((label, row["model"], str(row["n"]), value, floor, unpaired))
    numbers = ("seeds", "difference, points", "its noise floor", "unpaired")
    return ui.Table(("metric", ui.Column("model", "text"), *numbers), rows, title)


def rate_tables(comparisons: Sequence[Row]) -> Iterator[tuple[str, ui.Table]]:
    """The rates over all prompts, those in parts, and metric functions: (title, table)."""
    found: dict[tuple[str, str, str, Part], list[Row | None]] = {}
    for number, one in enumerate(comparisons):
        for row in one["metrics"]:
            part = Part(row["suite"], row["domain"])
            place = row["kind"], row["metric"], row["model"], part
            found.setdefault(place, [None] * len(comparisons))[number] = row
    rows: dict[str, list[tuple[ui.Text | ui.Cell, ...]]] = {_OVERALL: [], _INSIDE: [], _OWN: []}
    for (*_, model, part), sides in found.items():
        row = next(filter(None, sides))
        first = _rate_text(row["a"], row["quantity"])
        title = _OWN if row["quantity"] else _OVERALL if part == ALL else _INSIDE
        rows[title].append((row["label"], model, part.label, first, *_sides(sides, row["a"])))
    for title, shown in rows.items():
        difference = "difference" if title == _OWN else "difference, points"
        numbers = range(2, len(comparisons) + 2)
        others = (one for number in numbers for one in (str(number), difference))
        if shown:
            yield title, ui.Table(("metric", *ui.words("model", "prompts"), "1", *others), shown)


def _sides(rows: Sequence[Row | None], first: Row) -> Iterator[ui.Text | ui.Cell]:
    """The rate of each run except the first, and the difference. `first`: the first run's rate as
    it is shown; over other prompts it has another, which stands below the difference."""
    for row in rows:
        if row is None:
            yield from ("–", "–")
            continue
        yield _rate_text(row["b"], row["quantity"])
        if row["same_answers"]:
            yield ui.small("the same answers")
            continue
        change = row["difference"]
        interval = Interval(change["low"], change["high"])
        unpaired = f"{row['a']['n']:,} and {row['b']['n']:,}, unpaired"
        asked = [amount(row["b"]["n"], "prompt") if row["paired"] else unpaired]
        asked += [f"against {level(row['a']['value'], row['quantity'])}"] * (row["a"] != first)
        yield change_cell(change["value"], interval, row["direction"], row["quantity"], *asked)


def _rate_text(rate: Mapping[str, float], quantity: bool) -> ui.Text:
    return level_text(rate["value"], Interval(rate["low"], rate["high"]), quantity)


def recipe_table(comparisons: Sequence[Row]) -> ui.Table:
    """Fields in which the recipes differ, with their value in each run."""
    fields: dict[str, list[Any]] = {}
    for number, one in enumerate(comparisons, start=1):
        for row in one["recipes"]:
            first = row.get("a", ABSENT)
            values = fields.setdefault(row["field"], [first] * (len(comparisons) + 1))
            values[number] = row.get("b", ABSENT)
    columns = [ui.Column(str(n), "wrap") for n in range(1, len(comparisons) + 2)]
    return ui.Table(
        ["field", *columns], [(field, *map(str, values)) for field, values in fields.items()]
    )


def stage_table(comparisons: Sequence[Row]) -> ui.Table:
    """The time of each stage in each run, and which artifacts are the first run's."""
    stages: dict[str, list[ui.Text]] = {}
    for number, one in enumerate(comparisons, start=1):
        for row in one["stages"]:
            absent = [_side_text(ABSENT_STAGE, False)] * len(comparisons)
            sides = stages.setdefault(row["stage"], [_side_text(row["a"], False), *absent])
            sides[number] = _side_text(row["b"], row["same_artifact"])
    columns = ui.words(*(str(n) for n in range(1, len(comparisons) + 2)))
    return ui.Table(["stage", *columns], [(stage, *sides) for stage, sides in stages.items()])


def _side_text(side: Mapping[str, Any], same: bool) -> ui.Text:
    took = "" if side["seconds"] is None else f" {duration(side['seconds'])}"
    cost = "" if side["cost_usd"] is None else f", {side['cost_usd']:.2f} USD"
    made = "" if side["made_in"] is None else f"made in {duration(side['made_in'])}"
    return f"{side['status']}{took}{cost}", ui.small("the first run's artifact" if same else made)


def forests(comparisons: Sequence[Row]) -> list[ui.Figure]:
    """A forest plot for each rate, over all prompts."""
    bars: dict[str, list[plots.Bar]] = {}
    for number, one in enumerate(comparisons, start=2):
        for row in one["metrics"]:
            whole = (row["suite"], row["domain"]) == ALL
            if whole and not row["same_answers"] and not row["quantity"]:
                model = f"{row['model']}, run {number}" if len(comparisons) > 1 else row["model"]
                bar = plots.Bar(model, **row["difference"], direction=row["direction"])
                bars.setdefault(row["label"], []).append(bar)
    title = "difference from the first run, percentage points"
    return [plots.forest(f"{name.capitalize()}: {title}", found) for name, found in bars.items()]
