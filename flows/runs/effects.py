"""What each trained stage changed, with 95 % intervals: the numbers of the report and of `lyceum
compare`, computed from evaluation items.

Paired where both sides answered the same prompts: a bootstrap over the prompts' differences and
McNemar's exact test. Where fewer than half of the prompts are shared, the two rates are
independent: Newcombe's interval and the two-proportion score test (`tasks.statistics.intervals`).

An effect counts as a gain or a loss where its interval leaves out zero and its p-value is at most
ALPHA after Holm's correction, over two families for each metric: what all stages changed over all
prompts, and what they changed in all parts (suite x domain). A comparison in which no prompt
changed is not counted: its p-value could never be small (Tarone 1990).
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal, NamedTuple, TypeVar

from flows.runs.results import RunResults
from schemas.evaluation import EvalItem
from schemas.examples import Domain
from tasks.contract.kind import Outcome, Product
from tasks.contract.plugins import evaluation_of, kinds_producing
from tasks.statistics.intervals import (
    ALPHA,
    Interval,
    Rate,
    holm,
    mcnemar,
    newcombe,
    paired_bootstrap,
)

Direction = Literal["gain", "loss", "unclear"]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Metric:
    """A rate that an evaluation kind defines (`tasks.contract.kind.Evaluation`), and how people
    call it. More of it is better."""

    kind: str
    name: str
    label: str
    outcome: Outcome


METRICS = tuple(
    Metric(kind, name, label, evaluation_of(kind).outcomes[name])
    for kind in kinds_producing(Product.ANSWERS)
    for name, label in evaluation_of(kind).headlines.items()
)
"""The headlines of all kinds of evaluation."""

_BY_MEASURE = {
    what: [one for one in METRICS if evaluation_of(one.kind).measures == what]
    for what in ("skill", "safety")
}
EXACT, FORMAT, *_ = _BY_MEASURE["skill"]
SAFE, CORRECT, *_ = _BY_MEASURE["safety"]
"""Of what a model can do, and of how safe it is, the two headlines that come first."""


class Part(NamedTuple):
    """Some of an evaluation's prompts: those of a suite and of a domain; None: of all."""

    suite: str | None = None
    domain: Domain | None = None

    @property
    def label(self) -> str:
        return ": ".join(name for name in self if name) or "all"


ALL = Part()
KEPT = 64
"""Families of effects that are kept, so that what shows a run computes each once."""


@dataclass(frozen=True)
class Change:
    """The difference of two rates, after minus before, with its interval and its two-sided p-value;
    `n` prompts in both when paired.

    `changed`: of a paired difference, how many prompts have another outcome now.
    """

    before: Rate
    after: Rate
    interval: Interval
    paired: bool
    p: float
    changed: int | None = None

    @property
    def delta(self) -> float:
        return self.after.value - self.before.value

    @property
    def direction(self) -> Direction:
        """Whether the interval is above zero, below it, or holds it; not corrected for other
        looks."""
        return "gain" if self.interval.low > 0 else "loss" if self.interval.high < 0 else "unclear"


@dataclass(frozen=True)
class Effect:
    """What training `stage` changed in one metric, against `since`: the nearest model before it
    that was evaluated. `p` is corrected."""

    stage: str
    since: str
    metric: Metric
    change: Change
    p: float

    @property
    def direction(self) -> Direction:
        return direction_of(self.change, self.p)


def direction_of(change: Change, p: float) -> Direction:
    """Whether a change is a gain, a loss or neither, given its p-value after correction."""
    return change.direction if p <= ALPHA else "unclear"


def outcomes(items: Sequence[EvalItem], metric: Metric, part: Part = ALL) -> dict[str, bool]:
    """Prompt id -> outcome, of the items of a part that count."""
    judged = {
        item.id: metric.outcome(item)
        for item in items
        if part.domain in (None, item.domain) and part.suite in (None, item.suite)
    }
    return {prompt: outcome for prompt, outcome in judged.items() if outcome is not None}


def parts(items: Sequence[EvalItem]) -> list[Part]:
    """What items can be divided into: suites where there are several, and the domains of each suite
    that has several."""
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
    before: Mapping[str, bool], after: Mapping[str, bool], seed: int
) -> Change | None:
    """The change from `before` to `after` (prompt id -> outcome), None when either side has no
    items. `seed` draws the bootstrap."""
    if not before or not after:
        return None
    shared = [prompt for prompt in before if prompt in after]
    if 2 * len(shared) >= min(len(before), len(after)):
        old, new = [before[prompt] for prompt in shared], [after[prompt] for prompt in shared]
        rates = Rate(sum(old), len(old)), Rate(sum(new), len(new))
        changed = sum(one != other for one, other in zip(old, new, strict=True))
        interval = paired_bootstrap(old, new, seed=seed)
        return Change(*rates, interval, paired=True, p=mcnemar(old, new), changed=changed)
    one, other = Rate(sum(before.values()), len(before)), Rate(sum(after.values()), len(after))
    interval = newcombe(one.successes, one.n, other.successes, other.n)
    return Change(one, other, interval, paired=False, p=_score_test(one, other))


def _score_test(before: Rate, after: Rate) -> float:
    """Two-sided p-value of the score test that two independent rates are the same."""
    pooled = (before.successes + after.successes) / (before.n + after.n)
    spread = math.sqrt(pooled * (1 - pooled) * (1 / before.n + 1 / after.n))
    return 2 * NormalDist().cdf(-abs(after.value - before.value) / spread) if spread else 1.0


def corrected(changes: Mapping[Key, Change]) -> dict[Key, float]:
    """The p-values of one family after Holm's correction over those of its comparisons in which
    something changed."""
    live = [key for key, change in changes.items() if change.changed != 0]
    adjusted = dict(zip(live, holm([changes[key].p for key in live]), strict=True))
    return {key: adjusted.get(key, 1.0) for key in changes}


def stage_effects(run: RunResults, metric: Metric) -> dict[str, Effect]:
    """Trained stage -> what it changed over all prompts. Stages that were not evaluated, or before
    which nothing was, are left out."""
    return {stage: effect for (stage, _), effect in _family(run, metric, (ALL,)).items()}


def part_effects(run: RunResults, metric: Metric) -> dict[Part, dict[str, Effect]]:
    """Part -> trained stage -> what it changed there."""
    found: dict[Part, dict[str, Effect]] = {}
    for (stage, part), effect in _family(run, metric, _parts_of(run, metric)).items():
        found.setdefault(part, {})[stage] = effect
    return found


@lru_cache(maxsize=KEPT)
def _family(
    run: RunResults, metric: Metric, looks: tuple[Part, ...]
) -> dict[tuple[str, Part], Effect]:
    models = {model.name: model for model in run.evaluated(metric.kind)}
    above = {name: run.evaluated_ancestor(model, metric.kind) for name, model in models.items()}
    since = {name: ancestor.name for name, ancestor in above.items() if ancestor}
    items = {name: model.items(metric.kind) for name, model in models.items()}
    changes: dict[tuple[str, Part], Change] = {}
    for part in looks:
        judged = {name: outcomes(mine, metric, part) for name, mine in items.items()}
        for name, before in since.items():
            if change := change_between(judged[before], judged[name], run.record.recipe.seed):
                changes[name, part] = change
    p = corrected(changes)
    return {
        (name, part): Effect(name, since[name], metric, change, p[name, part])
        for (name, part), change in changes.items()
    }


def effects_over_examples(run: RunResults, metric: Metric) -> dict[str, Effect]:
    """Model that was shown worked examples -> what the last evaluated model, which was shown none,
    has beyond it over all prompts. Corrected for their number."""
    return {name: effect for (name, _), effect in _over_examples(run, metric, (ALL,)).items()}


def part_effects_over_examples(run: RunResults, metric: Metric) -> dict[Part, dict[str, Effect]]:
    """Part -> the same there."""
    found: dict[Part, dict[str, Effect]] = {}
    for (name, part), effect in _over_examples(run, metric, _parts_of(run, metric)).items():
        found.setdefault(part, {})[name] = effect
    return found


@lru_cache(maxsize=KEPT)
def _over_examples(
    run: RunResults, metric: Metric, looks: tuple[Part, ...]
) -> dict[tuple[str, Part], Effect]:
    trained = [model for model in run.evaluated(metric.kind) if model.parent is not None]
    if not trained:
        return {}
    last, changes = trained[-1], dict[tuple[str, Part], Change]()
    prompted = [one for one in run.prompted.values() if metric.kind in one.evaluations]
    for part in looks:
        after = outcomes(last.items(metric.kind), metric, part)
        for model in prompted:
            before = outcomes(model.items(metric.kind), metric, part)
            if change := change_between(before, after, run.record.recipe.seed):
                changes[model.name, part] = change
    p = corrected(changes)
    return {
        (name, part): Effect(last.name, name, metric, change, p[name, part])
        for (name, part), change in changes.items()
    }


def overall_effect(run: RunResults, metric: Metric) -> Effect | None:
    """From the first evaluated model to the last; None when fewer than two were evaluated."""
    return _overall(run, metric, (ALL,)).get(ALL)


def suite_effects(run: RunResults, metric: Metric) -> dict[str, Effect]:
    """The same in every suite, where there are several, corrected for their number."""
    suites = tuple(part for part in _parts_of(run, metric) if part.domain is None)
    return {part.suite or "": effect for part, effect in _overall(run, metric, suites).items()}


def _parts_of(run: RunResults, metric: Metric) -> tuple[Part, ...]:
    """What all models' answers can be divided into."""
    models = run.evaluated(metric.kind)
    return tuple(parts([item for model in models for item in model.items(metric.kind)]))


@lru_cache(maxsize=KEPT)
def _overall(run: RunResults, metric: Metric, looks: tuple[Part, ...]) -> dict[Part, Effect]:
    models = run.evaluated(metric.kind)
    if len(models) < 2:
        return {}
    changes: dict[Part, Change] = {}
    ends = models[0].items(metric.kind), models[-1].items(metric.kind)
    for part in looks:
        first, last = (outcomes(items, metric, part) for items in ends)
        if change := change_between(first, last, run.record.recipe.seed):
            changes[part] = change
    p, (before, after) = corrected(changes), (models[0].name, models[-1].name)
    return {part: Effect(after, before, metric, one, p[part]) for part, one in changes.items()}
