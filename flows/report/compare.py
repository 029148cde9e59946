"""Runs side by side: every rate that they measured, with the interval of its difference; how their
recipes differ; what they took.

Models are matched by name (the stage that trained them, or `base`), and the last model of one run
with the last of the other. A difference is the other run minus the first, paired over the prompts
that both runs asked (see `flows.runs.effects`). It counts as a gain or a loss after Holm's
correction over all rows of its metric: those over all prompts, and apart from them those in parts.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from flows.recipe.explain import flat
from flows.report import plots
from flows.report.templates import rendered
from flows.runs.effects import (
    ALL,
    METRICS,
    Change,
    Metric,
    Part,
    change_between,
    corrected,
    direction_of,
    outcomes_in,
    parts,
)
from flows.runs.results import Model, RunResults, StageOutput, read_results
from flows.runs.wording import TONES, bounds, change_text, duration, percent, points, sample_text
from infra.store.store import Store
from schemas.base import digest
from schemas.reports import RunRecord
from tasks.statistics.intervals import Interval, Rate

ABSENT = "–"
"""Shown for a field that one side lacks; a field that is there and null shows as None."""


def compare_runs(
    store: Store, first: RunRecord, others: Sequence[RunRecord]
) -> list[dict[str, Any]]:
    """Compare runs of one store with the first of them.

    Returns:
        One comparison for each of `others`:
        a, b: each run in short.
        verdict: what became of the last models, one sentence per metric.
        metrics: a row per metric, model, suite and domain (None: all) that both runs measured: the
            rate in `a` and in `b`, `difference` (b - a), all fractions of 1 with `low` and `high`;
            `p` after correction; whether it is `paired`; its `direction`: gain, loss or unclear;
            whether both have the `same_answers`, because one artifact serves both runs.
        recipes: every field in which the recipes differ, or the configs, VERSIONs and dependencies
            that the artifacts were made with; a side that lacks the field has no value.
        stages: a row per stage: status, seconds and cost in either run, and whether both used the
            same artifact.
        left_out: `<run>/<stage>` -> why its artifact, and so what it measured, is not in this
            comparison.
    """
    reference = read_results(store, first)
    return [_compare(reference, read_results(store, other)) for other in others]


def _compare(first: RunResults, second: RunResults) -> dict[str, Any]:
    names = dict.fromkeys([*first.stages, *second.stages])
    left_out = {
        f"{run.record.run_id}/{name}": why
        for run in (first, second)
        for name, why in run.left_out.items()
    }
    rows = [row for metric in METRICS for row in _metric_rows(first, second, metric)]
    return {
        "a": _summary(first.record),
        "b": _summary(second.record),
        "verdict": list(_sentences(first, second)),
        "metrics": rows,
        "recipes": list(_recipe_differences(first, second)),
        "stages": [
            _stage_row(name, first.stages.get(name), second.stages.get(name)) for name in names
        ],
        "left_out": left_out,
    }


def render_comparison(store: Store, comparisons: Sequence[dict[str, Any]]) -> str:
    """Write what `compare_runs` returned as `runs/<a>/compare-<b>.html` and return where it lies: a
    path, or a `gs://` URI.

    Raises:
        InputError: the store is full or cannot be written.
    """
    others = [one["b"]["run_id"] for one in comparisons]
    last = others[0] if len(others) == 1 else f"{len(others)}-runs-{digest(others)[:8]}"
    name = f"runs/{comparisons[0]['a']['run_id']}/compare-{last}.html"
    store.write_bytes(name, rendered("compare.html.j2", **comparison_tables(comparisons)).encode())
    return store.location(name)


def comparison_tables(comparisons: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What `compare_runs` returned as the page shows it: a column for each run.

    Returns:
        runs: the first run and the others, in short.
        verdicts: (run id, sentences) of each of the others.
        plots: a forest plot for each metric, over all prompts.
        rates: (title, rows) of the rates over all prompts and of those in parts; a row is (metric,
            model, prompts asked, the first run's rate, a comparison's row or None for each of the
            others).
        left_out: `<run>/<stage>` -> why it is missing here.
        recipes: (field, its value in each run).
        stages: (stage, what it took in each run, whether an artifact is the first run's for each of
            the others).
    """
    rows: dict[tuple[str, str, str], list[dict[str, Any] | None]] = {}
    fields: dict[str, list[Any]] = {}
    stages: dict[str, list[tuple[dict[str, Any], bool]]] = {}
    for number, one in enumerate(comparisons):
        for row in one["metrics"]:
            place = row["label"], row["model"], Part(row["suite"], row["domain"]).label
            rows.setdefault(place, [None] * len(comparisons))[number] = row
        for row in one["recipes"]:
            first = row.get("a", ABSENT)
            fields.setdefault(row["field"], [first] + [first] * len(comparisons))[number + 1] = (
                row.get("b", ABSENT)
            )
        for row in one["stages"]:
            absent = (_ABSENT_STAGE, False)
            stages.setdefault(row["stage"], [(row["a"], False), *[absent] * len(comparisons)])[
                number + 1
            ] = row["b"], row["same_artifact"]
    overall = {place: found for place, found in rows.items() if place[2] == ALL.label}
    inside = {place: found for place, found in rows.items() if place[2] != ALL.label}
    return {
        "runs": [comparisons[0]["a"], *(one["b"] for one in comparisons)],
        "verdicts": [(one["b"]["run_id"], one["verdict"]) for one in comparisons],
        "plots": list(_forests(overall)),
        "rates": [
            (title, found)
            for title, found in (("Over all prompts", overall), ("By suite and domain", inside))
            if found
        ],
        "left_out": {stage: why for one in comparisons for stage, why in one["left_out"].items()},
        "recipes": fields,
        "stages": stages,
    }


_ABSENT_STAGE = {"status": "not in the recipe", "seconds": None, "made_in": None, "cost_usd": None}


def _forests(
    overall: Mapping[tuple[str, str, str], Sequence[dict[str, Any] | None]],
) -> Iterator[Markup]:
    for metric in dict.fromkeys(label for label, *_ in overall):
        bars = [
            plots.Bar(
                f"{model}, run {number}" if len(found) > 1 else model,
                **row["difference"],
                direction=row["direction"],
            )
            for (label, model, _), found in overall.items()
            for number, row in enumerate(found, start=2)
            if label == metric and row and not row["same_answers"]
        ]
        if bars:
            yield plots.forest(
                f"{metric.capitalize()}: difference from the first run, percentage points", bars
            )


def comparison_blocks(
    comparison: Mapping[str, Any],
) -> Iterator[str | tuple[str, Sequence[str], Sequence[Sequence[str]]]]:
    """A comparison for a terminal: lines and `(title, columns, rows)`; rates over all prompts,
    differing recipes, times."""
    a, b = comparison["a"]["run_id"], comparison["b"]["run_id"]
    metrics = [
        (
            row["label"],
            row["model"],
            _rate_text(row["a"]),
            _rate_text(row["b"]),
            _difference_text(row),
            _prompts(row),
        )
        for row in comparison["metrics"]
        if (row["suite"], row["domain"]) == ALL
    ]
    yield (
        f"{b} compared with {a}",
        ("metric", "model", a, b, "difference (points)", "prompts"),
        metrics,
    )
    yield from (sentence["text"] for sentence in comparison["verdict"])
    recipes = [
        (row["field"], str(row.get("a", ABSENT)), str(row.get("b", ABSENT)))
        for row in comparison["recipes"]
    ]
    yield ("recipes", ("field", a, b), recipes) if recipes else "The recipes are the same."
    stages = [
        (
            row["stage"],
            _side_text(row["a"]),
            _side_text(row["b"]),
            "the same" if row["same_artifact"] else "",
        )
        for row in comparison["stages"]
    ]
    yield "stages", ("stage", a, b, "artifact"), stages


def _summary(record: RunRecord) -> dict[str, Any]:
    seconds = record.finished - record.started if record.finished else None
    costs = [stage.cost_usd for stage in record.stages if stage.cost_usd is not None]
    return {
        "run_id": record.run_id,
        "recipe": record.recipe.name,
        "model": record.recipe.model,
        "target": record.target,
        "status": record.status,
        "seconds": seconds,
        "cost_usd": sum(costs) if costs else None,
    }


def _sentences(first: RunResults, second: RunResults) -> Iterator[dict[str, str]]:
    """What became of the last models, a sentence for each metric that both runs measured, corrected
    for their number."""
    changes: dict[Metric, Change] = {}
    models = {}
    for metric in METRICS:
        ours, theirs = first.evaluated(metric.kind), second.evaluated(metric.kind)
        if ours and theirs:
            before, after = ours[-1], theirs[-1]
            models[metric] = (
                after.name if before.name == after.name else f"{before.name} against {after.name}"
            )
            change = _change(first, before, after, metric, ALL)
            if change:
                changes[metric] = change
    p = corrected(changes)
    for metric, names in models.items():
        if metric not in changes:
            yield {
                "text": (
                    f"{metric.label} ({names}): not comparable, one side has no prompt that can be"
                    " verified."
                ),
                "tone": "plain",
            }
            continue
        if _artifacts(first.evaluated(metric.kind)[-1], metric) == _artifacts(
            second.evaluated(metric.kind)[-1], metric
        ):
            yield {
                "text": (
                    f"{metric.label} ({names}): the same answers, one artifact serves both runs."
                ),
                "tone": "plain",
            }
            continue
        change = changes[metric]
        direction = direction_of(change, p[metric])
        judgement = {"gain": "better", "loss": "worse", "unclear": "no measurable difference"}[
            direction
        ]
        text = (
            f"{metric.label} ({names}): {change_text(change)}, {judgement} ({sample_text(change)})."
        )
        yield {"text": text, "tone": TONES[direction]}


def _change(
    first: RunResults, before: Model, after: Model, metric: Metric, part: Part
) -> Change | None:
    old, new = (outcomes_in(model.items(metric.kind), metric, part) for model in (before, after))
    return change_between(old, new, seed=first.record.recipe.seed)


def _metric_rows(first: RunResults, second: RunResults, metric: Metric) -> Iterator[dict[str, Any]]:
    pairs = list(_matched_models(first, second, metric))
    inside = parts(
        [
            item
            for _, before, after in pairs
            for model in (before, after)
            for item in model.items(metric.kind)
        ]
    )
    for family in ([ALL], inside):
        looks = [
            (name, part, _change(first, before, after, metric, part))
            for name, before, after in pairs
            for part in family
        ]
        changes = {(name, part): change for name, part, change in looks if change}
        p = corrected(changes)
        same = {
            name: _artifacts(before, metric) == _artifacts(after, metric)
            for name, before, after in pairs
        }
        for (name, part), change in changes.items():
            yield {
                **_metric_row(metric, name, part, change, p[name, part]),
                "same_answers": same[name],
            }


def _artifacts(model: Model, metric: Metric) -> list[str]:
    return [stage.manifest.digest for stage in model.evaluations[metric.kind] if stage.manifest]


def _matched_models(
    first: RunResults, second: RunResults, metric: Metric
) -> Iterator[tuple[str, Model, Model]]:
    ours, theirs = first.evaluated(metric.kind), second.evaluated(metric.kind)
    by_name = {model.name: model for model in theirs}
    yield from ((model.name, model, by_name[model.name]) for model in ours if model.name in by_name)
    if ours and theirs and ours[-1].name != theirs[-1].name:
        yield f"{ours[-1].name} / {theirs[-1].name}", ours[-1], theirs[-1]


def _metric_row(metric: Metric, model: str, part: Part, change: Change, p: float) -> dict[str, Any]:
    return {
        "metric": metric.name,
        "label": metric.label,
        "model": model,
        "suite": part.suite,
        "domain": part.domain.value if part.domain else None,
        "a": _rate(change.before),
        "b": _rate(change.after),
        "difference": {
            "value": change.delta,
            "low": change.interval.low,
            "high": change.interval.high,
        },
        "p": p,
        "paired": change.paired,
        "direction": direction_of(change, p),
    }


def _rate(rate: Rate) -> dict[str, float]:
    return {"value": rate.value, "low": rate.interval.low, "high": rate.interval.high, "n": rate.n}


def _recipe_differences(first: RunResults, second: RunResults) -> Iterator[dict[str, Any]]:
    ours, theirs = (
        {"name": run.name, "model": run.model, "seed": run.seed}
        for run in (first.record.recipe, second.record.recipe)
    )
    for name in dict.fromkeys([*first.stages, *second.stages]):
        one, other = first.stages.get(name), second.stages.get(name)
        resolved = all(stage is not None and stage.manifest is not None for stage in (one, other))
        ours |= _stage_fields(one, resolved)
        theirs |= _stage_fields(other, resolved)
    for field in dict.fromkeys([*ours, *theirs]):
        sides = {
            side: fields[field] for side, fields in (("a", ours), ("b", theirs)) if field in fields
        }
        if len(sides) < 2 or sides["a"] != sides["b"]:
            yield {"field": field, **sides}


def _stage_fields(stage: StageOutput | None, resolved: bool) -> dict[str, Any]:
    """What the recipe says of a stage as a flat table, `stages.sft.config.steps`; `resolved` with
    what its artifact was made with: the defaults that the recipe does not write down, VERSION and
    dependencies."""
    if stage is None:
        return {}
    fields: dict[str, Any] = {
        "kind": stage.spec.kind,
        "inputs": stage.spec.inputs,
        "config": stage.spec.config,
    }
    if resolved and stage.manifest:
        made = stage.manifest
        fields |= {
            "config": made.config,
            "VERSION": made.version,
            "dependencies": made.dependencies,
        }
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
    """Status, seconds and list price in the run, and seconds that making the artifact took,
    whenever that was."""
    if stage is None:
        return _ABSENT_STAGE
    record = stage.record
    return {
        "status": stage.status,
        "seconds": record.seconds if record else None,
        "made_in": stage.manifest.execution.get("seconds") if stage.manifest else None,
        "cost_usd": record.cost_usd if record else None,
    }


def _rate_text(rate: dict[str, float]) -> str:
    return f"{percent(rate['value'])} {bounds(Interval(rate['low'], rate['high']))}"


def _difference_text(row: dict[str, Any]) -> str:
    if row["same_answers"]:
        return "the same answers"
    difference = row["difference"]
    return (
        f"{points(difference['value'])}"
        f" {bounds(Interval(difference['low'], difference['high']), signed=True)}"
    )


def _prompts(row: dict[str, Any]) -> str:
    return (
        f"{row['b']['n']}, paired"
        if row["paired"]
        else f"{row['a']['n']} and {row['b']['n']}, unpaired"
    )


def _side_text(side: dict[str, Any]) -> str:
    return (
        f"{side['status']} {duration(side['seconds'])}"
        if side["seconds"] is not None
        else side["status"]
    )
