"""The rules of a gate: the metric of each, whether it holds, and when nothing can decide it.

A rule compares one rate of two models over the prompts that both answered: the paired difference,
its 95 % interval (`tasks.statistics.intervals`) and a one-sided exact p-value
(`tasks.statistics.noninferiority`); or the means of a metric function (`tasks.statistics.means`;
where all values are 0 or 1, p is that of a rate), for which no needed number of prompts is known. A
rule holds only where the answers show it, over LEAST prompts or more. The level of p-values is the
night's (`flows.promotion.levels`), 2.5 % at most.

- *must win*: the interval lies above zero, p is at most the level after Holm's correction over all
  rules of this kind, and where answers were sampled, too, the gain is larger than the difference
  that two runs of one model show (`tasks.statistics.noise_floor`).
- *must not lose*: non-inferiority. The lower end of the interval lies above -margin, and p, of a
  loss that large, is at most the level. To see no loss is not enough. All such rules have to hold,
  so they need no correction: an error of any one is at most the level (Berger 1982, the
  intersection-union test).

A rule fails either by a bounded loss (the interval lies below zero), or because the prompts are too
few to tell. Then its finding says how large a difference so many prompts find, and how many would
tell (`tasks.statistics.power`: with a power of 80 %, for this rule alone).
"""

from collections.abc import Collection, Mapping

from flows.promotion.looks import Answers, Finding, Look, look_at, must_not_lose, must_win
from flows.runs.effects import EXACT, METRICS, Metric, Part, outcomes
from flows.runs.wording import label
from schemas.base import InputError, nearest
from schemas.evaluation import HELDOUT
from schemas.examples import Domain
from schemas.recipe import GateRule, GateSpec, MustNotLose
from tasks.contract.kind import Product
from tasks.contract.kinds import evaluation_of, kinds_producing
from tasks.evaluation.metric_functions import Measured, measured_in
from tasks.statistics.intervals import holm

MARGIN, DOMAIN_MARGIN = 0.05, 0.10
"""The default gate's margins over all prompts, and in a domain, which has fewer of them."""


def metric_of(
    rule: GateRule, asked: Mapping[str, Collection[str]], functions: Mapping[str, Collection[str]]
) -> Metric:
    """The metric of a rule.

    Args:
        asked: kind of evaluation -> the suites that it asks the model.
        functions: kind of evaluation -> its metric functions.

    Raises:
        InputError: no evaluation has this metric, or none that has it asks the last model, or none
            asks this suite.
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
    """The gate of a recipe without one, given the answers by kind of evaluation; None when no
    metric counts any.

    It wants a gain in any one of exact answer, format, safe rate and correct rate, no loss of
    MARGIN in any of them, and no loss of DOMAIN_MARGIN of exact answers in any domain. It includes
    a kind that only the opponent was asked, which has to be measured again.
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
    spec: GateSpec, answers: Mapping[str, Answers], opponent: str, seed: int, level: float
) -> list[Finding]:
    """Apply every rule of a gate to the answers, must_win first.

    Args:
        answers: both models', by kind of evaluation; empty for a kind that only the opponent was
            asked.
        opponent: its name for people.
        seed: of the bootstrap.
        level: the largest p-value that a rule may have.

    Raises:
        InputError: as `metric_of`.
    """
    asked = {
        kind: {item.suite for item in (*one.after, *one.missing)} or {HELDOUT}
        for kind, one in answers.items()
    }
    functions = {kind: measured_in([*one.after, *one.missing]) for kind, one in answers.items()}
    looks: list[Look | Finding] = []
    for rule in (*spec.must_win, *spec.must_not_lose):
        metric = metric_of(rule, asked, functions)
        mine = answers.get(metric.kind, Answers())
        looks.append(look_at(rule, metric, mine, opponent, seed, level))
    p = holm(
        {
            n: look.p if look.change.changed else None
            for n, look in enumerate(looks[: len(spec.must_win)])
            if isinstance(look, Look)
        }
    )
    found = []
    for n, look in enumerate(looks):
        if isinstance(look, Look):
            look = must_win(look, p[n]) if n in p else must_not_lose(look)
        found.append(look)
    return found
