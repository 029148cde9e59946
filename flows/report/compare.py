"""Two runs side by side: every rate that both measured, with the interval of its difference; how their recipes differ; what they took.

Models are matched by name (the stage that trained them, or `base`), and the last model of one run with the last of the other. A difference
is the second run minus the first, paired over the prompts that both runs asked (see `flows.report.effects`).
"""

from collections.abc import Iterator
from typing import Any

from flows import show
from flows.explain import flat
from flows.report import plots
from flows.report.effects import METRICS, Change, Metric, Rate, change_between, outcomes
from flows.report.page import environment
from flows.report.results import Model, RunResults, StageOutput, read_results
from flows.report.wording import TONES, bounds, change_text, duration, percent, points, sample_text
from infra.store import Store
from schemas.examples import Domain
from schemas.reports import RunRecord
from tasks.intervals import Interval

ABSENT = "–"
"""Shown for a field that one side lacks; a field that is there and null shows as None."""


def compare_runs(store: Store, a: RunRecord, b: RunRecord) -> dict[str, Any]:
    """Compare two runs of one store.

    Returns:
        a, b: each run in short.
        verdict: what became of the last models, one sentence per metric.
        metrics: a row per metric, model and domain (None: all) that both runs measured: the rate in `a` and in `b`, `difference` (b - a),
            all fractions of 1 with `low` and `high`; whether it is `paired`; its `direction`: gain, loss or unclear.
        recipes: every field in which the recipes differ, or the configs, VERSIONs and dependencies that the artifacts were made with; a
            side that lacks the field has no value.
        stages: a row per stage: status and seconds in either run, and whether both used the same artifact.
    """
    first, second = read_results(store, a), read_results(store, b)
    names = dict.fromkeys([*first.stages, *second.stages])
    return {
        "a": _summary(a),
        "b": _summary(b),
        "verdict": [
            _sentence(first, second, metric) for metric in METRICS if first.evaluated(metric.kind) and second.evaluated(metric.kind)
        ],
        "metrics": list(_metric_rows(first, second)),
        "recipes": list(_recipe_differences(first, second)),
        "stages": [_stage_row(name, first.stages.get(name), second.stages.get(name)) for name in names],
    }


def render_comparison(store: Store, comparison: dict[str, Any]) -> str:
    """Write what `compare_runs` returned as `runs/<a>/compare-<b>.html` and return where it lies: a path, or a `gs://` URI.

    Raises:
        InputError: the store is full or cannot be written.
    """
    name = f"runs/{comparison['a']['run_id']}/compare-{comparison['b']['run_id']}.html"
    overall = [row for row in comparison["metrics"] if row["domain"] is None]
    bars = [plots.Bar(f"{row['label']}, {row['model']}", **row["difference"], direction=row["direction"]) for row in overall]
    plot = plots.forest("Second run minus first, percentage points", bars) if bars else None
    store.write_bytes(name, environment().get_template("compare.html.j2").render(**comparison, plot=plot).encode())
    return store.location(name)


def show_comparison(comparison: dict[str, Any]) -> None:
    """What `compare_runs` returned, on standard output: the rates over all domains, what differs in the recipes, and the times."""
    a, b = comparison["a"]["run_id"], comparison["b"]["run_id"]
    metrics = [
        (row["label"], row["model"], _rate_text(row["a"]), _rate_text(row["b"]), _difference_text(row), _prompts(row))
        for row in comparison["metrics"]
        if row["domain"] is None
    ]
    show.table(f"{b} compared with {a}", ("metric", "model", a, b, "difference (points)", "prompts"), metrics)
    for sentence in comparison["verdict"]:
        show.line(sentence["text"])
    recipes = [(row["field"], str(row.get("a", ABSENT)), str(row.get("b", ABSENT))) for row in comparison["recipes"]]
    if recipes:
        show.table("recipes", ("field", a, b), recipes)
    else:
        show.line("The recipes are the same.")
    stages = [
        (row["stage"], _side_text(row["a"]), _side_text(row["b"]), "the same" if row["same_artifact"] else "")
        for row in comparison["stages"]
    ]
    show.table("stages", ("stage", a, b, "artifact"), stages)


def _summary(record: RunRecord) -> dict[str, Any]:
    seconds = record.finished - record.started if record.finished else None
    return {"run_id": record.run_id, "recipe": record.recipe.name, "target": record.target, "status": record.status, "seconds": seconds}


def _change(first: RunResults, before: Model, after: Model, metric: Metric, domain: Domain | None = None) -> Change | None:
    old, new = (outcomes(model.evaluations[metric.kind].items, metric, domain) for model in (before, after))
    return change_between(old, new, seed=first.record.recipe.seed)


def _sentence(first: RunResults, second: RunResults, metric: Metric) -> dict[str, str]:
    before, after = first.evaluated(metric.kind)[-1], second.evaluated(metric.kind)[-1]
    models = after.name if before.name == after.name else f"{before.name} against {after.name}"
    change = _change(first, before, after, metric)
    if change is None:
        return {"text": f"{metric.label} ({models}): not comparable, one side has no prompt that can be verified.", "tone": "plain"}
    judgement = {"gain": "the second run is better", "loss": "the second run is worse", "unclear": "no measurable difference"}[
        change.direction
    ]
    return {
        "text": f"{metric.label} ({models}): {change_text(change)}, {judgement} ({sample_text(change)}).",
        "tone": TONES[change.direction],
    }


def _metric_rows(first: RunResults, second: RunResults) -> Iterator[dict[str, Any]]:
    for metric in METRICS:
        for name, before, after in _matched_models(first, second, metric):
            changes = [(domain, _change(first, before, after, metric, domain)) for domain in (None, *Domain)]
            rows = [_metric_row(metric, name, domain, change) for domain, change in changes if change]
            yield from rows if len(rows) > 2 else rows[:1]  # one domain is the same as all


def _matched_models(first: RunResults, second: RunResults, metric: Metric) -> Iterator[tuple[str, Model, Model]]:
    ours, theirs = first.evaluated(metric.kind), second.evaluated(metric.kind)
    by_name = {model.name: model for model in theirs}
    yield from ((model.name, model, by_name[model.name]) for model in ours if model.name in by_name)
    if ours and theirs and ours[-1].name != theirs[-1].name:
        yield f"{ours[-1].name} / {theirs[-1].name}", ours[-1], theirs[-1]


def _metric_row(metric: Metric, model: str, domain: Domain | None, change: Change) -> dict[str, Any]:
    return {
        "metric": metric.name,
        "label": metric.label,
        "model": model,
        "domain": domain.value if domain else None,
        "a": _rate(change.before),
        "b": _rate(change.after),
        "difference": {"value": change.delta, "low": change.interval.low, "high": change.interval.high},
        "paired": change.paired,
        "direction": change.direction,
    }


def _rate(rate: Rate) -> dict[str, float]:
    return {"value": rate.value, "low": rate.interval.low, "high": rate.interval.high, "n": rate.n}


def _recipe_differences(first: RunResults, second: RunResults) -> Iterator[dict[str, Any]]:
    ours, theirs = ({"name": run.name, "model": run.model, "seed": run.seed} for run in (first.record.recipe, second.record.recipe))
    for name in dict.fromkeys([*first.stages, *second.stages]):
        one, other = first.stages.get(name), second.stages.get(name)
        resolved = all(stage is not None and stage.manifest is not None for stage in (one, other))
        ours |= _stage_fields(one, resolved)
        theirs |= _stage_fields(other, resolved)
    for field in dict.fromkeys([*ours, *theirs]):
        sides = {side: fields[field] for side, fields in (("a", ours), ("b", theirs)) if field in fields}
        if len(sides) < 2 or sides["a"] != sides["b"]:
            yield {"field": field, **sides}


def _stage_fields(stage: StageOutput | None, resolved: bool) -> dict[str, Any]:
    """What the recipe says of a stage as a flat table, `stages.sft.config.steps`; `resolved` with what its artifact was made with: the
    defaults that the recipe does not write down, VERSION and dependencies."""
    if stage is None:
        return {}
    fields: dict[str, Any] = {"kind": stage.spec.kind, "inputs": stage.spec.inputs, "config": stage.spec.config}
    if resolved and stage.manifest:
        made = stage.manifest
        fields |= {"config": made.config, "VERSION": made.version, "dependencies": made.dependencies}
    return flat(f"stages.{stage.name}", fields)


def _stage_row(name: str, ours: StageOutput | None, theirs: StageOutput | None) -> dict[str, Any]:
    keys = [stage.record.artifact if stage and stage.record else None for stage in (ours, theirs)]
    return {
        "stage": name,
        "a": _stage_side(ours),
        "b": _stage_side(theirs),
        "same_artifact": keys[0] is not None and keys[0] == keys[1],
    }


def _stage_side(stage: StageOutput | None) -> dict[str, Any]:
    """Status, seconds in the run, and seconds that making the artifact took, whenever that was."""
    if stage is None:
        return {"status": "not in the recipe", "seconds": None, "made_in": None}
    made_in = stage.manifest.execution.get("seconds") if stage.manifest else None
    return {"status": stage.status, "seconds": stage.record.seconds if stage.record else None, "made_in": made_in}


def _rate_text(rate: dict[str, float]) -> str:
    return f"{percent(rate['value'])} {bounds(Interval(rate['low'], rate['high']))}"


def _difference_text(row: dict[str, Any]) -> str:
    difference = row["difference"]
    return f"{points(difference['value'])} {bounds(Interval(difference['low'], difference['high']), signed=True)}"


def _prompts(row: dict[str, Any]) -> str:
    return f"{row['b']['n']}, paired" if row["paired"] else f"{row['a']['n']} and {row['b']['n']}, unpaired"


def _side_text(side: dict[str, Any]) -> str:
    return f"{side['status']} {duration(side['seconds'])}" if side["seconds"] is not None else side["status"]
