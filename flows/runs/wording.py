"""Numbers in words: the one way that the report, `lyceum compare`, the gate and the summary write
them.

Rates are percent, differences are percentage points, intervals are 95 %; a true minus sign keeps
columns aligned.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:  # every command loads this file, and few of them load NumPy and all stage kinds
    from flows.runs.effects import Change, Direction
    from tasks.statistics.intervals import Interval

Tone = Literal["good", "bad", "flat", "plain"]
TONES: "dict[Direction, Tone]" = {"gain": "good", "loss": "bad", "unclear": "flat"}

KEY_METRICS = (
    "exact_answer",
    "safe_rate",
    "correct_rate",
    "format_rate",
    "reward_last",
    "accuracy_last",
    "margin_last",
    "loss_first",
    "loss_last",
)
HEADLINE_METRICS = 3
"""How many of them a stage shows in one line."""

_LABELS = {
    "marker_rate": "reasoning markers",
    "truncated_rate": "cut off",
    "answerable_correct_rate": "correct where answerable",
    "over_refusal_rate": "over-refusal",
    "novel_exact_answer": "exact answer, novel prompts",
}


def label(name: str) -> str:
    """A rate's name for people."""
    return _LABELS.get(name, name.removesuffix("_rate").replace("_", " "))


def percent(fraction: float | None) -> str:
    """0.623 -> 62.3%; None, a rate over nothing, -> a dash."""
    return "–" if fraction is None else f"{100 * fraction:.1f}%"


def points(fraction: float) -> str:
    """0.012 -> +1.2; -0.004 -> −0.4; a difference that rounds to zero has no sign."""
    text = f"{100 * fraction:+.1f}"
    return text[1:] if text in ("+0.0", "-0.0") else text.replace("-", "−")


def level(value: float, quantity: bool = False) -> str:
    """A rate, 62.3%, or the mean of a quantity, 17.25."""
    return figure(value) if quantity else percent(value)


def gap(value: float, quantity: bool = False) -> str:
    """A difference of rates, in points, +1.2, or of means, +0.034."""
    if not quantity:
        return points(value)
    return f"{value:+.3g}".replace("-", "−") if value else "0"


def bounds(interval: "Interval", signed: bool = False, quantity: bool = False) -> str:
    """An interval of a rate, [58.1, 66.4], or of a difference, [−0.8, +3.1]."""
    if quantity:
        write = partial(gap, quantity=True) if signed else figure
        return f"[{write(interval.low)}, {write(interval.high)}]"
    if signed:
        return f"[{points(interval.low)}, {points(interval.high)}]"
    return f"[{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def rate_text(value: float, interval: "Interval", quantity: bool = False) -> str:
    """62.3% [58.1, 66.4]; of a mean, 17.25 [16.9, 17.6]"""
    return f"{level(value, quantity)} {bounds(interval, quantity=quantity)}"


def change_text(change: "Change") -> str:
    """+1.2 points [−0.8, +3.1]; of means, in their own unit, +0.034 [+0.01, +0.058]"""
    return difference_text(change.delta, change.interval, change.quantity)


def difference_text(value: float, interval: "Interval", quantity: bool) -> str:
    """A difference in words, as in `change_text`."""
    unit = "" if quantity else " points"
    return f"{gap(value, quantity)}{unit} {bounds(interval, True, quantity)}"


def amount(count: int, thing: str) -> str:
    """0 prompts, 1 prompt, 1,319 prompts"""
    return f"{count:,} {thing}{'s' * (count != 1)}"


def sample_text(change: "Change") -> str:
    """How many prompts a difference rests on: `360 prompts, paired`."""
    if change.paired:
        return f"{amount(change.after.n, 'prompt')}, paired"
    return f"{change.before.n:,} and {amount(change.after.n, 'prompt')}, unpaired"


def listed(words: Sequence[str]) -> str:
    """a, b and c"""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def duration(seconds: float) -> str:
    """0.4 s, 42 s, 6 min 12 s, 2 h 5 min"""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def size(count: int) -> str:
    """Bytes in decimal units: 512 B, 1.2 MB."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def figure(value: Any) -> str:
    """A metric's value: whole numbers with thousands separators, others with four significant
    digits, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return (f"{value:,}" if isinstance(value, int) else f"{value:.4g}").replace("-", "−")


def headline(metrics: dict[str, Any]) -> str:
    """The few numbers of a stage that people look for first or, without any of those, its first
    few."""
    numbers = dict(_numbers(metrics))
    shown = [name for name in KEY_METRICS if name in numbers] or list(numbers)
    return ", ".join(f"{name} {figure(numbers[name])}" for name in shown[:HEADLINE_METRICS])


def short_model(model: str) -> str:
    """A recipe's `model` for people; a directory's own name alone."""
    return Path(model).name if model.startswith(("/", ".", "~")) else model


def _numbers(metrics: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield prefix + name, value
