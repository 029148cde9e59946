"""The evaluations' certainty: which effects they could have found, how many prompts smaller ones
would need, and how far a rate moves when only the seed of sampling changes."""

import math
from collections.abc import Iterator

from flows.report.blocks import Block, Details, Paragraph, Table, Text, card, small, strong
from flows.report.section import Section
from flows.runs.effects import METRICS, Effect, overall_effect, stage_effects
from flows.runs.results import RunResults
from flows.runs.wording import amount, percent, points
from tasks.contract.kinds import evaluation_of
from tasks.evaluation import sampled
from tasks.statistics.power import detectable_effect, needed_n

_INTRODUCTION = (
    "A comparison finds only what is large enough for its number of prompts. Where an effect was"
    " not found, “least” says how large it might still be without showing, and “needed” how many"
    " prompts would show a true effect as large as the one that was seen."
)
_POWER = (
    "At 80% power and 5% two-sided, by McNemar's exact test, where as many prompts change as"
    " changed here. Bold: found."
)
_NOISE = (
    "Of sampled answers; the rates above are of greedy ones. 95% of all pairs of runs differ by"
    " less than the noise."
)

_POINTS = small("points")
_COMPARED: tuple[Text, ...] = (
    "comparison",
    ("prompts", small("changed")),
    ("seen", _POINTS),
    ("least", _POINTS),
    ("needed", small("prompts")),
)
_FLOORS: tuple[Text, ...] = (
    "model",
    ("prompts", small("seeds")),
    "rate",
    "verdicts that flip",
    ("noise", _POINTS),
)


def blocks(run: RunResults) -> list[Block]:
    """Both tables, each where it has rows: one model alone has a noise floor, too."""
    shown: list[Block] = []
    if effects := comparisons(run):
        found = sum(effect.direction != "unclear" for effect in effects)
        summary = f"{amount(len(effects), 'comparison')}, of which {found} found something"
        table = Table(_COMPARED, [_row(effect) for effect in effects])
        folded = Details(summary, [table, Paragraph(_POWER, "note")], open=len(effects) < 7)
        shown += [_INTRODUCTION, folded]
    if floors := list(noises(run)):
        title = "Noise floor: the same model under other seeds"
        shown.append(card(Table(_FLOORS, floors, title), Paragraph(_NOISE, "note")))
    return shown


def comparisons(run: RunResults) -> list[Effect]:
    """Every stage against the model before it, and the last model against the first, over the
    prompts that both answered."""
    found: list[Effect] = []
    for metric in METRICS:
        effects = {(one.stage, one.since): one for one in stage_effects(run, metric).values()}
        if whole := overall_effect(run, metric):  # of stages side by side it is one of them
            effects.setdefault((whole.stage, whole.since), whole)
        found += effects.values()
    return [effect for effect in found if effect.change.paired]


def _row(effect: Effect) -> tuple[Text, ...]:
    """A comparison: the observed difference, the least that it finds with a probability of 80 %,
    and the prompts that the observed one needs."""
    change = effect.change
    n, share = change.after.n, (change.changed or 0) / change.after.n
    least, seen = detectable_effect(n, share), points(change.delta)
    return (
        (f"{effect.stage} since {effect.since}", small(effect.metric.label)),
        (str(n), small(percent(share))),
        seen if effect.direction == "unclear" else strong(seen),
        "none" if math.isinf(least) else f"{100 * least:.1f}",
        _needed(change.delta, share) if change.delta else "–",
    )


def _needed(difference: float, share: float) -> str:
    try:
        return f"{needed_n(difference, share):,}"
    except ValueError:  # one prompt of tens of thousands
        return "over 1,000,000,000"


def noises(run: RunResults) -> Iterator[tuple[Text, ...]]:
    """The spread over seeds of each rate of every sampled model."""
    for kind in dict.fromkeys(metric.kind for metric in METRICS):
        metrics = {one.name: one for one in METRICS if one.kind == kind}
        outcomes = {name: evaluation_of(kind).outcomes[name] for name in metrics}
        for model in run.shown(kind):
            samples = model.samples(kind)
            for name, floor in (sampled.noise_floors(samples, outcomes) if samples else {}).items():
                yield (
                    (model.name, small(metrics[name].label)),
                    (f"{floor['n']:.0f}", small(f"{floor['seeds']:.0f}")),
                    percent(floor["mean"]),
                    percent(floor["flip_rate"]),
                    f"±{100 * floor['bound']:.1f}",
                )


SECTION = Section(title="Certainty", heading="What could have been found", order=30, blocks=blocks)
