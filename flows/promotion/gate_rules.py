"""The rules of a gate: what each is about, whether it holds, and when there is nothing to hold it
by.

A rule compares one rate of two models over the prompts that both answered: the paired difference,
its 95 % interval and McNemar's exact p-value (`tasks.statistics.intervals`); or the mean of a
metric function, by `tasks.statistics.means`, of which nobody says how many prompts would tell. A
rule that is not shown to hold does not hold; no rule holds over fewer than LEAST prompts.

- *must win*: the interval lies above zero, p is at most ALPHA after Holm's correction over all
  rules of this kind (so chance lets an equal model win anything in at most 2.5 % of all nights),
  and where answers were sampled, too, the gain is larger than the difference that two runs of one
  model show (`tasks.statistics.noise_floor`).
- *must not lose*: non-inferiority. The lower end of the interval lies above -margin: a loss that
  large is excluded. That no loss was seen is not enough. All such rules have to hold, so they need
  no correction: an error of any one is at most 2.5 % (Berger 1982, the intersection-union test).

A rule that does not hold is either a bounded loss (the interval lies below zero), or the prompts
are too few to tell, and then it is said how large a difference so many prompts find, and how many
would tell (`tasks.statistics.power`: with a power of 80 %, looked at alone).
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from flows.runs.effects import (
    ALPHA,
    EXACT,
    METRICS,
    Change,
    Metric,
    Part,
    change_between,
    corrected,
    outcomes,
)
from flows.runs.wording import change_text, figure, label, sample_text
from schemas.base import InputError, StrictModel, nearest
from schemas.evaluation import HELDOUT, EvalItem
from schemas.examples import Domain
from schemas.recipe import GateRule, GateSpec, MustNotLose
from tasks.contract.kind import Product
from tasks.contract.kinds import evaluation_of, kinds_producing
from tasks.evaluation.metric_functions import Measured, measured_in
from tasks.statistics.intervals import Interval
from tasks.statistics.noise_floor import noise_floor
from tasks.statistics.power import detectable_effect, needed_n, needed_n_noninferiority

LEAST = 30
"""Fewer prompts prove nothing, whatever they show. The intervals of so many hold the truth 95 times
of 100 or more, in simulation."""

SMALLEST = 0.001
"""Of a smaller difference, a fraction, it is not said how many prompts would tell: millions."""

MARGIN, DOMAIN_MARGIN = 0.05, 0.10
"""Of the default gate: over all prompts, and in a domain, which has fewer of them."""

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
        p: of a must-win rule: McNemar's, after Holm's correction.
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


def metric_of(
    rule: GateRule,
    asked: Mapping[str, Collection[str]],
    functions: Mapping[str, Collection[str]],
) -> Metric:
    """The metric that a rule is about; `asked`: the suites that the model is asked by each kind of
    evaluation; `functions`: the metric functions of each.

    Raises:
        InputError: no evaluation has such a metric, or none that has it asks the last model, or not
            this suite.
    """
    comparable = {
        kind: {*evaluation_of(kind).paired, *functions.get(kind, ())}
        for kind in kinds_producing(Product.ANSWERS)
    }
    kinds = [kind for kind, names in comparable.items() if rule.metric in names]
    if not kinds:
        valid = sorted({name for names in comparable.values() for name in names})
        raise InputError(
            f"metric = {rule.metric!r} is nothing that a gate can"
            f" compare.{nearest(rule.metric, valid)}"
        )
    evaluated = [kind for kind in kinds if asked.get(kind)]
    if not evaluated:
        wanted = " or ".join(kinds)
        raise InputError(
            f"metric = {rule.metric!r} is measured by {wanted}, and no stage of that kind evaluates"
            " the last trained model."
        )
    chosen = [kind for kind in evaluated if rule.suite is None or rule.suite in asked[kind]]
    if not chosen:
        valid = sorted({suite for kind in evaluated for suite in asked[kind]})
        raise InputError(
            f"suite = {rule.suite!r} is none that {' or '.join(evaluated)} asks the last trained"
            f" model.{nearest(str(rule.suite), valid)}"
        )
    known = {(metric.kind, metric.name): metric for metric in METRICS}
    outcome = evaluation_of(chosen[0]).outcomes.get(rule.metric)
    if outcome is None:
        return Metric(chosen[0], rule.metric, rule.metric, Measured(rule.metric))
    made = Metric(chosen[0], rule.metric, label(rule.metric), outcome)
    return known.get((made.kind, made.name), made)


def default_gate(answers: Mapping[str, Answers]) -> GateSpec | None:
    """The gate of a recipe that has none, for what the candidate was asked, by kind of evaluation;
    None when nothing in it counts.

    A gain in any one of exact answer, format, safe rate and correct rate, and in none of those a
    loss of MARGIN, nor, of exact answers, of DOMAIN_MARGIN in any domain. A kind that only the
    opponent was asked is in it too: it has to be measured again.
    """
    asked = {kind: [*one.after, *one.missing] for kind, one in answers.items()}
    measured = [
        metric
        for metric in METRICS
        if metric.kind in asked and (outcomes(asked[metric.kind], metric) or not asked[metric.kind])
    ]
    if not any(asked.values()) or not measured:
        return None
    domains = [
        domain
        for domain in Domain
        if outcomes(asked.get(EXACT.kind, ()), EXACT, Part(domain=domain))
    ]
    wins = [GateRule(metric=metric.name) for metric in measured]
    guards = [MustNotLose(metric=metric.name, margin=MARGIN) for metric in measured]
    if len(domains) > 1:
        parts = [{"metric": EXACT.name, "domain": domain} for domain in domains]
        guards += [MustNotLose.parse({**part, "margin": DOMAIN_MARGIN}) for part in parts]
    return GateSpec(must_win=tuple(wins), wins="any", must_not_lose=tuple(guards))


def findings(
    spec: GateSpec, answers: Mapping[str, Answers], opponent: str, seed: int
) -> list[Finding]:
    """Every rule of a gate, held against the answers, must_win first.

    Args:
        answers: what both said, by kind of evaluation; of a kind that only the opponent was asked,
            nothing.
        opponent: what people call it.
        seed: of the bootstrap.

    Raises:
        InputError: what `metric_of` raises.
    """
    asked = {
        kind: {item.suite for item in (*one.after, *one.missing)} or {HELDOUT}
        for kind, one in answers.items()
    }
    functions = {kind: measured_in([*one.after, *one.missing]) for kind, one in answers.items()}
    looks: list[_Look | Finding] = []
    for rule in (*spec.must_win, *spec.must_not_lose):
        metric = metric_of(rule, asked, functions)
        looks.append(_look(rule, metric, answers.get(metric.kind, Answers()), opponent, seed))
    wins = enumerate(looks[: len(spec.must_win)])
    p = corrected({n: look.change for n, look in wins if isinstance(look, _Look)})
    found = []
    for n, look in enumerate(looks):
        if isinstance(look, _Look):
            look = _must_win(look, p[n]) if n in p else _must_not_lose(look)
        found.append(look)
    return found


@dataclass(frozen=True)
class _Look:
    """A rule, and the change that was found."""

    rule: GateRule
    metric: Metric
    change: Change
    noise: float | None

    @property
    def n(self) -> int:
        return self.change.after.n

    @property
    def margin(self) -> float:
        return self.rule.margin if isinstance(self.rule, MustNotLose) else 0.0

    @property
    def gain(self) -> Interval:
        """The interval of the difference, turned so that more is better."""
        low, high = self.change.interval.low, self.change.interval.high
        return Interval(-high, -low) if _lower_is_better(self.metric) else Interval(low, high)

    @property
    def seen(self) -> float:
        """The difference, turned so that more is better."""
        return -self.change.delta if _lower_is_better(self.metric) else self.change.delta

    def amount(self, value: float) -> str:
        """A difference in words."""
        return figure(value) if self.metric.quantity else _points(value)

    @property
    def discordant(self) -> float:
        """The fraction of prompts that changed."""
        return (self.change.changed or 0) / self.n

    def finding(
        self, outcome: Outcome, judgement: str, *, p: float | None = None, needed: int | None = None
    ) -> Finding:
        """The finding, with what so many prompts can tell where the rule does not hold and that is
        not for a bounded loss."""
        found = None
        if not self.metric.quantity:
            detectable = detectable_effect(self.n, self.discordant)
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


def _look(
    rule: GateRule, metric: Metric, answers: Answers, opponent: str, seed: int
) -> _Look | Finding:
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
    return _Look(rule, metric, change, noise)


def _must_win(look: _Look, p: float) -> Finding:
    if look.gain.high < 0:
        return look.finding("failed", "a loss", p=p)
    if look.seen <= 0:
        return look.finding("failed", "no gain" if look.change.changed else "nothing changed", p=p)
    if look.gain.low <= 0 or p > ALPHA or look.n < LEAST:
        needed = None
        if look.seen >= SMALLEST and not look.metric.quantity:
            needed = max(LEAST, needed_n(look.seen, look.discordant))
        why = f"no gain for certain, p = {p:.2g} after correction"
        return look.finding("too few prompts", why, p=p, needed=needed)
    if look.noise is not None and look.seen <= look.noise:
        why = "no more than two runs of one model may differ when answers are sampled"
        return look.finding("failed", f"{why}, {look.amount(look.noise)}", p=p)
    return look.finding("passed", "a gain", p=p)


def _must_not_lose(look: _Look) -> Finding:
    if look.gain.low > -look.margin and look.n >= LEAST:
        return look.finding("passed", f"no loss of {look.amount(look.margin)}")
    if look.gain.high < 0 and look.n >= LEAST:
        return look.finding("failed", "a loss")
    why = f"a loss of {look.amount(look.margin)} is not excluded"
    if look.metric.quantity:
        return look.finding("too few prompts", why)
    if look.gain.low > -look.margin:
        needed = LEAST
    elif look.seen > -look.margin / 2:
        needed = needed_n_noninferiority(look.margin, look.discordant, look.seen)
    # nearer to the margin than to nothing: what more prompts would tell first is that it is a loss
    else:
        needed = needed_n(look.seen, look.discordant)
    return look.finding("too few prompts", why, needed=max(LEAST, needed))


def _finding(rule: GateRule, metric: Metric, outcome: Outcome, text: str) -> Finding:
    """A finding without numbers; `text` follows the rule's label."""
    margin = rule.margin if isinstance(rule, MustNotLose) else None
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
