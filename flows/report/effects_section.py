"""The report's numbers: headline rates, what each stage changed per suite and domain, and what
every model reached.

Like all `*_section` modules: each function turns a run into what a section
(`flows/report/sections`) shows, and returns nothing (an empty list or None) where the run has
nothing to say.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from markupsafe import Markup

from flows.report import plots, rates
from flows.report.rates import Row, Side, Table
from flows.runs.effects import (
    ALL,
    EXACT,
    FORMAT,
    METRICS,
    SAFE,
    Effect,
    Metric,
    Part,
    outcomes,
    overall_effect,
    part_effects,
    stage_effects,
    suite_effects,
)
from flows.runs.results import RunResults
from flows.runs.wording import TONES, Tone, bounds, percent, points, sample_text
from tasks.contract.plugins import evaluation_of
from tasks.statistics.intervals import Rate


@dataclass(frozen=True)
class Tile:
    """One headline: a rate before and after the whole run; `suites` the same of each suite, where
    there are several."""

    label: str
    before: str | None
    after: str
    intervals: str
    change: str
    basis: str
    tone: Tone
    suites: list[tuple[str, str, str, Tone]]


def tiles(run: RunResults) -> list[Tile]:
    """The headline rates, base -> final, or the one level there is."""
    return [tile for metric in (EXACT, FORMAT, SAFE) if (tile := _tile(run, metric))]


def _tile(run: RunResults, metric: Metric) -> Tile | None:
    effect = overall_effect(run, metric)
    if effect:
        change = effect.change
        intervals = (
            f"{effect.since} {bounds(change.before.interval)}, {effect.stage}"
            f" {bounds(change.after.interval)}"
        )
        gained = f"{points(change.delta)} points {bounds(change.interval, signed=True)}"
        before, after = percent(change.before.value), percent(change.after.value)
        suites = [_suite(suite, one) for suite, one in suite_effects(run, metric).items()]
        return Tile(
            metric.label,
            before,
            after,
            intervals,
            gained,
            sample_text(change),
            TONES[effect.direction],
            suites,
        )
    for model in run.evaluated(metric.kind):
        rate = Rate.of(outcomes(model.items(metric.kind), metric).values())
        if rate:
            basis = f"{rate.n} prompts; nothing to compare with"
            return Tile(
                metric.label,
                None,
                percent(rate.value),
                f"{model.name} {bounds(rate.interval)}",
                "",
                basis,
                "plain",
                [],
            )
    return None


def _suite(suite: str, effect: Effect) -> tuple[str, str, str, Tone]:
    change = effect.change
    levels = f"{percent(change.before.value)} → {percent(change.after.value)}"
    return (
        suite,
        levels,
        f"{points(change.delta)} {bounds(change.interval, signed=True)}",
        TONES[effect.direction],
    )


@dataclass(frozen=True)
class Cell:
    """One cell of the heat map: a change over `n` prompts. `strength` (percent) is how deep its
    colour is."""

    delta: str
    interval: str
    levels: str
    n: int
    tone: Tone
    strength: int


@dataclass(frozen=True)
class HeatMap:
    """(Suite, domain) x stage: what each stage changed in one metric. A row is a part and, where
    all its cells agree, their n."""

    title: str
    columns: list[str]
    rows: list[tuple[Part, int | None, list[Cell | None]]]


def heat_maps(run: RunResults) -> list[HeatMap]:
    """For each metric, every trained stage's change overall and per suite and domain; metrics that
    no stage has are left out."""
    maps = []
    for metric in METRICS:
        overall = stage_effects(run, metric)
        if overall:
            found: dict[Part, dict[str, Effect]] = {ALL: overall, **part_effects(run, metric)}
            stages = [f"{effect.stage} since {effect.since}" for effect in overall.values()]
            maps.append(
                HeatMap(
                    metric.label,
                    stages,
                    [_row(part, effects, list(overall)) for part, effects in found.items()],
                )
            )
    return maps


def _row(
    part: Part, effects: Mapping[str, Effect], stages: Sequence[str]
) -> tuple[Part, int | None, list[Cell | None]]:
    cells = [_cell(effects[stage]) if stage in effects else None for stage in stages]
    sizes = {cell.n for cell in cells if cell}
    return part, sizes.pop() if len(sizes) == 1 else None, cells


def _cell(effect: Effect) -> Cell:
    change = effect.change
    tone = TONES[effect.direction]
    strength = 0 if tone == "flat" else round(12 + 48 * min(1.0, abs(change.delta)))
    levels = f"{100 * change.before.value:.1f} → {100 * change.after.value:.1f}"
    return Cell(
        points(change.delta),
        bounds(change.interval, signed=True),
        levels,
        change.after.n,
        tone,
        strength,
    )


def waterfalls(run: RunResults) -> list[Markup]:
    """Stage contributions to exact answer and format along the chain that leads to the last
    evaluated model."""
    return [
        plot
        for metric in (EXACT, FORMAT)
        if (plot := _waterfall(run, metric, stage_effects(run, metric), ""))
    ]


def suite_waterfalls(run: RunResults) -> list[Markup]:
    """The same of exact answers in each suite, where there are several."""
    found = [
        (part.suite, effects)
        for part, effects in part_effects(run, EXACT).items()
        if part.suite and part.domain is None
    ]
    return [
        plot
        for suite, effects in found
        if (plot := _waterfall(run, EXACT, effects, f" in {suite}"))
    ]


def _waterfall(
    run: RunResults, metric: Metric, effects: Mapping[str, Effect], where: str
) -> Markup | None:
    chain = run.evaluated(metric.kind)[-1:]
    while chain and (ancestor := run.evaluated_ancestor(chain[0], metric.kind)):
        chain = [ancestor, *chain]
    found = [effects[model.name] for model in chain[1:] if model.name in effects]
    if not found or len(found) != len(chain) - 1:
        return None
    first, last = found[0].change.before.value, found[-1].change.after.value
    steps = [plots.Step(found[0].since, first, percent(first))]
    for effect in found:
        change = effect.change
        steps.append(
            plots.Step(
                effect.stage,
                change.after.value,
                points(change.delta),
                change.delta,
                change.interval,
                effect.direction,
            )
        )
    steps.append(plots.Step("final", last, percent(last)))
    return plots.waterfall(
        steps, f"{metric.label.capitalize()}{where}: what each stage contributed"
    )


def levels(run: RunResults) -> Table | None:
    """What each model reached, by suite, and how long its answers are; None without a reasoning
    evaluation."""
    sides = [Side(model.name, model.items(EXACT.kind)) for model in run.evaluated(EXACT.kind)]
    if not sides:
        return None
    groups = rates.by_suite(sides)
    table = rates.table(sides, evaluation_of("reasoning_eval").outcomes, groups)
    for (_, rows), chosen in zip(table.groups, groups.values(), strict=True):
        rows.append(Row("tokens", [_mean([item.tokens for item in items]) for items in chosen]))
        traces = [
            [item.reasoning_tokens for item in items if item.reasoning_tokens is not None]
            for items in chosen
        ]
        rows.append(Row("tokens of the reasoning", [_mean(lengths) for lengths in traces]))
    return table


def _mean(lengths: Sequence[int]) -> tuple[str, str]:
    return (f"{fmean(lengths):.1f}", "mean") if lengths else ("–", "")
