"""The effects of trained stages, with 95 % intervals: the numbers of the report and of `lyceum
compare`, computed from evaluation items.

Paired where both sides answered the same prompts: a bootstrap over the prompts' differences and
McNemar's exact test. Where fewer than half of the prompts are shared, the two rates are
independent: Newcombe's interval and the two-proportion score test (`tasks.statistics.intervals`).
Metric functions have means instead of rates, compared by Student's interval and sign flips, or by
Welch's (`tasks.statistics.means`).

An effect counts as a gain or a loss where its interval leaves out zero and its p-value is at most
ALPHA after Holm's correction, over two families for each metric: the effects of all stages over all
prompts, and those in all parts (suite x domain). A comparison in which no prompt changed does not
count, since its p-value could never be small (Tarone 1990).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from flows.runs.results import Model, RunResults
from schemas.evaluation import EvalItem
from schemas.examples import Domain
from tasks.contract.kind import Outcome, Product
from tasks.contract.kinds import evaluation_of, kinds_producing
from tasks.evaluation.metric_functions import Measured, measured_in
from tasks.statistics.intervals import (
    ALPHA,
    Interval,
    Key,
    Rate,
    holm,
    mcnemar,
    newcombe,
    paired_bootstrap,
)
from tasks.statistics.means import Mean, sign_flips, student, welch

Direction = Literal["gain", "loss", "unclear"]


@dataclass(frozen=True)
class Metric:
    """A rate that an evaluation kind defines (`tasks.contract.kind.Evaluation`), or a metric
    function, and how people call it. More of it is better."""

    kind: str
    name: str
    label: str
    outcome: Outcome | Measured

    @property
    def quantity(self) -> bool:
        """Whether its values are numbers in their own unit instead of true or false."""
        return isinstance(self.outcome, Measured)

    def row(self, part: "Part") -> dict[str, Any]:
        """The first fields of a JSON row about the metric in a part."""
        return {
            "kind": self.kind,
            "metric": self.name,
            "label": self.label,
            "quantity": self.quantity,
            "suite": part.suite,
            "domain": part.domain.value if part.domain else None,
        }


METRICS = tuple(
    Metric(kind, name, label, evaluation_of(kind).outcomes[name])
    for kind in kinds_producing(Product.ANSWERS)
    for name, label in evaluation_of(kind).headlines.items()
)
"""The headlines of all kinds of evaluation."""


def metrics_of(*runs: RunResults) -> list[Metric]:
    """The headlines, and the metric functions that models of the runs were measured by; a function
    of two kinds of evaluation is called after the kind, too."""
    found = {
        kind: measured_in(
            [item for run in runs for one in run.evaluated(kind) for item in one.items(kind)]
        )
        for kind in kinds_producing(Product.ANSWERS)
    }
    kinds = Counter(name for functions in found.values() for name in functions)
    return list(METRICS) + [
        Metric(kind, name, name if kinds[name] == 1 else f"{name} in {kind}", one)
        for kind, functions in found.items()
        for name, one in functions.items()
    ]


_BY_MEASURE = {
    what: [one for one in METRICS if evaluation_of(one.kind).measures == what]
    for what in ("skill", "safety")
}
EXACT, FORMAT, *_ = _BY_MEASURE["skill"]
SAFE, CORRECT, *_ = _BY_MEASURE["safety"]
"""The first two headlines of skill, and of safety."""


class Part(NamedTuple):
    """A part of an evaluation's prompts: one suite, one domain; None: all."""

    suite: str | None = None
    domain: Domain | None = None

    @property
    def label(self) -> str:
        return ": ".join(name for name in self if name) or "all"

    def holds(self, item: EvalItem) -> bool:
        return self.suite in (None, item.suite) and self.domain in (None, item.domain)


ALL = Part()


@dataclass(frozen=True)
class Change:
    """The difference of two rates, or means, after minus before, with its interval and its
    two-sided p-value; `n` prompts in both when paired.

    `changed`: how many prompts have another outcome now, if paired.
    """

    before: Rate | Mean
    after: Rate | Mean
    interval: Interval
    paired: bool
    p: float
    changed: int | None = None

    @property
    def delta(self) -> float:
        return self.after.value - self.before.value

    @property
    def quantity(self) -> bool:
        """Whether it compares means, in their own unit."""
        return isinstance(self.after, Mean)


@dataclass(frozen=True)
class Effect:
    """The change of one metric by training `stage`, against `since`, the nearest evaluated model
    before it. `p` is corrected."""

    stage: str
    since: str
    metric: Metric
    change: Change
    p: float

    @property
    def direction(self) -> Direction:
        return direction_of(self.change.interval, self.p)


def direction_of(interval: Interval, p: float) -> Direction:
    """Whether a difference is a gain, a loss or neither, given its interval and its p-value after
    correction."""
    if p > ALPHA:
        return "unclear"
    return "gain" if interval.low > 0 else "loss" if interval.high < 0 else "unclear"


def outcomes(items: Sequence[EvalItem], metric: Metric, part: Part = ALL) -> dict[Any, Any]:
    """A prompt's identity -> outcome (true or false; a number of a metric function), of the items
    of a part that count."""
    judged = {item.identity: metric.outcome(item) for item in items if part.holds(item)}
    return {prompt: outcome for prompt, outcome in judged.items() if outcome is not None}


def parts(items: Sequence[EvalItem]) -> list[Part]:
    """The parts of items: suites where there are several, and the domains of each suite that has
    several."""
    domains: dict[str, set[Domain]] = {}
    for item in items:
        domains.setdefault(item.suite, set()).add(item.domain)
    found = []
    for suite, inside in domains.items():
        found += [Part(suite)] if len(domains) > 1 else []
        shared = suite if len(domains) > 1 else None
        divided = [Part(shared, domain) for domain in Domain if domain in inside]
        found += divided if len(divided) > 1 else []
    return found


def change_between(
    before: Mapping[Any, Any], after: Mapping[Any, Any], seed: int, *, quantity: bool = False
) -> Change | None:
    """The change from `before` to `after` (a prompt's identity -> outcome), None when either side
    has no items, or, of quantities, fewer than two, of which nothing is known. `seed` draws the
    bootstrap."""
    if not before or not after:
        return None
    shared = [prompt for prompt in before if prompt in after]
    paired = 2 * len(shared) >= min(len(before), len(after))
    if paired:
        old, new = [before[prompt] for prompt in shared], [after[prompt] for prompt in shared]
    else:
        old, new = list(before.values()), list(after.values())
    if quantity:
        return _change_of_means(old, new, seed, paired)
    one, other = Rate(sum(old), len(old)), Rate(sum(new), len(new))
    if paired:
        changed = sum(was != now for was, now in zip(old, new, strict=True))
        interval = paired_bootstrap(old, new, seed=seed)
        return Change(one, other, interval, paired=True, p=mcnemar(old, new), changed=changed)
    interval = newcombe(one.successes, one.n, other.successes, other.n)
    return Change(one, other, interval, paired=False, p=_score_test(one, other))


def _change_of_means(
    old: Sequence[float], new: Sequence[float], seed: int, paired: bool
) -> Change | None:
    before, after = Mean.of(old), Mean.of(new)
    if before is None or after is None or min(before.n, after.n) < 2:
        return None
    if paired:
        gaps = [one - other for one, other in zip(new, old, strict=True)]
        interval, p = student(gaps), sign_flips(gaps, seed=seed)
        return Change(before, after, interval, True, p, sum(gap != 0 for gap in gaps))
    independent = welch(old, new)
    return Change(before, after, independent[0], False, independent[1]) if independent else None


def _score_test(before: Rate, after: Rate) -> float:
    """Two-sided p-value of the score test that two independent rates are the same."""
    pooled = (before.successes + after.successes) / (before.n + after.n)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / before.n + 1 / after.n))
    return 2 * NormalDist().cdf(-abs(after.value - before.value) / spread) if spread else 1.0


def corrected(changes: Mapping[Key, Change]) -> dict[Key, float]:
    """The p-values of one family after Holm's correction over those of its comparisons in which
    something changed."""
    return holm({key: None if one.changed == 0 else one.p for key, one in changes.items()})


Comparison = Literal["stages", "ends", "examples"]
"""Compares every model with the nearest one before it, the last with the first, or the last with
those that were shown worked examples."""


def stage_effects(
    run: RunResults, metric: Metric, what: Comparison = "stages"
) -> dict[str, Effect]:
    """Trained stage -> its effect over all prompts, where it and a model before it were evaluated.
    Of `examples`: model that was shown worked examples -> the lead of the last evaluated model,
    which was shown none. Corrected for their number."""
    return _family(run, metric, what, (ALL,)).get(ALL, {})


def part_effects(
    run: RunResults, metric: Metric, what: Comparison = "stages"
) -> dict[Part, dict[str, Effect]]:
    """Part -> `stage_effects` there."""
    return _family(run, metric, what, _parts_of(run, metric))


def overall_effect(run: RunResults, metric: Metric) -> Effect | None:
    """The change from the first evaluated model to the last; None with fewer than two."""
    return next(iter(stage_effects(run, metric, "ends").values()), None)


def suite_effects(run: RunResults, metric: Metric) -> dict[str, Effect]:
    """Suite -> the overall effect there, where there are several; corrected for their number."""
    suites = tuple(part for part in _parts_of(run, metric) if part.domain is None)
    found = _family(run, metric, "ends", suites)
    return {part.suite or "": one for part, effects in found.items() for one in effects.values()}


def _parts_of(run: RunResults, metric: Metric) -> tuple[Part, ...]:
    models = run.evaluated(metric.kind)
    return tuple(parts([item for model in models for item in model.items(metric.kind)]))


def _compared(run: RunResults, kind: str, what: Comparison) -> list[tuple[Model, Model]]:
    """The pairs of models to compare: before, after."""
    models = run.evaluated(kind)
    if what == "stages":
        above = [run.evaluated_ancestor(model, kind) for model in models]
        return [(one, model) for one, model in zip(above, models, strict=True) if one]
    if what == "ends":
        return [(models[0], models[-1])] if len(models) > 1 else []
    prompted = [one for one in run.prompted.values() if kind in one.evaluations]
    trained = [model for model in models if model.parent is not None]
    return [(one, last) for last in trained[-1:] for one in prompted]


@lru_cache(maxsize=6 * len(METRICS))  # enough for one run, so that each is computed once
def _family(
    run: RunResults, metric: Metric, what: Comparison, looks: tuple[Part, ...]
) -> dict[Part, dict[str, Effect]]:
    """The effects in each part, corrected over all of them, by their stages; those over examples by
    the model that was shown some."""
    changes: dict[tuple[Part, str, str], Change] = {}
    items: dict[str, list[EvalItem]] = {}
    pairs = _compared(run, metric.kind, what)
    for model in (model for both in pairs for model in both):
        items.setdefault(model.name, model.items(metric.kind))
    seed = run.record.recipe.seed
    for part in looks:
        judged = {name: outcomes(mine, metric, part) for name, mine in items.items()}
        for before, after in ((one.name, other.name) for one, other in pairs):
            sides = judged[before], judged[after]
            if change := change_between(*sides, seed, quantity=metric.quantity):
                changes[part, before, after] = change
    p, found = corrected(changes), dict[Part, dict[str, Effect]]()
    for (part, before, after), change in changes.items():
        effect = Effect(after, before, metric, change, p[part, before, after])
        found.setdefault(part, {})[before if what == "examples" else after] = effect
    return found
