"""The report over seeds: one page for the runs of `lyceum run --seeds`, beside that of each run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from flows.report import blocks as ui
from flows.report import plots
from flows.report.html import page, write_page
from flows.report.page import missing, trouble, written_by
from flows.report.rates import cell, change_cell, level_text
from flows.runs.effects import METRICS, Change, Metric, Part
from flows.runs.record import left, run_folder, run_status
from flows.runs.replicates import Level, Over, Replicates
from flows.runs.wording import (
    TONES,
    Tone,
    bounds,
    difference_text,
    duration,
    gap,
    listed,
    short_model,
)
from infra.store.store import Store
from schemas.reports import RunRecord

_NOTE = (
    "All seeds share the data and the held-out prompts; first weights, adapters, the order of rows"
    " and every sampled answer differ. The mean's brackets are Student's 95% interval over seeds:"
    " what other seeds would give on these prompts. A seed's own brackets are the paired interval"
    " over the prompts of its run: what other prompts would have said of that model. A stage's gain"
    " or loss counts where the interval over seeds leaves out zero and its p-value is at most 5%"
    " after Holm's correction for the number of stages (below: of stages times suites and domains)."
)
_FLOOR = (
    "The noise floor is the standard deviation over seeds. Beside it: how far apart two runs that"
    " differ in nothing but the seed are in 95% of all pairs. A smaller difference between two"
    " single runs of different seeds says nothing."
)


def write_seeds(store: Store, runs: Replicates, absent: Mapping[int, str]) -> str:
    """Write the page beside the first run's report and return its place: a path, or a `gs://` URI.
    `absent`: see `seeds_blocks`.

    Raises:
        InputError: the store is full or cannot be written.
    """
    head, *rest = seeds_blocks(runs, absent)
    record = next(iter(runs.runs.values())).record
    title = f"{record.recipe.name} under {len(runs.runs) + len(absent)} seeds"
    text = page(title, [head], rest, [written_by(record)])
    return write_page(store, f"{run_folder(record.run_id)}/seeds.html", text)


def seeds_blocks(runs: Replicates, absent: Mapping[int, str]) -> Iterator[ui.Block]:
    """The whole page. `absent`: seed -> why it has no run."""
    records = {seed: run.record for seed, run in runs.runs.items()}
    record = next(iter(records.values()))
    count = len(records) + len(absent)
    where = f"{short_model(record.recipe.model)} on {record.target}"
    yield ui.Heading(f"{record.recipe.name} under {count} seeds", 1)
    yield from _troubles(records, absent)
    for name, why in runs.left_out.items():
        yield missing(name, why, "report")
    yield ui.Heading("Verdict")
    sentences = list(verdicts(runs))
    yield ui.Paragraph(f"{where}, seeds {listed([str(seed) for seed in records])}.")
    yield ui.Sentences(sentences) if sentences else _NOTHING
    found = {metric: (runs.overall(metric), runs.stages(metric)) for metric in runs.metrics}
    for metric, (overall, stages) in found.items():
        if stages:
            yield ui.Heading(f"What each stage changed: {metric.label}", 3)
            yield ui.card(effects_table(metric, [*overall, *stages], list(records)))
            if inside := runs.parts(metric):
                table = parts_table(inside, [(one.stage, one.since) for one in stages])
                yield ui.Details("By suite and domain", [table])
    rates = ((metric, stages) for metric, (_, stages) in found.items() if not metric.quantity)
    yield from ui.grid([_forest(metric, stages) for metric, stages in rates if stages])
    yield ui.Paragraph(_NOTE, "note")
    yield from _levels(runs)
    yield ui.Heading("Runs")
    yield ui.card(_runs_table(records))


_NOTHING = (
    "Fewer than two seeds have a stage that was evaluated, so nothing can be said over seeds."
)


def _troubles(records: Mapping[int, RunRecord], absent: Mapping[int, str]) -> Iterator[ui.Block]:
    """Seeds that are missing from some of the numbers, and why."""
    for seed, why in absent.items():
        yield trouble(f"Seed {seed} has no run", why)
    for seed, record in records.items():
        failed = [f"{one.name}: {one.error}" for one in record.stages if one.status == "failed"]
        if failed:
            yield trouble(f"Seed {seed} failed", "\n".join(failed))
        elif record.status != "succeeded":
            rest = f"left: {listed(left(record)) or 'nothing'}; the same command goes on"
            yield trouble(f"Seed {seed}: {run_status(record)}", rest)


def verdicts(runs: Replicates) -> Iterator[tuple[Tone, ui.Text]]:
    """Each stage in one sentence: its first known metric, and others in which it gained or lost."""
    stages: dict[tuple[str, str], list[Over]] = {}
    for metric in METRICS:
        for one in runs.stages(metric):
            stages.setdefault((one.stage, one.since), []).append(one)
    words = {"gain": "a gain", "loss": "a loss", "unclear": "no effect that is more than noise"}
    for (stage, since), (first, *others) in stages.items():
        text = (
            f" since {since}: {first.metric.label} {_mean_text(first)} over {first.spread.n} seeds"
        )
        text += f", noise floor {_size(first.spread.sd, first.metric)}: {words[first.direction]}."
        moved = [one for one in others if one.direction != "unclear"]
        also = [f"{one.metric.label} {_mean_text(one)}" for one in moved]
        text += f" Also: {', '.join(also)}." if also else ""
        yield TONES[first.direction], (ui.strong(stage), text)


def _mean_text(one: Over) -> str:
    return difference_text(one.spread.mean, one.interval, one.metric.quantity)


def _size(value: float, metric: Metric) -> str:
    """A standard deviation or a bound, without a sign."""
    return gap(value, metric.quantity).removeprefix("+")


def effects_table(metric: Metric, found: Sequence[Over], seeds: Sequence[int]) -> ui.Table:
    """A row for each stage: the mean over seeds, the noise floor, and each run's own effect."""
    rows: dict[tuple[str, str], list[ui.Text | ui.Cell]] = {}
    for one in found:
        own = (one.effects.get(seed) for seed in seeds)
        rows[one.stage, one.since] = [
            f"{one.stage} since {one.since}",
            mean_cell(one),
            _size(one.spread.sd, metric),
            f"{one.p:.2g}",
            *("–" if effect is None else _change(effect.change) for effect in own),
        ]
    columns = ("mean over seeds", "noise floor", "p", *(f"seed {seed}" for seed in seeds))
    return ui.Table((ui.Column("stage", "text"), *columns), list(rows.values()))


def mean_cell(one: Over) -> ui.Cell:
    """The mean with its interval and the number of seeds below it."""
    mean, seeds = one.spread.mean, f"{one.spread.n} seeds"
    return change_cell(mean, one.interval, one.direction, one.metric.quantity, seeds)


def _change(change: Change) -> ui.Text:
    """A difference with its interval below it."""
    quantity = change.quantity
    return gap(change.delta, quantity), ui.small(bounds(change.interval, True, quantity))


def parts_table(found: Sequence[Over], stages: Sequence[tuple[str, str]]) -> ui.Table:
    """A row for each suite and domain, a column for each stage."""
    cells: dict[Part, dict[tuple[str, str], Over]] = {}
    for one in found:
        cells.setdefault(one.part, {})[one.stage, one.since] = one
    rows = []
    for part, inside in cells.items():
        shown = (inside.get(stage) for stage in stages)
        rows.append([part.label, *("–" if one is None else mean_cell(one) for one in shown)])
    titles = (f"{stage} since {since}" for stage, since in stages)
    return ui.Table((ui.Column("prompts", "text"), *titles), rows)


def _forest(metric: Metric, stages: Sequence[Over]) -> ui.Figure:
    """The means of a rate."""
    bars = [
        plots.Bar(one.stage, one.spread.mean, **asdict(one.interval), direction=one.direction)
        for one in stages
    ]
    return plots.forest(f"{metric.label.capitalize()}: mean over seeds, percentage points", bars)


def _levels(runs: Replicates) -> Iterator[ui.Block]:
    """Each model's level, and its spread over seeds."""
    groups = {metric: runs.levels(metric) for metric in runs.metrics}
    seeds = list(runs.runs)
    rows: list[Sequence[ui.Text | ui.Cell] | str] = []
    for metric, levels in groups.items():
        if levels:
            rows += [metric.label, *(_level_row(one, seeds) for one in levels)]
    if rows:
        columns = ("mean over seeds", "noise floor", "two seeds differ by up to")
        own = (f"seed {seed}" for seed in seeds)
        yield ui.Heading("Levels and noise")
        yield ui.card(ui.Table((ui.Column("model", "text"), *columns, *own), rows))
        yield ui.Paragraph(_FLOOR, "note")


def _level_row(one: Level, seeds: Sequence[int]) -> list[ui.Text | ui.Cell]:
    spread = one.spread
    return [
        one.model,
        level_text(spread.mean, one.interval, one.metric.quantity),
        _size(spread.sd, one.metric),
        _size(spread.bound, one.metric),
        *(cell(one.rates.get(seed)) for seed in seeds),
    ]


def _runs_table(records: Mapping[int, RunRecord]) -> ui.Table:
    rows = []
    for seed, record in records.items():
        took = duration(record.finished - record.started) if record.finished else ""
        made = sum(stage.status == "ran" for stage in record.stages)
        reused = sum(stage.status == "cached" for stage in record.stages)
        stages = f"{made} ran, {reused} reused"
        rows.append((str(seed), ui.code(record.run_id), run_status(record), stages, took))
    return ui.Table(("seed", *ui.words("run", "status", "stages"), "time"), rows)
