"""Each stage's effect, per suite and domain, and every model's level."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from flows.report import blocks as ui
from flows.report import plots
from flows.report.rates import by_suite, every_item, model_sides, rate_rows, rates_table
from flows.report.section import Section
from flows.runs.effects import (
    ALL,
    EXACT,
    FORMAT,
    Effect,
    Metric,
    Part,
    metrics_of,
    part_effects,
    stage_effects,
)
from flows.runs.results import RunResults
from flows.runs.wording import TONES, bounds, figure, gap, percent, points
from tasks.evaluation import sampled
from tasks.evaluation.metric_functions import outcomes_of

_CELLS = (
    "Each cell: the change, its 95% interval, the rates before and after. Coloured where the effect"
    " holds after Holm's correction: in the first row for the number of stages, below it for the"
    " number of stages times suites and domains. What is not coloured cannot be told from chance."
)
_AT_K = {
    "pass_at_k": "pass@k: one of k answers is right",
    "majority_at_k": "majority@k: what most of k answers say is right",
}


def blocks(run: RunResults) -> list[ui.Block]:
    """Waterfalls, a heat map for each metric, levels, and rates of sampled answers."""
    maps, table = list(heat_maps(run)), levels(run)
    inside = suite_waterfalls(run)
    found = ui.grid(waterfalls(run))
    found += [ui.Details("By suite", ui.grid(inside, "fill", framed=False))] if inside else []
    for place, (metric, one) in enumerate(maps):
        summary = f"{metric.label.capitalize()}: change in percentage points"
        if metric.quantity:
            summary = f"{metric.label}, a metric function: change in its own unit"
        found.append(ui.Details(summary, [one], open=place == 0 or len(one.rows) < 3))
    found += [ui.Paragraph(_CELLS, "note")] if maps else []
    found += [ui.card(table)] if table else []
    return found + ui.grid(sampled_plots(run))


def heat_maps(run: RunResults) -> Iterator[tuple[Metric, ui.Table]]:
    """For each metric that a stage has, every trained stage's change overall and per suite and
    domain, and the last one's lead over models that saw worked examples."""
    for metric in metrics_of(run):
        overall = stage_effects(run, metric) | stage_effects(run, metric, "examples")
        if overall:
            inside, beyond = part_effects(run, metric), part_effects(run, metric, "examples")
            found: dict[Part, dict[str, Effect]] = {ALL: overall}
            found |= {
                part: {**inside.get(part, {}), **beyond.get(part, {})} for part in inside | beyond
            }
            stages = ["", *(f"{effect.stage} since {effect.since}" for effect in overall.values())]
            rows = [_row(part, effects, list(overall)) for part, effects in found.items()]
            yield metric, ui.Table(stages, rows, classes="heat")


def _row(
    part: Part, effects: Mapping[str, Effect], stages: Sequence[str]
) -> list[ui.Text | ui.Cell]:
    """A part's changes; the number of prompts is beside its name if all have the same."""
    sizes = {effect.change.after.n for effect in effects.values()}
    n = ui.small(f"n = {min(sizes)}" if len(sizes) == 1 else "")
    name = (part.domain or part.suite or "all", n)
    first = ui.Cell(name, classes="inner" if part.suite and part.domain else "")
    return [first, *(_cell(effects.get(stage), alone=len(sizes) > 1) for stage in stages)]


def _cell(effect: Effect | None, *, alone: bool) -> ui.Text | ui.Cell:
    if effect is None:
        return "–"
    change, tone = effect.change, TONES[effect.direction]
    sides = change.before.value, change.after.value
    levels = f"{100 * sides[0]:.1f} → {100 * sides[1]:.1f}"
    if change.quantity:
        levels = " → ".join(map(figure, sides))
    levels += f", n = {change.after.n}" if alone else ""
    said = bounds(change.interval, signed=True, quantity=change.quantity)
    size = 0.5 if change.quantity else min(1.0, abs(change.delta))
    strength = 0 if tone == "flat" else round(12 + 48 * size)
    seen = ui.strong(gap(change.delta, change.quantity))
    return ui.Cell((seen, ui.small(said), ui.small(levels)), tone, strength)


def waterfalls(run: RunResults) -> list[ui.Figure]:
    """Stage contributions to exact answer and format along the chain that leads to the last
    evaluated model."""
    drawn = (_waterfall(run, metric, stage_effects(run, metric), "") for metric in (EXACT, FORMAT))
    return list(filter(None, drawn))


def suite_waterfalls(run: RunResults) -> list[ui.Figure]:
    """The same for exact answers in each of several suites."""
    drawn = (
        _waterfall(run, EXACT, effects, f" in {part.suite}")
        for part, effects in part_effects(run, EXACT).items()
        if part.suite and part.domain is None
    )
    return list(filter(None, drawn))


def _waterfall(
    run: RunResults, metric: Metric, effects: Mapping[str, Effect], where: str
) -> ui.Figure | None:
    chain = run.evaluated(metric.kind)[-1:]
    while chain and (ancestor := run.evaluated_ancestor(chain[0], metric.kind)):
        chain = [ancestor, *chain]
    found = [effects[model.name] for model in chain[1:] if model.name in effects]
    if not found or len(found) != len(chain) - 1:
        return None
    first, last = found[0].change.before.value, found[-1].change.after.value
    steps = [plots.Step(found[0].since, first, percent(first))]
    for one in found:
        change, text = one.change, points(one.change.delta)
        level, interval = change.after.value, change.interval
        steps.append(plots.Step(one.stage, level, text, change.delta, interval, one.direction))
    steps.append(plots.Step("final", last, percent(last)))
    title = f"{metric.label.capitalize()}{where}: what each stage contributed"
    return plots.waterfall(steps, title)


def levels(run: RunResults) -> ui.Table | None:
    """Each model's level by suite, and the length of its answers; None without a reasoning
    evaluation."""
    sides = model_sides(run, EXACT.kind)
    if not sides:
        return None
    chosen = by_suite(sides)
    groups = rate_rows(outcomes_of(EXACT.kind, every_item(sides)), chosen)
    for rows, columns in zip(groups.values(), chosen.values(), strict=True):
        rows.append(("tokens", *(_mean([item.tokens for item in items]) for items in columns)))
        reasoned = [
            _mean([item.reasoning_tokens for item in items if item.reasoning_tokens is not None])
            for items in columns
        ]
        rows.append(("tokens of the reasoning", *reasoned))
    return rates_table(sides, groups, "Every model on all prompts")


def _mean(lengths: Sequence[int]) -> ui.Text:
    return (f"{fmean(lengths):.1f}", ui.small("mean")) if lengths else "–"


def sampled_plots(run: RunResults) -> list[ui.Figure]:
    """pass@k and majority@k of every model whose answers were sampled."""
    metrics = {
        model.name: sampled.sampled_metrics(model.samples(EXACT.kind), seed=run.record.recipe.seed)
        for model in run.shown(EXACT.kind)
    }
    drawn = []
    for name, title in _AT_K.items():
        lines = {model: one[name] for model, one in metrics.items() if name in one}
        drawn += [plots.at_k(title, lines)] if lines else []
    return drawn


SECTION = Section(
    title="Effects",
    heading="What each stage changed, what each model can do",
    order=10,
    blocks=blocks,
)
