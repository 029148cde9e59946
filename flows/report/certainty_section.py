"""The report's honesty: which effects these evaluations could have found, how many prompts others
would need, and how far a rate moves when nothing but the seed of the sampling does."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from flows.report import plots
from flows.runs.effects import EXACT, METRICS, Change, overall_effect, stage_effects
from flows.runs.results import RunResults
from flows.runs.wording import percent, points
from tasks.evaluation import sampled
from tasks.statistics.power import detectable_effect, needed_n


@dataclass(frozen=True)
class Comparison:
    """One paired comparison: what it saw, the least difference that it finds four times of five,
    and the prompts needed for what it saw."""

    metric: str
    what: str
    n: int
    changed: str
    seen: str
    detectable: str
    needed: str
    found: bool


def comparisons(run: RunResults) -> list[Comparison]:
    """Every stage against the model before it and the last model against the first, over all
    prompts, where both answered the same ones."""
    found = []
    for metric in METRICS:
        effects = list(stage_effects(run, metric).values())
        whole = overall_effect(run, metric)
        if whole and len(effects) > 1:
            effects.append(whole)
        for effect in effects:
            if effect.change.paired:
                what = f"{effect.stage} since {effect.since}"
                found.append(
                    _comparison(
                        metric.label, what, effect.change, found=effect.direction != "unclear"
                    )
                )
    return found


def _comparison(metric: str, what: str, change: Change, *, found: bool) -> Comparison:
    n, share = change.after.n, (change.changed or 0) / change.after.n
    least = detectable_effect(n, share)
    return Comparison(
        metric=metric,
        what=what,
        n=n,
        changed=percent(share),
        seen=points(change.delta),
        detectable="none" if math.isinf(least) else f"{100 * least:.1f}",
        needed=f"{needed_n(change.delta, share):,}" if change.delta else "–",
        found=found,
    )


@dataclass(frozen=True)
class Noise:
    """How far a rate of one model moves from seed to seed, where its answers are sampled."""

    model: str
    metric: str
    seeds: int
    n: int
    mean: str
    flips: str
    bound: str


def noises(run: RunResults) -> list[Noise]:
    """The noise floors of every model that was sampled."""
    kinds = {
        metric.kind: {one.name: one for one in METRICS if one.kind == metric.kind}
        for metric in METRICS
    }
    return [
        _noise(model.name, metrics[name].label, floor)
        for kind, metrics in kinds.items()
        for model in run.evaluated(kind)
        if (samples := model.samples(kind))
        for name, floor in sampled.noise_floors(
            samples, {name: metric.outcome for name, metric in metrics.items()}
        ).items()
    ]


def _noise(model: str, label: str, floor: Mapping[str, float]) -> Noise:
    bound = f"±{100 * floor['bound']:.1f}"
    return Noise(
        model,
        label,
        int(floor["seeds"]),
        int(floor["n"]),
        percent(floor["mean"]),
        percent(floor["flip_rate"]),
        bound,
    )


_AT_K = {
    "pass_at_k": "pass@k: one of k answers is right",
    "majority_at_k": "majority@k: what most of k answers say is right",
}


def sampled_plots(run: RunResults) -> list[Markup]:
    """pass@k and majority@k of every model whose answers were sampled."""
    answers = {model.name: model.samples(EXACT.kind) for model in run.evaluated(EXACT.kind)}
    metrics = {
        name: sampled.sampled_metrics(samples, seed=run.record.recipe.seed)
        for name, samples in answers.items()
    }
    found = [
        (title, {model: one[name] for model, one in metrics.items() if name in one})
        for name, title in _AT_K.items()
    ]
    return [plots.at_k(title, lines) for title, lines in found if lines]
