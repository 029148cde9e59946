"""The evaluation gate: may a run's model replace the champion? Yes or no, with a reason per rule.

The rules are the recipe's `[gate]` or, where it has none, the default one
(`flows.promotion.gate_rules`). The first champion has to beat its own base in the same way. Both
models answer the same prompts in the same way: where their runs' evaluations do not compare them,
the nightly flow evaluates the opponent again as the candidate was (`flows.promotion.rematch`). The
level of the tests depends on the number of nights before (`flows.promotion.levels`).
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

from flows.promotion.champion import current, model_of
from flows.promotion.gate_rules import default_gate, findings
from flows.promotion.levels import Night, night_of
from flows.promotion.looks import BASE, Answers, Finding
from flows.promotion.rematch import Match, meet
from flows.recipe.code import runs_code
from flows.runs.record import read_run
from flows.runs.wording import amount
from infra.store.store import Store
from schemas.artifact import ArtifactRef
from schemas.base import InputError, StrictModel, digest
from schemas.job import JobRequest
from schemas.recipe import GateSpec
from schemas.reports import RunRecord


class Gate(StrictModel):
    """The gate's answer.

    Attributes:
        promote: whether the gate is passed.
        why: the decision in one line.
        candidate, champion: run ids; None for the first champion, which is compared with its base.
        rules: those applied; None without a comparison.
        default: whether they are the default rules, because the recipe has none.
        findings: one for each rule, must_win first.
        evaluations: the artifacts outside both runs that this rests on.
        night: the night that this is, or would be; None without a comparison, and in gates before
            2026-11-25, whose level was 2.5 % every night.
    """

    promote: bool
    why: str
    candidate: str
    champion: str | None
    rules: GateSpec | None = None
    default: bool = False
    findings: tuple[Finding, ...] = ()
    evaluations: tuple[ArtifactRef, ...] = ()
    night: Night | None = None


def gate(
    store: Store, candidate: RunRecord, champion: RunRecord | None, *, first: bool = False
) -> Gate:
    """Decide whether the candidate's last trained model may replace the champion's. Reads only.

    Args:
        first: count no night before; else the store says how many there were.

    Raises:
        InputError: either run did not succeed or has no trained model, or a rule of the candidate's
            recipe is about nothing it measures.
    """
    against = champion.run_id if champion else None
    sides: dict[str, Any] = {"candidate": candidate.run_id, "champion": against}
    if champion is not None and same_model(candidate, champion):
        why = "nothing new: its model has the same bytes as the champion's"
        return Gate(promote=False, why=why, **sides)
    matches, kinds = meet(store, candidate, champion)
    if not matches:
        name = model_of(candidate).name
        why = (
            "its model was not evaluated; add a stage of kind reasoning_eval with inputs.policy ="
            f' "{name}", and without shots'
        )
        return Gate(promote=False, why=why, **sides)
    answers = {
        kind: _answers([match for match in matches if match.kind == kind])
        for kind in {*kinds, *(match.kind for match in matches)}
    }
    rules = candidate.recipe.gate or default_gate(answers)
    opponent = "the champion" if champion else BASE
    night, found = None, list[Finding]()
    if rules:
        look = digest([rules.model_dump(mode="json"), [match.digests for match in matches]])
        night = night_of(None if first else store, candidate.recipe.name, candidate.run_id, look)
        found = findings(rules, answers, opponent, candidate.recipe.seed, night.level)
        night = night if {one.outcome for one in found} != {"not compared"} else None
    promote, why = decide(rules, found)
    return Gate(
        promote=promote,
        why=why,
        **sides,
        rules=rules,
        default=candidate.recipe.gate is None,
        findings=tuple(found),
        evaluations=tuple(match.made.ref() for match in matches if match.made),
        night=night,
    )


def same_model(one: RunRecord, other: RunRecord) -> bool:
    """Whether the last trained models of two runs have the same bytes. Raises InputError as
    `gate`."""
    ours, theirs = model_of(one).artifact, model_of(other).artifact
    return ours is not None and theirs is not None and ours.digest == theirs.digest


def rematches(store: Store, candidate: RunRecord, champion: RunRecord | None) -> list[JobRequest]:
    """The jobs, without attempt and `data`, that evaluate the champion (the base, when there is
    none) as the candidate was, where the evaluations in their runs do not compare the two. They are
    cached by key like every stage, so that `gate` finds their artifacts; those that are made
    already are named, too, since they stand on no other record.

    Raises:
        InputError: one of them would run code, which takes a person who names its file.
    """
    if champion is not None and same_model(candidate, champion):
        return []
    matches, _ = meet(store, candidate, champion)
    left = [match.spec for match in matches if match.spec and match.made is None]
    if own := [spec.stage for spec in left if runs_code(spec.config)]:
        raise InputError(
            f"{own[0]} would run code of run {candidate.run_id!r}, a metric function, and only"
            " `lyceum run --code FILE` on a command line does that. Leave config.metrics out of"
            " what is compared by night."
        )
    return [match.spec for match in matches if match.spec]


def decide(rules: GateSpec | None, found: Sequence[Finding]) -> tuple[bool, str]:
    """Whether the rules hold, and why (not) in one line."""
    if rules is None:
        return False, "nothing that a gate compares was measured"
    wins = [one for one in found if one.rule == "must_win"]
    won = [one for one in wins if one.outcome == "passed"]
    missed = [one for one in wins if one.outcome != "passed"]
    if won and rules.wins == "any":
        missed = []
    guards = [one for one in found if one.rule == "must_not_lose"]
    lost = [one for one in guards if one.outcome != "passed"]
    broken = [*lost, *missed]
    if not broken:
        said = [f"won: {_texts(won)}"] if won else []
        kept = f"no loss beyond the margin, by {amount(len(guards), 'rule')}"
        said += [kept] if guards else []
        return True, "; ".join(said)
    reasons = {
        "lost": [one for one in lost if one.outcome == "failed"],
        "not compared": [one for one in broken if one.outcome == "not compared"],
        "no win" if rules.wins == "all" else "no win in any": missed,
        "too few prompts": broken,
    }
    reason, named = next((reason, some) for reason, some in reasons.items() if some)
    others = len(broken) - len(named)
    do = "rules do" if others > 1 else "rule does"
    more = f" (and {others} other {do} not hold)" if others else ""
    return False, f"{reason}: {_texts(named)}{more}"


def gate_run(store: Store, run_id: str, against: str | None) -> dict[str, Any]:
    """The JSON of `lyceum gate`: the gate's answer on a run against another run or, by default,
    against its recipe's champion.

    Raises:
        InputError: a run is unknown, or as `gate`.
    """
    candidate = read_run(store, run_id)
    if not against and (champion := current(store, candidate.recipe.name)):
        against = champion.run_id
    opponent = read_run(store, against) if against else None
    return gate(store, candidate, opponent).model_dump(mode="json")


def _answers(matches: Sequence[Match]) -> Answers:
    pairs = [pair for match in matches for pair in match.pairs]
    return Answers(
        before=[before for before, _ in pairs],
        after=[after for _, after in pairs],
        samples=[
            list(chain(*drawn)) for drawn in zip(*(match.samples for match in matches), strict=True)
        ],
        missing=[item for match in matches if match.theirs is None for item in match.asked],
    )


def _texts(found: Sequence[Finding]) -> str:
    """What was found, a reason that several give once."""
    named: dict[str, list[str]] = {}
    for one in found:
        name, _, reason = one.text.partition(": ")
        named.setdefault(reason, []).append(name)
    return "; ".join(
        f"{', '.join(dict.fromkeys(names))}: {reason}" if reason else "; ".join(names)
        for reason, names in named.items()
    )
