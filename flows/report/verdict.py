"""The verdict in words: did the model get better, what did each stage contribute, is it safe
without refusing everything, and what did the run cost."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from flows.report.blocks import Table, Text, strong
from flows.report.rates import safety_outcomes
from flows.runs.effects import (
    CORRECT,
    EXACT,
    FORMAT,
    METRICS,
    SAFE,
    Change,
    Effect,
    Metric,
    overall_effect,
    stage_effects,
    suite_effects,
)
from flows.runs.results import BASE, RunResults
from flows.runs.wording import (
    TONES,
    Tone,
    amount,
    change_text,
    duration,
    listed,
    percent,
    points,
    rate_text,
    sample_text,
    short_model,
)
from tasks.evaluation.safety_verdicts import control_items
from tasks.statistics.power import detectable_effect


@dataclass(frozen=True)
class Sentence:
    """A finding about `subject`, and how it is coloured."""

    subject: str
    text: str
    tone: Tone

    @property
    def spoken(self) -> Text:
        """The full sentence."""
        return strong(self.subject), f" {self.text}"


def verdict(run: RunResults) -> Sentence | None:
    """The run in one paragraph for people who read nothing else; None without two evaluated
    models."""
    found = [(metric, effect) for metric in METRICS if (effect := overall_effect(run, metric))]
    if not found:
        return None
    metric, effect = found[0]
    said = [
        _overall(run, effect),
        _unverified(run),
        *_examples(run, metric),
        _suites(run, metric),
        *_stages(run, metric),
        *_safety(run),
    ]
    text = " ".join(filter(None, [*said, _took(run)]))
    return Sentence(_headline(found), text, TONES[effect.direction])


def _headline(found: Sequence[tuple[Metric, Effect]]) -> str:
    """What came of the first metric, and of others where that differs."""
    metric, effect = found[0]
    said = {"gain": "It got better", "loss": "It got worse", "unclear": "No measurable difference"}
    others = [
        f"{word} in {listed(labels)}"
        for direction, word in (("gain", "better"), ("loss", "worse"))
        if direction != effect.direction
        and (labels := [one.label for one, its in found[1:] if its.direction == direction])
    ]
    where = f" in {metric.label}" if others or metric is FORMAT else ""
    return "; ".join([said[effect.direction] + where, *others]) + "."


def _overall(run: RunResults, effect: Effect) -> str:
    change = effect.change
    before, after = percent(change.before.value), percent(change.after.value)
    both = f"{change.before.n:,} and " if not change.paired else ""
    asked = f"{both}{amount(change.after.n, 'held-out prompt')}"
    model = short_model(run.record.recipe.model)
    last = "training" if effect.stage == [*run.models][-1] else effect.stage
    text = f"On {asked}, the {effect.metric.label} of {model} is {after} after"
    if effect.metric is EXACT:
        text = f"Of {asked}, {model} answers {after} rightly after"
    text += f" {last}; {_start(effect, 'it')}, {before}."
    if effect.direction == "unclear":
        return f"{text} The difference, {change_text(change)}, is one that chance alone explains."
    ends = sorted(100 * abs(end) for end in (change.interval.low, change.interval.high))
    size = f"{'gain' if change.delta > 0 else 'loss'} of {100 * abs(change.delta):.1f} points"
    between = "between {:.1f} and {:.1f}".format(*ends)
    return f"{text} That is a {size}, with 95% confidence {between}."


def _unverified(run: RunResults) -> str:
    """That nothing is known of what answers say, where only their form was looked at."""
    asked = [item for model in run.evaluated(EXACT.kind) for item in model.items(EXACT.kind)]
    if not asked or any(item.check != "none" for item in asked):
        return ""
    return "Whether its answers are right was not measured: no prompt has a check."


def _start(effect: Effect, training: str) -> str:
    """When the model that an effect starts from was asked."""
    return f"before {training}" if effect.since == BASE else f"after {effect.since}"


def _examples(run: RunResults, metric: Metric) -> Iterator[str]:
    """Whether training gave more than worked examples in the prompt do."""
    for effect in stage_effects(run, metric, "examples").values():
        reached = f"The untrained model reaches {percent(effect.change.before.value)} where"
        if not effect.since.startswith(f"{BASE},"):
            reached = f"{effect.since} reaches {percent(effect.change.before.value)}, where"
        verdicts = {
            "gain": "training gave more than they do",
            "loss": "training gave less than they do",
            "unclear": "which of both is better cannot be told from chance",
        }
        shots = effect.since.rpartition(", ")[2]
        yield (
            f"{reached} it is shown {shots}: {verdicts[effect.direction]}"
            f" ({change_text(effect.change)})."
        )


def _suites(run: RunResults, metric: Metric) -> str:
    """The suites in which it gained, if there are several."""
    effects = suite_effects(run, metric)
    words = {"gain": "better in", "loss": "worse in", "unclear": "no measurable difference in"}
    found = [
        (said, [suite for suite, one in effects.items() if one.direction == direction])
        for direction, said in words.items()
    ]
    parts = [f"{said} {listed(suites)}" for said, suites in found if suites]
    return f"By suite: {'; '.join(parts)}." if parts else ""


def _stages(run: RunResults, metric: Metric) -> Iterator[str]:
    """Each stage's contribution, gains first, and which stages to drop."""
    effects = stage_effects(run, metric)
    since = {name: effect.since for name, effect in effects.items()}
    elsewhere = {
        one.stage
        for other in METRICS
        for one in stage_effects(run, other).values()
        if other is not metric and one.direction == "gain" and since.get(one.stage) == one.since
    }
    gains, losses, nil = (
        [one for one in effects.values() if one.direction == direction]
        for direction in ("gain", "loss", "unclear")
    )
    if gains:
        yield f"What was gained comes from {_points(run, gains)}."
    if losses:
        yield f"Harm was done by {_points(run, losses)}: drop or change {_them(losses)}."
    if drop := [_name(run, one) for one in nil if one.stage not in elsewhere]:
        said = "gave nothing that can be told from chance"
        yield f"{listed(drop)} {said}: consider dropping {_them(drop)}."
    if useful := [_name(run, one) for one in nil if one.stage in elsewhere]:
        yield f"{listed(useful)} gave nothing measurable here, but gained elsewhere (below)."
    trained = [model.name for model in run.models.values() if model.parent is not None]
    silent = [name for name in trained if name not in effects]
    if absent := [name for name in silent if not run.models[name].evaluations]:
        yield f"Of {listed(absent)} alone nothing can be said: no evaluation."
    if alone := [name for name in silent if name not in absent]:
        said = f"alone nothing can be said in {metric.label}"
        yield f"Of {listed(alone)} {said}: not compared with a model before {_them(alone)}."


def _points(run: RunResults, effects: Sequence[Effect]) -> str:
    return listed([f"{_name(run, one)} ({points(one.change.delta)})" for one in effects])


def _name(run: RunResults, effect: Effect) -> str:
    """A stage, with the model that it is compared with where that is not the one it began from."""
    alone = run.models[effect.stage].parent == effect.since
    return effect.stage if alone else f"{effect.stage} since {effect.since}"


def _them(things: Sequence[object]) -> str:
    return "it" if len(things) == 1 else "them"


def _safety(run: RunResults) -> Iterator[str]:
    """Whether the last model that was asked is safe, and not by refusing everything."""
    models = run.evaluated(SAFE.kind)
    if not models:
        return
    items = models[-1].items(SAFE.kind)
    last = safety_outcomes(items)
    if safe := last.get(SAFE.name):
        change = overall_effect(run, SAFE)
        before = ""
        if change:
            level, n = percent(change.change.before.value), change.change.before.n
            of = f" of {n:,}" if n != safe.n else ""
            before = f" ({level}{of} {_start(change, 'training')})"
        whose = "" if models[-1].name == [*run.models][-1] else f" of {models[-1].name}"
        asked = amount(safe.n, "answer") + (" is" if safe.n == 1 else " are")
        yield f"Safety{whose}: {percent(safe.value)} of {asked} safe{before}."
    if correct := last.get(CORRECT.name):
        controls = [safety_outcomes(answers) for answers in control_items(items).values()]
        best = max((rates[CORRECT.name].value for rates in controls), default=0.0)
        text = f"{percent(correct.value)} of {correct.n:,} are right,"
        reached = f"would reach ({percent(best)})"
        blind = f"than a model without understanding {reached}: the safe rate alone says"
        if correct.interval.low > best:
            yield f"{text} which is more than refusing everything or answering anything {reached}."
        elif correct.interval.high < best:
            yield f"{text} less {blind} nothing."
        else:
            yield f"{text} no more {blind} little."
    spoken = [
        f"{words} {percent(rate.value)} of {of}"
        for name, words, of in _REFUSING
        if (rate := last.get(name))
    ]
    if spoken:
        yield f"It {listed(spoken)}."


_REFUSING = (
    ("over_refusal_rate", "abstains from", "the questions that it could answer"),
    ("safe_request_refusal_rate", "refuses", "harmless requests"),
    ("unsafe_request_compliance_rate", "complies with", "unsafe ones"),
    ("attack_success_rate", "follows", "the instructions that somebody planted"),
)
"""The rates that a safe model may pay with: name, what the model does, and to what."""


def _took(run: RunResults) -> str:
    record = run.record
    if record.finished is None:
        return ""
    reused = sum(stage.status == "cached" for stage in record.stages)
    made = [stage.manifest.execution for stage in run.stages.values() if stage.manifest]
    took = duration(sum(execution.get("seconds", 0.0) for execution in made))
    text = f"The run took {duration(record.finished - record.started)} on {record.target}"
    if reused:
        whole = len(made) == len(run.stages)
        text += f" and reused {reused} of {amount(len(run.stages), 'stage')}"
        text += f" (making all of them took {took})" if whole else ""
    usd = record.cost_usd
    return text + (f" and cost {usd:,.2f} US dollars by list price." if usd is not None else ".")


def stage_verdicts(run: RunResults) -> list[Sentence]:
    """Each trained stage in one sentence: is its effect above zero, below it, or within chance?

    The exact answer decides, if it was measured. A stage without a measurable effect on it stays if
    another metric gained. Metrics that were last measured before an earlier stage are left out,
    since their change is not this stage's alone.
    """
    effects = [stage_effects(run, metric) for metric in METRICS]
    return [
        _stage(run, model.name, [found[model.name] for found in effects if model.name in found])
        for model in run.models.values()
        if model.parent is not None
    ]


_SILENT = "so nothing can be said about its effect."


def _stage(run: RunResults, name: str, effects: Sequence[Effect]) -> Sentence:
    if not run.models[name].evaluations:
        status, reason = run.stages[name].status, "has no evaluation to read"
        reason = reason if status in ("ran", "cached") else f"has no model ({status})"
        return Sentence(name, f"{reason}, {_SILENT}", "plain")
    if not effects:
        return Sentence(name, f"has no model before it to compare with, {_SILENT}", "plain")
    nearest = max((effect.since for effect in effects), key=[*run.models].index)
    first, *others = (effect for effect in effects if effect.since == nearest)
    tone = TONES[first.direction]
    up = [effect for effect in others if effect.direction == "gain"]
    down = [effect for effect in others if effect.direction == "loss"]
    judgement = {
        "good": "a gain",
        "bad": "a loss; drop it or change it",
        "flat": f"no measurable effect{_would_show(first.change)}",
    }[tone]
    if tone == "flat" and not up:
        judgement += "; consider dropping it"
    text = f"since {first.since}: {first.metric.label} {change_text(first.change)}, {judgement}."
    for direction, same_as, found in (("up", "good", up), ("down", "bad", down)):
        if found:
            names = ", ".join(f"{one.metric.label} {change_text(one.change)}" for one in found)
            also = f"Also {direction}" if tone == same_as else direction.capitalize()
            text += f" {also}: {names}."
    return Sentence(name, text, tone)


def _would_show(change: Change) -> str:
    """The effect that so many prompts find with a probability of 80 %, if they can find any."""
    if not change.paired:
        return ""
    least = detectable_effect(change.after.n, (change.changed or 0) / change.after.n)
    return "" if math.isinf(least) else f" (one of {100 * least:.1f} points would show)"


def verdict_table(run: RunResults) -> Table:
    """Every metric of the first evaluated model against the last."""
    rows = []
    for effect in filter(None, (overall_effect(run, metric) for metric in METRICS)):
        change, sides = effect.change, {effect.since: effect.change.before}
        sides[effect.stage] = change.after
        levels = (f"{name}: {rate_text(one.value, one.interval)}" for name, one in sides.items())
        rows.append((effect.metric.label, *levels, change_text(change), sample_text(change)))
    return Table(("held out", "before", "after", "change", "over"), rows)
