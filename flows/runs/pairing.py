"""Pairs two runs beside their prompts, and two groups of runs seed by seed.

Every random number of a stage is a function of (seed, step), and an artifact of equal key is one
artifact. So two runs of the same seed that differ in one setting have everything before it in
common, and after it the same draws: their difference holds less noise than that of two seeds.

Where both runs come from `lyceum run --seeds`, the runs of equal seeds are the pairs: their
differences have a mean with Student's interval over seeds, and beside it stands Welch's, which the
same runs would have given unpaired.
"""

from dataclasses import asdict
from typing import Any

from flows.runs.effects import ALL, Metric, direction_of, metrics_of
from flows.runs.replicates import Replicates, spread_of, within
from flows.runs.results import Model, RunResults
from flows.runs.wording import listed
from tasks.statistics.intervals import Interval, holm
from tasks.statistics.means import welch


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
