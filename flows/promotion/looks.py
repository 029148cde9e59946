"""One rule of a gate, held against the answers: what was found, whether the rule holds, and what
more prompts would tell. `flows.promotion.gate_rules` says what rules are."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from flows.runs.effects import Change, Metric, Part, change_between, outcomes
from flows.runs.wording import change_text, figure, sample_text
from schemas.base import StrictModel
from schemas.evaluation import EvalItem
from schemas.examples import Domain
from schemas.recipe import GateRule, MustNotLose
from tasks.contract.kinds import evaluation_of
from tasks.statistics.intervals import Interval
from tasks.statistics.means import sign_flips, student_p
from tasks.statistics.noise_floor import noise_floor
from tasks.statistics.noninferiority import evidence
from tasks.statistics.power import detectable_effect, needed_n, needed_n_noninferiority

LEAST = 30
"""Fewer prompts prove nothing, whatever they show. The intervals of so many hold the truth 95 times
of 100 or more, in simulation."""

SMALLEST = 0.001
"""Of a smaller difference, a fraction, it is not said how many prompts would tell: millions."""

Outcome = Literal["passed", "failed", "too few prompts", "not compared"]


class Side(StrictModel):
    """A rate, or a difference of two, as fractions of 1, with its 95 % interval."""

    value: float
    low: float
    high: float


class Finding(StrictModel):
    """What became of one rule.

    Attributes:
        rule: which of the two lists it is of.
        quantity: it is about a metric function; its numbers are in that function's unit.
        metric, suite, domain, margin: the rule itself.
        label: what it is about, for people.
        before, after, difference: the opponent's rate, the candidate's, and after - before; None
            where nothing was compared.
        n: prompts that both answered and the metric counts.
        p: one-sided: how probable such a result is, at most, if the rule does not hold; of a
            must-win rule after Holm's correction.
        noise: where answers were sampled: how far two runs of one model differ.
        detectable: the smallest difference that so many prompts find; None: none at all.
        needed: where the prompts are too few to tell: how many would tell, if what was seen is
            true.
        text: all of it for people.
    """

    rule: Literal["must_win", "must_not_lose"]
    quantity: bool = False
    metric: str
    suite: str | None
    domain: Domain | None
    margin: float | None
    label: str
    before: Side | None = None
    after: Side | None = None
    difference: Side | None = None
    n: int = 0
    p: float | None = None
    noise: float | None = None
    detectable: float | None = None
    needed: int | None = None
    outcome: Outcome
    text: str


class Answers(NamedTuple):
    """What both models said, of one kind of evaluation.

    Attributes:
        before, after: the opponent's items and the candidate's, of the prompts that both answered.
        samples: of each model that was sampled, its sampled answers.
        missing: the candidate's items of evaluations that the opponent was not asked.
    """

    before: Sequence[EvalItem] = ()
    after: Sequence[EvalItem] = ()
    samples: Sequence[Sequence[EvalItem]] = ()
    missing: Sequence[EvalItem] = ()


@dataclass(frozen=True)
class Look:
    """A rule, the change that was found, its one-sided p-value, not yet corrected, and the level
    that it is held to."""

    rule: GateRule
    metric: Metric
    change: Change
    noise: float | None
    p: float
    level: float

    @property
    def n(self) -> int:
        return self.change.after.n

    @property
    def changes(self) -> bool:
        """Whether any prompt has another outcome now."""
        return self.change.changed != 0

    @property
    def margin(self) -> float:
        return _margin(self.rule) or 0.0

    @property
    def gain(self) -> Interval:
        """The interval of the difference, turned so that more is better."""
        low, high = self.change.interval.low, self.change.interval.high
        return Interval(-high, -low) if _lower_is_better(self.metric) else Interval(low, high)

    @property
    def seen(self) -> float:
        """The difference, turned so that more is better."""
        return -self.change.delta if _lower_is_better(self.metric) else self.change.delta

    def wins(self, p: float) -> bool:
        """Whether a must-win rule holds, apart from the noise of sampling; p: corrected."""
        return self.gain.low > 0 and p <= self.level and self.n >= LEAST

    @property
    def excludes(self) -> bool:
        """Whether a loss of the margin is excluded, by however many prompts."""
        return self.gain.low > -self.margin and self.p <= self.level

    @property
    def keeps(self) -> bool:
        """Whether a must-not-lose rule holds."""
        return self.excludes and self.n >= LEAST

    def amount(self, value: float) -> str:
        """A difference in words."""
        return figure(value) if self.metric.quantity else _points(value)

    @property
    def discordant(self) -> float:
        """The fraction of prompts that changed."""
        return (self.change.changed or 0) / self.n

    def needed(self, margin: float | None = None) -> int:
        """How many prompts would tell, at the level; with a margin: that it was not lost."""
        if margin is None:
            return needed_n(self.seen, self.discordant, level=self.level)
        return needed_n_noninferiority(margin, self.discordant, self.seen, level=self.level)

    def finding(
        self, outcome: Outcome, judgement: str, p: float, needed: int | None = None
    ) -> Finding:
        """The finding, with what so many prompts can tell where the rule does not hold and that is
        not for a bounded loss."""
        found = None
        if not self.metric.quantity:
            detectable = detectable_effect(self.n, self.discordant, level=self.level)
            found = detectable if math.isfinite(detectable) else None
        text = f"{change_text(self.change)}, {judgement} ({sample_text(self.change)}"
        if outcome != "passed" and self.gain.high >= 0 and not self.metric.quantity:
            least = f"a difference of {_points(found)}" if found else "no difference"
            text += f", which find {least}" + (f"; {needed:,} would tell" if needed else "")
        shown = _finding(self.rule, self.metric, outcome, f" {text})")
        numbers = {"n": self.n, "p": p, "noise": self.noise, "detectable": found, "needed": needed}
        change = self.change
        sides = {
            "before": _side(change.before.value, change.before.interval),
            "after": _side(change.after.value, change.after.interval),
            "difference": _side(change.delta, change.interval),
        }
        return shown.model_copy(update=sides | numbers)


def look_at(
    rule: GateRule, metric: Metric, answers: Answers, opponent: str, seed: int, level: float
) -> Look | Finding:
    """What is found for a rule; a finding already where nothing can be compared."""

    def judged(items: Sequence[EvalItem]) -> dict[str, bool]:
        return outcomes(items, metric, Part(rule.suite, rule.domain))

    if judged(answers.missing):
        why = (
            f": {opponent} was not asked as the candidate was, on the same prompts; the nightly"
            " flow does that"
        )
        return _finding(rule, metric, "not compared", why)
    before, after = judged(answers.before), judged(answers.after)
    shared = [prompt for prompt in before if prompt in after]
    old, new = ({prompt: side[prompt] for prompt in shared} for side in (before, after))
    change = change_between(old, new, seed, quantity=metric.quantity)
    if change is None:
        why = "the candidate was asked no such prompt" if not after else "the other has no value"
        return _finding(rule, metric, "not compared", f": {why}")
    drawn = () if metric.quantity else answers.samples  # which functions do not measure
    sampled = filter(None, (_runs(samples, judged) for samples in drawn))
    noise = max((noise_floor(runs).bound for runs in sampled), default=None)
    gained = _gains(metric, list(old.values()), list(new.values()))
    p = _evidence(metric, gained, _margin(rule) or 0.0, seed)
    return Look(rule, metric, change, noise, p, level)


def _gains(metric: Metric, before: Sequence[float], after: Sequence[float]) -> list[float]:
    """What each prompt gained; more is better."""
    sign = -1 if _lower_is_better(metric) else 1
    return [sign * (new - old) for old, new in zip(before, after, strict=True)]


def _evidence(metric: Metric, gains: Sequence[float], margin: float, seed: int) -> float:
    """The one-sided p-value of the hypothesis that `margin` or more was lost; 0: nothing won."""
    if not metric.quantity:
        return evidence(len(gains), gains.count(1), gains.count(-1), margin)
    p = student_p(gains, margin)
    return p if margin else max(p, sign_flips(gains, seed=seed) / 2)


def must_win(look: Look, p: float) -> Finding:
    """What becomes of a must-win rule; p: corrected."""
    if look.gain.high < 0:
        return look.finding("failed", "a loss", p)
    if look.seen <= 0:
        return look.finding("failed", "no gain" if look.changes else "nothing changed", p)
    if not look.wins(p):
        needed = None
        if look.seen >= SMALLEST and not look.metric.quantity:
            needed = max(LEAST, look.needed())
        why = f"no gain for certain, p = {p:.2g} after correction{_asked(p, look.level)}"
        return look.finding("too few prompts", why, p, needed)
    if look.noise is not None and look.seen <= look.noise:
        why = "no more than two runs of one model may differ when answers are sampled"
        return look.finding("failed", f"{why}, {look.amount(look.noise)}", p)
    return look.finding("passed", f"a gain, p = {p:.2g}", p)


def must_not_lose(look: Look) -> Finding:
    """What becomes of a must-not-lose rule."""
    p = look.p
    if look.keeps:
        return look.finding("passed", f"no loss of {look.amount(look.margin)}, p = {p:.2g}", p)
    if look.gain.high < 0 and look.gain.low <= -look.margin and look.n >= LEAST:
        return look.finding("failed", "a loss", p)
    asked = _asked(p, look.level)
    why = f"a loss of {look.amount(look.margin)} is not excluded, p = {p:.2g}{asked}"
    if look.metric.quantity:
        return look.finding("too few prompts", why, p)
    if look.excludes:
        needed = LEAST
    # nearer to the margin than to nothing: what more prompts would tell first is that it is a loss
    elif look.seen > -look.margin / 2 or look.gain.low > -look.margin:
        needed = look.needed(look.margin)
    else:
        needed = look.needed()
    return look.finding("too few prompts", why, p, max(LEAST, needed))


def _asked(p: float, level: float) -> str:
    """What p should have been, where it was not."""
    return f" where the night asks for {level:.2g}" if p > level else ""


def _finding(rule: GateRule, metric: Metric, outcome: Outcome, text: str) -> Finding:
    """A finding without numbers; `text` follows the rule's label."""
    margin = _margin(rule)
    name = f"{metric.label} (lower is better)" if _lower_is_better(metric) else metric.label
    where = [f"on {rule.suite}"] if rule.suite else []
    about = " ".join([name, *where, *([f"in {rule.domain}"] if rule.domain else [])])
    return Finding(
        rule="must_win" if margin is None else "must_not_lose",
        quantity=metric.quantity,
        **{name: getattr(rule, name) for name in ("metric", "suite", "domain")},
        margin=margin,
        label=about,
        outcome=outcome,
        text=f"{about}{text}",
    )


def _margin(rule: GateRule) -> float | None:
    return rule.margin if isinstance(rule, MustNotLose) else None


def _lower_is_better(metric: Metric) -> bool:
    return metric.name in evaluation_of(metric.kind).lower_is_better


def _runs(
    samples: Sequence[EvalItem], judged: Callable[[Sequence[EvalItem]], dict[str, bool]]
) -> list[list[bool]]:
    """Sample number x prompt -> outcome, of the prompts that count in every sample; empty where
    there are none."""
    numbered: dict[int | None, list[EvalItem]] = {}
    for item in samples:
        numbered.setdefault(item.sample, []).append(item)
    found = [judged(items) for items in numbered.values()]
    prompts = [one for one in next(iter(found), ()) if all(one in other for other in found)]
    return [[one[prompt] for prompt in prompts] for one in found] if prompts else []


def _points(fraction: float) -> str:
    return f"{100 * fraction:.1f} points"


def _side(value: float, interval: Interval) -> Side:
    return Side(value=value, low=interval.low, high=interval.high)
