"""Applies one rule of a gate to the answers: the finding, whether the rule holds, and how many
prompts would tell more. `flows.promotion.gate_rules` says what rules are."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal, NamedTuple

from flows.runs.effects import Change, Metric, Part, change_between, outcomes
from flows.runs.wording import change_text, figure, sample_text
from schemas.base import StrictModel
from schemas.evaluation import EvalItem
from schemas.examples import Domain
from schemas.recipe import GateRule, MustNotLose
from tasks.contract.kinds import evaluation_of
from tasks.evaluation.sampled import noise_floors
from tasks.statistics.intervals import Interval
from tasks.statistics.means import sign_flips, student_p
from tasks.statistics.noninferiority import evidence
from tasks.statistics.power import detectable_effect, needed_n, needed_n_noninferiority

LEAST = 30
"""Fewer prompts prove nothing, whatever they show. In simulation the intervals of so many cover the
truth 95 times of 100 or more."""

SMALLEST = 0.001
"""The smallest difference, a fraction, for which a finding says how many prompts would tell; for
smaller ones they are millions."""

BASE = "the base"
"""The opponent of a first champion, for people."""

Outcome = Literal["passed", "failed", "too few prompts", "not compared"]


class Side(StrictModel):
    """A rate, or a difference of two, as fractions of 1, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def interval(self) -> Interval:
        return Interval(self.low, self.high)


class Finding(StrictModel):
    """The finding on one rule.

    Attributes:
        rule: the list that the rule belongs to.
        quantity: whether it is about a metric function, with numbers in that function's unit.
        metric, suite, domain, margin: the rule itself.
        label: its subject, for people.
        before, after, difference: the opponent's rate, the candidate's, and after - before; None
            without a comparison.
        n: the prompts that both answered and the metric counts.
        p: one-sided: the largest probability of such a result if the rule does not hold; for a
            must-win rule after Holm's correction.
        noise: how far two runs of one model differ, where answers were sampled.
        detectable: the smallest difference that so many prompts find; None: they find none.
        needed: where the prompts are too few to tell: how many would, if the observed difference is
            true.
        text: the finding in words.
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
    """Both models' answers in one kind of evaluation.

    Attributes:
        before, after: the opponent's items and the candidate's, of the prompts that both answered.
        samples: the sampled answers of each model that was sampled.
        missing: the candidate's items of evaluations that the opponent was not asked.
    """

    before: Sequence[EvalItem] = ()
    after: Sequence[EvalItem] = ()
    samples: Sequence[Sequence[EvalItem]] = ()
    missing: Sequence[EvalItem] = ()


@dataclass(frozen=True)
class Look:
    """A rule with the observed change.

    Attributes:
        gain, seen: the difference turned so that more is better: its interval, and the observed
            one.
        margin: the loss that is to be excluded; 0 of a must-win rule.
        p: one-sided, uncorrected.
        level: the largest p that is allowed.
    """

    rule: GateRule
    metric: Metric
    change: Change
    gain: Interval
    seen: float
    margin: float
    noise: float | None
    p: float
    level: float

    @property
    def n(self) -> int:
        return self.change.after.n

    @property
    def discordant(self) -> float:
        """The fraction of prompts that changed."""
        return (self.change.changed or 0) / self.n

    def amount(self, value: float) -> str:
        return figure(value) if self.metric.quantity else _points(value)

    def needed(self, margin: float | None = None) -> int:
        """How many prompts would show the difference at the level or, with a margin, that it was
        not lost."""
        if margin is None:
            return needed_n(self.seen, self.discordant, level=self.level)
        return needed_n_noninferiority(margin, self.discordant, self.seen, level=self.level)

    def finding(
        self, outcome: Outcome, judgement: str, p: float, needed: int | None = None
    ) -> Finding:
        """The finding. Where the rule fails without a bounded loss, it says what so many prompts
        can detect."""
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
        values = (
            ("before", change.before.value, change.before.interval),
            ("after", change.after.value, change.after.interval),
            ("difference", change.delta, change.interval),
        )
        sides = {name: Side(value=value, **asdict(ends)) for name, value, ends in values}
        return shown.model_copy(update=sides | numbers)


def look_at(
    rule: GateRule, metric: Metric, answers: Answers, opponent: str, seed: int, level: float
) -> Look | Finding:
    """Compare both models by a rule; returns a finding at once where nothing can be compared."""
    part = Part(rule.suite, rule.domain)
    if outcomes(answers.missing, metric, part):
        why = (
            f": {opponent} was not asked as the candidate was, on the same prompts; the nightly"
            " flow does that"
        )
        if opponent == BASE:
            why += f", or a stage of kind {metric.kind} without inputs.policy in the recipe"
        return _finding(rule, metric, "not compared", why)
    before, after = (outcomes(side, metric, part) for side in (answers.before, answers.after))
    shared = [prompt for prompt in before if prompt in after]
    old, new = ({prompt: side[prompt] for prompt in shared} for side in (before, after))
    change = change_between(old, new, seed, quantity=metric.quantity)
    if change is None:
        why = "the candidate was asked no such prompt" if not after else "the other has no value"
        why = "one value tells nothing of others" if shared else why
        return _finding(rule, metric, "not compared", f": {why}")
    drawn = () if metric.quantity else answers.samples  # which functions do not measure
    floors = [
        noise_floors(list(filter(part.holds, samples)), {metric.name: metric.outcome})
        for samples in drawn
    ]
    noise = max((floor[metric.name]["bound"] for floor in floors if floor), default=None)
    sign = -1 if _lower_is_better(metric) else 1  # of gains more is better
    gains = [sign * (new[prompt] - old[prompt]) for prompt in shared]
    gain = Interval(*sorted((sign * change.interval.low, sign * change.interval.high)))
    # p is of the hypothesis that the margin or more was lost; without one, that nothing was won
    margin = _margin(rule) or 0.0
    if metric.quantity and not {*old.values(), *new.values()} <= {0, 1}:
        p = student_p(gains, margin)
        p = p if margin else max(p, sign_flips(gains, seed=seed) / 2)
    else:
        p = evidence(len(gains), gains.count(1), gains.count(-1), margin)
    return Look(rule, metric, change, gain, sign * change.delta, margin, noise, p, level)


def must_win(look: Look, p: float) -> Finding:
    """The finding on a must-win rule; `p` is corrected."""
    if look.gain.high < 0:
        return look.finding("failed", "a loss", p)
    if look.seen <= 0:
        return look.finding("failed", "no gain" if look.change.changed else "nothing changed", p)
    if look.gain.low <= 0 or p > look.level or look.n < LEAST:
        needed = None
        if look.seen >= SMALLEST and not look.metric.quantity:
            needed = max(LEAST, look.needed())
        why = f"no gain for certain, {_p(p)} after correction{_asked(p, look.level)}"
        return look.finding("too few prompts", why, p, needed)
    if look.noise is not None and look.seen <= look.noise:
        why = "no more than two runs of one model may differ when answers are sampled"
        return look.finding("failed", f"{why}, {look.amount(look.noise)}", p)
    return look.finding("passed", f"a gain, {_p(p)}", p)


def must_not_lose(look: Look) -> Finding:
    p = look.p
    excluded = look.gain.low > -look.margin and p <= look.level
    if excluded and look.n >= LEAST:
        return look.finding("passed", f"no loss of {look.amount(look.margin)}, {_p(p)}", p)
    if look.gain.high < 0 and look.gain.low <= -look.margin and look.n >= LEAST:
        return look.finding("failed", "a loss", p)
    asked = _asked(p, look.level)
    why = f"a loss of {look.amount(look.margin)} is not excluded, {_p(p)}{asked}"
    if look.metric.quantity:
        return look.finding("too few prompts", why, p)
    if excluded:
        needed = LEAST
    elif look.seen > -look.margin / 2 or look.gain.low > -look.margin:
        needed = look.needed(look.margin)
    else:  # nearer to the margin than to nothing: more prompts would first show a loss
        needed = look.needed()
    return look.finding("too few prompts", why, p, max(LEAST, needed))


def _p(value: float) -> str:
    """A p-value; one that is too small for a float would be shown as 0."""
    return "p < 1e-9" if value < 1e-9 else f"p = {value:.2g}"


def _asked(p: float, level: float) -> str:
    """The level that p exceeds; empty where it does not."""
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


def _points(fraction: float) -> str:
    return f"{100 * fraction:.1f} points"
