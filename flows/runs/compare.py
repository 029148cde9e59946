"""Compares runs: every rate that they measured, with the interval of its difference; the fields in
which their recipes differ; time and cost.

Models are matched by name (the stage that trained them, or `base`), and the last model of one run
with the last of the other. A difference is the other run minus the first, paired over the prompts
that both runs asked (see `flows.runs.effects`). It counts as a gain or a loss, in its row and in a
sentence alike, after Holm's correction: over all rows over all prompts, of every metric and model;
in parts, apart from them, over the rows of its metric.

Every random number of a stage is a function of (seed, step), and an artifact of equal key is one
artifact. So two runs of the same seed that differ in one setting have everything before it in
common, and after it the same draws: their difference holds less noise than that of two seeds.

Where both runs come from `lyceum run --seeds`, the runs of equal seeds are the pairs: their
differences have a mean with Student's interval over seeds, and beside it stands Welch's, which the
same runs would have given unpaired.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from flows.recipe.explain import flat
from flows.runs.effects import (
    ALL,
    Change,
    Metric,
    Part,
    change_between,
    corrected,
    direction_of,
    metrics_of,
    outcomes,
    parts,
)
from flows.runs.record import run_status
from flows.runs.replicates import Replicates, group_of, spread_of, within
from flows.runs.results import Model, RunResults, StageOutput, left_out_of, read_results
from flows.runs.wording import TONES, Tone, change_text, listed, sample_text
from infra.store.store import Store
from schemas.reports import RunRecord
from tasks.statistics.intervals import Interval, Rate, holm
from tasks.statistics.means import Mean, welch


def compare_runs(
    store: Store, first: RunRecord, others: Sequence[RunRecord]
) -> list[dict[str, Any]]:
    """Compare runs of one store with the first of them.

    Returns:
        One comparison for each of `others`:
        a, b: each run in short.
        verdict: the last models compared, one sentence per metric.
        metrics: a row per metric (of a kind of evaluation), model, suite and domain (None: all)
            that both runs measured: the rate in `a` and in `b`, `difference` (b - a), all fractions
            of 1 with `low` and `high`, or, where it is a `quantity` (a metric function), means in
            its own unit; `p` after correction; whether it is `paired`; its `direction`: gain, loss
            or unclear; whether both have the `same_answers`, because one model gave them.
        recipes: every field in which the recipes differ, or the configs, VERSIONs and dependencies
            that the artifacts were made with; a side that lacks the field has no value.
        stages: a row per stage: status, seconds and cost in either run, and whether both used the
            same artifact.
        pairing: what pairs them beside their prompts (`pairing`).
        over_seeds: the differences of their groups, where both come from `lyceum run --seeds`;
            else None.
        left_out: `<run>/<stage>` -> why its artifact, and so what it measured, is not in this
            comparison.
    """
    reference = read_results(store, first)
    fellows = group_of(store, first)
    found = []
    for other in others:
        theirs = group_of(store, other) if fellows and other.group != first.group else None
        both = over_seeds(fellows, theirs) if fellows and theirs else None
        compared = {**_compare(reference, read_results(store, other)), "over_seeds": both}
        if fellows and theirs:
            compared["left_out"] |= fellows.left_out | theirs.left_out
        found.append(compared)
    return found


def _compare(first: RunResults, second: RunResults) -> dict[str, Any]:
    names = dict.fromkeys([*first.stages, *second.stages])
    metrics = metrics_of(first, second)
    pairs = {metric: _matched_models(first, second, metric) for metric in metrics}
    overall = {
        (metric, name): change
        for metric, matched in pairs.items()
        for name, both in matched.items()
        if (change := _change(first, both, metric, ALL))
    }
    p = corrected(overall)
    return {
        "a": _summary(first.record),
        "b": _summary(second.record),
        "pairing": pairing(first, second),
        "verdict": list(_sentences(pairs, overall, p)),
        "metrics": [
            row
            for metric, matched in pairs.items()
            for row in _metric_rows(first, metric, matched, overall, p)
        ],
        "recipes": list(_recipe_differences(first, second)),
        "stages": [_stage_row(n, first.stages.get(n), second.stages.get(n)) for n in names],
        "left_out": left_out_of((first, second)),
    }


def _summary(record: RunRecord) -> dict[str, Any]:
    return {
        "run_id": record.run_id,
        "recipe": record.recipe.name,
        "model": record.recipe.model,
        "target": record.target,
        "status": run_status(record),
        "seconds": record.finished - record.started if record.finished else None,
        "cost_usd": record.cost_usd,
    }


_Pairs = Mapping[str, tuple[Model, Model]]
"""A model's name, or two names -> the model of either run; the last ones last."""
_Changes = Mapping[tuple[Metric, str], Change]
"""Metric and model -> its change over all prompts."""


def _sentences(
    pairs: Mapping[Metric, _Pairs], overall: _Changes, p: Mapping[tuple[Metric, str], float]
) -> Iterator[dict[str, str]]:
    """Compare the last models, in a sentence for each metric that both runs measured: what their
    rows say."""
    words = {"gain": "better", "loss": "worse", "unclear": "no measurable difference"}
    for metric, matched in pairs.items():
        if not matched:
            continue
        *_, (name, (before, after)) = matched.items()
        same = before.name == after.name
        names = after.name if same else f"{before.name} against {after.name}"
        tone: Tone = "plain"
        if (metric, name) not in overall:
            said = "not comparable, one side has too few answers that count."
        elif same_answers(before, after, metric.kind):
            said = "the same answers, by one model."
        else:
            change = overall[metric, name]
            direction = direction_of(change.interval, p[metric, name])
            said = f"{change_text(change)}, {words[direction]} ({sample_text(change)})."
            tone = TONES[direction]
        yield {"text": f"{metric.label} ({names}): {said}", "tone": tone}


def _change(first: RunResults, both: Sequence[Model], metric: Metric, part: Part) -> Change | None:
    old, new = (outcomes(model.items(metric.kind), metric, part) for model in both)
    return change_between(old, new, first.record.recipe.seed, quantity=metric.quantity)


def _metric_rows(
    first: RunResults,
    metric: Metric,
    pairs: _Pairs,
    overall: _Changes,
    p: Mapping[tuple[Metric, str], float],
) -> Iterator[dict[str, Any]]:
    items = [item for both in pairs.values() for model in both for item in model.items(metric.kind)]
    whole = {(name, ALL): one for (other, name), one in overall.items() if other == metric}
    inside = {
        (name, part): change
        for name, both in pairs.items()
        for part in parts(items)
        if (change := _change(first, both, metric, part))
    }
    in_whole = {(name, ALL): p[metric, name] for name, _ in whole}
    for changes, found in ((whole, in_whole), (inside, corrected(inside))):
        for (name, part), change in changes.items():
            yield {
                **metric.row(part),
                "model": name,
                "a": _rate(change.before),
                "b": _rate(change.after),
                "difference": {"value": change.delta, **asdict(change.interval)},
                "p": found[name, part],
                "paired": change.paired,
                "direction": direction_of(change.interval, found[name, part]),
                "same_answers": same_answers(*pairs[name], metric.kind),
            }


def _matched_models(
    first: RunResults, second: RunResults, metric: Metric
) -> dict[str, tuple[Model, Model]]:
    ours, theirs = first.evaluated(metric.kind), second.evaluated(metric.kind)
    by_name = {model.name: model for model in theirs}
    found = {one.name: (one, by_name[one.name]) for one in ours if one.name in by_name}
    if ours and theirs and ours[-1].name != theirs[-1].name:
        found[f"{ours[-1].name} / {theirs[-1].name}"] = ours[-1], theirs[-1]
    return found


def _rate(rate: Rate | Mean) -> dict[str, float]:
    return {"value": rate.value, **asdict(rate.interval), "n": rate.n}


def _recipe_differences(first: RunResults, second: RunResults) -> Iterator[dict[str, Any]]:
    ours, theirs = (
        flat("", run.record.recipe.model_dump(mode="json", exclude={"stages"}, exclude_none=True))
        for run in (first, second)
    )
    for name in dict.fromkeys([*first.stages, *second.stages]):
        one, other = first.stages.get(name), second.stages.get(name)
        resolved = all(stage is not None and stage.manifest is not None for stage in (one, other))
        ours |= _stage_fields(one, resolved)
        theirs |= _stage_fields(other, resolved)
    for field in dict.fromkeys([*ours, *theirs]):
        sides = {"a": ours, "b": theirs}
        found = {side: fields[field] for side, fields in sides.items() if field in fields}
        if len(found) < 2 or found["a"] != found["b"]:
            yield {"field": field, **found}


def _stage_fields(stage: StageOutput | None, resolved: bool) -> dict[str, Any]:
    """A stage of the recipe as a flat table, `stages.sft.config.steps`. `resolved` adds what its
    artifact was made with: the defaults that the recipe leaves out, VERSION and dependencies."""
    if stage is None:
        return {}
    spec, made = stage.spec, stage.manifest
    fields: dict[str, Any] = {"kind": spec.kind, "inputs": spec.inputs, "config": spec.config}
    if resolved and made:
        fields |= {"config": made.config, "VERSION": made.version}
        fields["dependencies"] = made.dependencies
    return flat(f"stages.{stage.name}", fields)


def _stage_row(name: str, ours: StageOutput | None, theirs: StageOutput | None) -> dict[str, Any]:
    one, other = (side.record.artifact if side and side.record else None for side in (ours, theirs))
    same = one is not None and one == other
    return {"stage": name, "a": _stage_side(ours), "b": _stage_side(theirs), "same_artifact": same}


ABSENT_STAGE = {"status": "not in the recipe", "seconds": None, "made_in": None, "cost_usd": None}


def _stage_side(stage: StageOutput | None) -> dict[str, Any]:
    """Status, seconds and list price in the run, and seconds that making the artifact took,
    whenever that was."""
    if stage is None:
        return ABSENT_STAGE
    record, made = stage.record, stage.manifest
    return {
        "status": stage.status,
        "seconds": record.seconds if record else None,
        "made_in": made.execution.get("seconds") if made else None,
        "cost_usd": record.cost_usd if record else None,
    }


def pairing(first: RunResults, second: RunResults) -> dict[str, Any]:
    """Whether two runs have the same seed, the stages whose artifact they share, and the first
    stage in file order that differs, or None."""
    shared, parted = list[str](), None
    for name in dict.fromkeys([*second.stages, *first.stages]):
        sides = first.stages.get(name), second.stages.get(name)
        ours, theirs = (one.record.artifact if one and one.record else None for one in sides)
        if ours != theirs:
            parted = parted or name
        elif ours is not None:  # neither run may have reached it
            shared.append(name)
    seeds = [run.record.recipe.seed for run in (first, second)]
    same = {"same_seed": seeds[0] == seeds[1], "seeds": seeds}
    return {**same, "shared": shared, "parted_at": parted}


def pairing_text(pairing: dict[str, Any]) -> str:
    """One sentence for people."""
    shared = f"the artifacts of {listed(pairing['shared'])}" if pairing["shared"] else ""
    if pairing["parted_at"] is None:
        return f"Both runs have {shared}: nothing differs." if shared else ""
    parted = f" They part at {pairing['parted_at']}."
    one, other = pairing["seeds"]
    if pairing["same_seed"]:
        return f"Paired: both runs have seed {one}{' and ' * bool(shared)}{shared}.{parted}"
    both = f", though they share {shared}" if shared else ""
    return (
        f"Not paired by seed: {one} and {other}{both}. What differs between them has the noise of"
        f" a seed in it; `--set seed={one}` leaves it out.{parted}"
    )


def same_answers(one: Model, other: Model, kind: str) -> bool:
    """Whether one model gave the answers of both: not only are these the same, byte for byte, but
    also the models that were asked. Other models may agree on some prompts by chance."""
    ours, theirs = (
        [
            (made.digest, policy.digest if (policy := made.inputs.get("policy")) else None)
            for stage in model.evaluations[kind]
            if (made := stage.manifest)
        ]
        for model in (one, other)
    )
    return ours == theirs


def over_seeds(first: Replicates, second: Replicates) -> dict[str, Any]:
    """The differences of two groups of runs, second minus first, over all prompts.

    Returns:
        seeds: those that both groups have, which are paired; where there are fewer than two, the
            groups are independent.
        metrics: a row for each metric and model that both groups know: the mean difference with
            `low` and `high` over seeds, `sd`, `p` after Holm's correction over the models of its
            metric, `direction`, and `unpaired`, Welch's interval of the same runs. Where both have
            the `same_answers` under every seed, nothing is compared: that row does not count in
            Holm's correction.
    """
    seeds = [seed for seed in first.runs if seed in second.runs]
    rows = []
    for metric in metrics_of(*first.runs.values(), *second.runs.values()):
        found = _rows(first, second, metric)
        looks = {n: None if row["same_answers"] else row["p"] for n, row in enumerate(found)}
        for place, p in holm(looks).items():
            row = found[place]
            row |= {"p": p, "direction": direction_of(Interval(row["low"], row["high"]), p)}
        rows += found
    return {"seeds": seeds if len(seeds) > 1 else [], "metrics": rows}


def _rows(first: Replicates, second: Replicates, metric: Metric) -> list[dict[str, Any]]:
    theirs = second.rates(metric)
    rows = []
    for model, before in first.rates(metric).items():
        after = theirs.get(model, {})
        both = [seed for seed in before if seed in after]
        paired = len(both) > 1
        sides = [
            [side[seed].value for seed in (both if paired else side)] for side in (before, after)
        ]
        independent = welch(sides[0], sides[1])
        if independent is None:  # one group has fewer than two
            continue
        spread = spread_of(
            [side[seed] for side in (before, after) for seed in both],
            [after[seed].value - before[seed].value for seed in both],
        )
        unpaired, p = independent
        interval = spread.interval if spread else unpaired
        models = [(first.runs[one].models[model], second.runs[one].models[model]) for one in both]
        same = [same_answers(*sides, metric.kind) for sides in models]
        rows.append(
            {
                **metric.row(ALL),
                "model": model,
                "n": spread.n if spread else min(map(len, sides)),
                "paired": paired,
                "same_answers": paired and all(same),
                "value": spread.mean if spread else (unpaired.low + unpaired.high) / 2,
                **asdict(interval if metric.quantity else within(interval, -1.0)),
                "sd": spread.sd if spread else None,
                "p": spread.p if spread else p,
                "unpaired": asdict(unpaired),
            }
        )
    return rows
