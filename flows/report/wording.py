"""Numbers and verdicts in words: the one way that the report, `lyceum compare` and the summary write them.

Rates are percent, differences are percentage points, intervals are 95 %; a true minus sign keeps columns aligned.
"""

from dataclasses import dataclass
from typing import Any, Literal

from flows.report.effects import METRICS, Change, Rate, overall_effect, stage_effect
from flows.report.results import Model, RunResults
from tasks.intervals import Interval

Tone = Literal["good", "bad", "flat", "plain"]
TONES: dict[str, Tone] = {"gain": "good", "loss": "bad", "unclear": "flat"}


@dataclass(frozen=True)
class Sentence:
    """A finding about `subject`, and how it is coloured. The full sentence is the two with a space between."""

    subject: str
    text: str
    tone: Tone


def percent(fraction: float | None) -> str:
    """0.623 -> 62.3%; None, a rate over nothing, -> a dash."""
    return "–" if fraction is None else f"{100 * fraction:.1f}%"


def points(fraction: float) -> str:
    """0.012 -> +1.2; -0.004 -> −0.4; a difference that rounds to zero has no sign."""
    text = f"{100 * fraction:+.1f}"
    return text[1:] if text in ("+0.0", "-0.0") else text.replace("-", "−")


def bounds(interval: Interval, signed: bool = False) -> str:
    """An interval of a rate, [58.1, 66.4], or of a difference, [−0.8, +3.1]."""
    if signed:
        return f"[{points(interval.low)}, {points(interval.high)}]"
    return f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def rate_text(rate: Rate | None) -> str:
    """62.3% [58.1, 66.4]"""
    return "–" if rate is None else f"{percent(rate.value)} {bounds(rate.interval)}"


def change_text(change: Change) -> str:
    """+1.2 points [−0.8, +3.1]"""
    return f"{points(change.delta)} points {bounds(change.interval, signed=True)}"


def sample_text(change: Change) -> str:
    """How many prompts a difference rests on: `360 prompts, paired`."""
    if change.paired:
        return f"{change.after.n} prompts, paired"
    return f"{change.before.n} and {change.after.n} prompts, unpaired"


def duration(seconds: float) -> str:
    """0.4 s, 42 s, 6 min 12 s, 2 h 5 min"""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: int) -> str:
    """Bytes in decimal units: 512 B, 1.2 MB."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def stage_verdict(run: RunResults, model: Model) -> Sentence:
    """One trained stage in one sentence: is its effect above zero, below it, or not to be told from it?

    The exact answer decides where it was measured. A stage without a measurable effect on it is not to be dropped if another metric gained.
    Metrics that were last measured further back are left out: their change is not this stage's alone.
    """
    if not model.evaluations:
        stage = run.stages[model.name]
        reason = "was not evaluated in this run" if stage.status in ("ran", "cached") else f"has no model ({stage.status})"
        return Sentence(model.name, f"{reason}, so nothing can be said about its effect.", "plain")
    effects = [effect for metric in METRICS if (effect := stage_effect(run, model, metric))]
    if not effects:
        return Sentence(model.name, "has no evaluated model before it, so nothing can be said about its effect.", "plain")
    first = effects[0]
    others = [effect for effect in effects[1:] if effect.since == first.since]
    tone = TONES[first.change.direction]
    up = [effect for effect in others if effect.change.direction == "gain"]
    down = [effect for effect in others if effect.change.direction == "loss"]
    judgement = {"good": "a gain", "bad": "a loss; drop it or change it", "flat": "no measurable effect"}[tone]
    if tone == "flat" and not up:
        judgement += "; consider dropping it"
    text = f"since {first.since}: {first.metric.label} {change_text(first.change)}, {judgement}."
    for direction, same_as, found in (("up", "good", up), ("down", "bad", down)):
        if found:
            listed = ", ".join(f"{effect.metric.label} {change_text(effect.change)}" for effect in found)
            text += f" Also {direction}: {listed}." if tone == same_as else f" {direction.capitalize()}: {listed}."
    return Sentence(model.name, text, tone)


def verdict_markdown(run: RunResults) -> str:
    """The verdict in Markdown: a table of the first evaluated model against the last, and a sentence per trained stage."""
    table = [
        f"| {effect.metric.label} | {effect.since}: {rate_text(effect.change.before)} | {effect.stage}: {rate_text(effect.change.after)} "
        f"| {change_text(effect.change)} | {sample_text(effect.change)} |"
        for metric in METRICS
        if (effect := overall_effect(run, metric))
    ]
    header = ["| held out | before | after | change | over |", "|---|---|---|---|---|"] if table else []
    verdicts = [stage_verdict(run, model) for model in run.models.values() if model.parent is not None]
    return "\n".join([*header, *table, "", *(f"- **{verdict.subject}** {verdict.text}" for verdict in verdicts)]).strip()


def figure(value: Any) -> str:
    """A metric's value: whole numbers with thousands separators, others with four significant digits, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", "−")
    return f"{value:,}".replace("-", "−") if isinstance(value, int) and not isinstance(value, bool) else str(value)


def clip(text: str, most: int = 1200) -> str:
    """At most `most` characters of a model's or a data set's text, and how many were left out. White space alone is made visible."""
    if not text.strip():
        text = repr(text)
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
