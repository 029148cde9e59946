"""The rules of a gate: what each is about, whether it holds, and when there is nothing to hold it
by.

A rule compares one rate of two models over the prompts that both answered: the paired difference,
its 95 % interval (`tasks.statistics.intervals`) and a one-sided exact p-value
(`tasks.statistics.noninferiority`); or the mean of a metric function, by `tasks.statistics.means`,
of which nobody says how many prompts would tell. A rule that is not shown to hold does not hold; no
rule holds over fewer than LEAST prompts. The level that p-values are held to is the night's
(`flows.promotion.levels`), 2.5 % at most.

- *must win*: the interval lies above zero, p is at most the level after Holm's correction over all
  rules of this kind, and where answers were sampled, too, the gain is larger than the difference
  that two runs of one model show (`tasks.statistics.noise_floor`).
- *must not lose*: non-inferiority. The lower end of the interval lies above -margin, and p, of a
  loss that large, is at most the level. That no loss was seen is not enough. All such rules have to
  hold, so they need no correction: an error of any one is at most the level (Berger 1982, the
  intersection-union test).

A rule that does not hold is either a bounded loss (the interval lies below zero), or the prompts
are too few to tell, and then it is said how large a difference so many prompts find, and how many
would tell (`tasks.statistics.power`: with a power of 80 %, looked at alone).
"""

from collections.abc import Collection, Mapping

from flows.promotion.looks import Answers, Finding, Look, look_at, must_not_lose, must_win
from flows.runs.effects import EXACT, METRICS, Key, Metric, Part, holm_by_key, outcomes
from flows.runs.wording import label
from schemas.base import InputError, nearest
from schemas.evaluation import HELDOUT
from schemas.examples import Domain
from schemas.recipe import GateRule, GateSpec, MustNotLose
from tasks.contract.kind import Product
from tasks.contract.kinds import evaluation_of, kinds_producing
from tasks.evaluation.metric_functions import Measured, measured_in

MARGIN, DOMAIN_MARGIN = 0.05, 0.10
"""Of the default gate: over all prompts, and in a domain, which has fewer of them."""


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
    spec: GateSpec, answers: Mapping[str, Answers], opponent: str, seed: int, level: float
) -> list[Finding]:
    """Every rule of a gate, held against the answers, must_win first.

    Args:
        answers: what both said, by kind of evaluation; of a kind that only the opponent was asked,
            nothing.
        opponent: what people call it.
        seed: of the bootstrap.
        level: what the p-value of each rule may be at most.

    Raises:
        InputError: what `metric_of` raises.
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
    wins = {n: one for n, one in enumerate(looks[: len(spec.must_win)]) if isinstance(one, Look)}
    p = corrected(wins)
    found = []
    for n, look in enumerate(looks):
        if isinstance(look, Look):
            look = must_win(look, p[n]) if n in p else must_not_lose(look)
        found.append(look)
    return found


def corrected(wins: Mapping[Key, Look]) -> dict[Key, float]:
    """The p-values of must-win rules after Holm's correction over those in which something changed:
    the others could never hold (Tarone 1990)."""
    changed = holm_by_key({key: look.p for key, look in wins.items() if look.changes})
    return {key: changed.get(key, 1.0) for key in wins}
