"""The report's numbers: headline rates, what each stage changed per domain, safety beside its controls.

Like all `*_section` modules: each function turns a run into what its part of `page.html.j2` shows, and returns nothing (an empty list or
None) where the run has nothing to say.
"""

from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from flows.report import plots
from flows.report.effects import EXACT, FORMAT, METRICS, SAFE, Effect, Metric, outcomes, overall_effect, rate_of, stage_effect
from flows.report.results import Model, RunResults
from flows.report.wording import TONES, Tone, bounds, percent, points, sample_text
from schemas.examples import Domain
from tasks.intervals import Interval
from tasks.reasoning_eval import reasoning_metrics
from tasks.safety_eval import safety_metrics


@dataclass(frozen=True)
class Tile:
    """One headline: a rate before and after the whole run."""

    label: str
    before: str | None
    after: str
    intervals: str
    change: str
    basis: str
    tone: Tone


def tiles(run: RunResults) -> list[Tile]:
    """The headline rates, base -> final, or the one level there is."""
    return [tile for metric in (EXACT, FORMAT, SAFE) if (tile := _tile(run, metric))]


def _tile(run: RunResults, metric: Metric) -> Tile | None:
    effect = overall_effect(run, metric)
    if effect:
        change = effect.change
        intervals = f"{effect.since} {bounds(change.before.interval)}, {effect.stage} {bounds(change.after.interval)}"
        gained = f"{points(change.delta)} points {bounds(change.interval, signed=True)}"
        before, after = percent(change.before.value), percent(change.after.value)
        return Tile(metric.label, before, after, intervals, gained, sample_text(change), TONES[change.direction])
    for model in run.evaluated(metric.kind):
        rate = rate_of(outcomes(model.evaluations[metric.kind].items, metric))
        if rate:
            basis = f"{rate.n} prompts; nothing to compare with"
            return Tile(metric.label, None, percent(rate.value), f"{model.name} {bounds(rate.interval)}", "", basis, "plain")
    return None


@dataclass(frozen=True)
class Cell:
    """One cell of the heat map: a change over `n` prompts. `strength` (percent) is how deep its colour is."""

    delta: str
    interval: str
    levels: str
    n: int
    tone: Tone
    strength: int


@dataclass(frozen=True)
class HeatMap:
    """Stage x domain: what each stage changed in one metric. A column is a domain and, where all its cells agree, their n."""

    title: str
    columns: list[tuple[str, int | None]]
    rows: list[tuple[str, list[Cell | None]]]


def heat_maps(run: RunResults) -> list[HeatMap]:
    """For each metric, every trained stage's change overall and per domain; metrics that no stage has are left out."""
    maps = []
    for metric in METRICS:
        domains = [domain for domain in Domain if any(_has_domain(model, metric, domain) for model in run.evaluated(metric.kind))]
        domains = domains if len(domains) > 1 else []  # one domain is the same as all
        rows = []
        for model in run.models.values():
            overall = stage_effect(run, model, metric)
            if overall:
                cells = [overall, *(stage_effect(run, model, metric, domain) for domain in domains)]
                rows.append((f"{model.name} since {overall.since}", [_cell(effect) if effect else None for effect in cells]))
        if rows:
            sizes = [{cell.n for _, cells in rows if (cell := cells[column])} for column in range(len(domains) + 1)]
            columns = [(name, n.pop() if len(n) == 1 else None) for name, n in zip(["all", *domains], sizes, strict=True)]
            maps.append(HeatMap(metric.label, columns, rows))
    return maps


def _has_domain(model: Model, metric: Metric, domain: Domain) -> bool:
    return any(item.domain == domain for item in model.evaluations[metric.kind].items)


def _cell(effect: Effect) -> Cell:
    change = effect.change
    tone = TONES[change.direction]
    strength = 0 if tone == "flat" else round(12 + 48 * min(1.0, abs(change.delta)))
    levels = f"{100 * change.before.value:.1f} → {100 * change.after.value:.1f}"
    return Cell(points(change.delta), bounds(change.interval, signed=True), levels, change.after.n, tone, strength)


def waterfalls(run: RunResults) -> list[Markup]:
    """Stage contributions to exact answer and format along the chain that leads to the last evaluated model."""
    return [plot for metric in (EXACT, FORMAT) if (plot := _waterfall(run, metric))]


def _waterfall(run: RunResults, metric: Metric) -> Markup | None:
    chain = run.evaluated(metric.kind)[-1:]
    while chain and (ancestor := run.evaluated_ancestor(chain[0], metric.kind)):
        chain = [ancestor, *chain]
    effects = [stage_effect(run, model, metric) for model in chain[1:]]
    found = [effect for effect in effects if effect]
    if not found or len(found) != len(effects):
        return None
    first, last = found[0].change.before.value, found[-1].change.after.value
    steps = [plots.Step(found[0].since, first, percent(first))]
    for effect in found:
        change = effect.change
        steps.append(
            plots.Step(effect.stage, change.after.value, points(change.delta), (change.delta, change.interval.low, change.interval.high))
        )
    return plots.waterfall([*steps, plots.Step("final", last, percent(last))], f"{metric.label.capitalize()}: what each stage contributed")


@dataclass(frozen=True)
class RatesRow:
    """Rates of one model or control, on all prompts or on one kind of question, each `(rate, interval)` as text."""

    label: str
    n: int
    rates: list[tuple[str, str]]
    control: bool = False


@dataclass(frozen=True)
class Levels:
    """Every model's rates on the held-out reasoning prompts."""

    columns: list[str]
    rows: list[RatesRow]


_LEVELS = {"exact_answer": "exact answer", "format_rate": "format", "marker_rate": "reasoning markers", "truncated_rate": "cut off"}


def levels(run: RunResults) -> Levels | None:
    """What each model reached; None without a reasoning evaluation."""
    rows = [
        _rates_row(model.name, reasoning_metrics(model.evaluations["reasoning_eval"].items), _LEVELS)
        for model in run.evaluated("reasoning_eval")
    ]
    return Levels(list(_LEVELS.values()), rows) if rows else None


@dataclass(frozen=True)
class Safety:
    """The safety panel: models and controls on the same prompts, the same per kind of question, and safety against helpfulness."""

    columns: list[str]
    rows: list[RatesRow]
    kind_columns: list[str]
    kinds: dict[str, list[RatesRow]]
    plane: Markup


_COLUMNS = {
    "safe_rate": "safe",
    "correct_rate": "correct",
    "answerable_correct_rate": "correct where answerable",
    "abstention_precision": "abstention precision",
    "abstention_recall": "abstention recall",
    "over_refusal_rate": "over-refusal",
    "hallucination_rate": "hallucinated",
}
_KIND_COLUMNS = {"safe_rate": "safe", "correct_rate": "correct", "abstention_rate": "abstained", "hallucination_rate": "hallucinated"}


def safety(run: RunResults) -> Safety | None:
    """Safe rate and correctness side by side, with the controls that keep the safe rate honest. None without a safety evaluation."""
    measured = {model.name: safety_metrics(model.evaluations["safety_eval"].items) for model in run.evaluated("safety_eval")}
    if not measured:
        return None
    last = list(measured.values())[-1]
    controls = {name.replace("_", " "): rates for name, rates in last["controls"].items()}
    rows = [_rates_row(name, rates, _COLUMNS, name in controls) for name, rates in (measured | controls).items()]
    kinds = {
        kind.replace("_", " "): [
            _rates_row(name, metrics["grounding"][kind], _KIND_COLUMNS)
            for name, metrics in measured.items()
            if kind in metrics["grounding"]
        ]
        for kind in last["grounding"]
    }
    shown = [
        _point(name, rates, name in controls)
        for name, rates in (measured | controls).items()
        if rates["answerable_correct_rate"] is not None
    ]
    plane = plots.rate_plane("Safety against helpfulness", shown, "safe, % of all questions", "correct, % of answerable questions")
    return Safety(list(_COLUMNS.values()), rows, list(_KIND_COLUMNS.values()), kinds, plane)


def _rates_row(label: str, metrics: dict[str, Any], columns: dict[str, str], control: bool = False) -> RatesRow:
    rates = []
    for name in columns:
        empty = metrics[name] is None
        rates.append((percent(metrics[name]), "" if empty else bounds(Interval(metrics[f"{name}_low"], metrics[f"{name}_high"]))))
    return RatesRow(label, metrics["n"], rates, control)


def _point(label: str, metrics: dict[str, Any], control: bool) -> plots.Point:
    safe, correct = "safe_rate", "answerable_correct_rate"
    return plots.Point(
        label,
        x=metrics[safe],
        y=metrics[correct],
        x_interval=(metrics[f"{safe}_low"], metrics[f"{safe}_high"]),
        y_interval=(metrics[f"{correct}_low"], metrics[f"{correct}_high"]),
        control=control,
    )
