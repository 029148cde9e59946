"""The rules of a gate: what holds, what is a bounded loss, and what too few prompts leave open."""

import re
from functools import cache
from typing import Any

import numpy as np
import pytest

from flows.promotion import gate_rules, looks
from flows.promotion.gate import decide
from flows.promotion.gate_rules import default_gate, findings
from flows.promotion.looks import LEAST, Answers, Finding
from flows.runs.effects import METRICS
from schemas.base import InputError
from schemas.evaluation import EvalItem
from schemas.examples import Domain
from schemas.recipe import GateRule, GateSpec, MustNotLose
from tasks.contract.kind import Product
from tasks.contract.kinds import evaluation_of, kinds_producing
from tasks.statistics import intervals
from tests.tasks.statistics.simulation import paired_cell

WIN = GateSpec(must_win=(GateRule(metric="exact_answer"),))
LEVEL = 0.025
"""No night's level is higher."""
KEEP = GateSpec(must_not_lose=(MustNotLose(metric="exact_answer", margin=0.05),))


def item(number: int, right: bool, **fields: Any) -> EvalItem:
    known = {"prompt": "?", "domain": Domain.MATH, "answer": "1", "check": "numeric"}
    known |= {"completion": "", "format": True, "exact": right}
    return EvalItem(**{"id": str(number), **known, **fields})


def answers(n: int, won: int = 0, lost: int = 0, name: str = "exact", **fields: Any) -> Answers:
    """Of n prompts so many were won and lost; of the others every second is right in both."""

    def side(after: bool) -> list[EvalItem]:
        right = [number % 2 == 0 for number in range(n)]
        right[: won + lost] = [after] * won + [not after] * lost
        return [item(n, False, **{name: value}, **fields) for n, value in enumerate(right)]

    return Answers(before=side(False), after=side(True))


def renamed(of: Answers, prefix: str) -> Answers:
    """The same answers to other prompts."""
    sides = (of.before, of.after)
    return Answers(
        *([it.model_copy(update={"id": f"{prefix}{it.id}"}) for it in side] for side in sides)
    )


def found(
    spec: GateSpec, of: Answers, kind: str = "reasoning_eval", level: float = LEVEL
) -> list[Finding]:
    return findings(spec, {kind: of}, "the champion", 7, level)


def one(spec: GateSpec, of: Answers, kind: str = "reasoning_eval", level: float = LEVEL) -> Finding:
    [finding] = found(spec, of, kind, level)
    return finding


def test_a_win_is_an_interval_above_zero_and_a_small_p() -> None:
    finding = one(WIN, answers(400, won=30, lost=5))
    assert (finding.outcome, finding.n, finding.needed) == ("passed", 400, None)
    assert finding.difference.value == pytest.approx(25 / 400)
    assert finding.difference.low > 0
    assert finding.text.startswith("exact answer +6.2 points [")
    assert finding.text.endswith("], a gain, p = 1.1e-05 (400 prompts, paired)")
    every = one(WIN, answers(1500, won=1400, lost=0)).text  # 2 ** -1399 is 0 to a float
    assert every.endswith("], a gain, p < 1e-9 (1,500 prompts, paired)")


def test_a_gain_that_may_be_chance_says_what_could_be_found_and_what_it_takes() -> None:
    finding = one(WIN, answers(200, won=14, lost=6))
    assert finding.outcome == "too few prompts"
    assert 0.04 < finding.detectable < 0.10, "more than the 4 points that were seen"
    assert 300 < finding.needed < 800
    smallest = f"a difference of {100 * finding.detectable:.1f} points"
    assert f"200 prompts, paired, which find {smallest}" in finding.text
    assert f"; {finding.needed} would tell" in finding.text


def test_wins_are_corrected_for_their_number() -> None:
    """Seven wins and none lost: an interval above zero and p = 0.0078, which four looks make
    0.0312. Looks at which nothing changed take nothing away."""
    won = answers(200, won=7)
    assert one(WIN, won).outcome == "passed"
    others = {Domain.CODING: (9, 7), Domain.SCIENCE: (8, 9), Domain.GENERAL: (5, 6)}
    parts = [won]
    for domain, (gained, lost) in others.items():
        parts.append(renamed(answers(200, won=gained, lost=lost, domain=domain), domain))
    every = Answers([it for one in parts for it in one[0]], [it for one in parts for it in one[1]])
    rules = [GateRule(metric="exact_answer", domain=one) for one in (Domain.MATH, *others)]
    math = found(GateSpec(must_win=tuple(rules), wins="any"), every)[0]
    assert math.p == pytest.approx(4 / 2**7)
    assert math.difference.low > 0
    assert math.outcome == "too few prompts"


def test_no_change_and_a_loss_are_no_win() -> None:
    tail = "400 prompts, paired, which find a difference of"
    for of, why in (
        (answers(400), f"nothing changed ({tail}"),
        (answers(400, 9, 9), f"no gain ({tail}"),
        (answers(400, lost=40), "a loss (400 prompts, paired)"),
    ):
        finding = one(WIN, of)
        assert (finding.outcome, finding.needed) == ("failed", None)
        assert f", {why}" in finding.text


def test_a_gain_within_the_noise_of_sampling_is_no_win() -> None:
    """Nine of 300 prompts won: three points, for certain. But two runs of the same model differ by
    more."""
    greedy = answers(300, won=9)
    assert one(WIN, greedy).outcome == "passed"
    rng = np.random.Generator(np.random.Philox(3))

    def sampled(chance: float) -> list[EvalItem]:
        return [
            it.model_copy(update={"exact": bool(rng.random() < chance), "sample": k})
            for it in greedy.after
            for k in range(4)
        ]

    noisy = one(WIN, greedy._replace(samples=[[], sampled(0.5)]))
    assert noisy.outcome == "failed"
    assert 0.03 < noisy.noise < 0.15
    assert "no more than two runs of one model may differ" in noisy.text
    steady = one(WIN, greedy._replace(samples=[sampled(1.0), sampled(1.0)]))
    assert (steady.outcome, steady.noise) == ("passed", pytest.approx(0.0092, abs=1e-4))
    others = [it.model_copy(update={"id": f"gsm8k/{it.id}"}) for it in sampled(1.0)]
    twice = [it for it in sampled(0.5) if it.sample < 2]  # of two evaluations, one drew fewer
    part = GateSpec(must_win=(GateRule(metric="exact_answer", suite="heldout"),))
    asked = [*twice, *(it.model_copy(update={"suite": "gsm8k"}) for it in others)]
    assert one(part, greedy._replace(samples=[asked])).outcome == "failed"


def test_a_loss_is_excluded_only_where_the_interval_leaves_it_out() -> None:
    """The same change of nothing: 400 prompts exclude a loss of 5 points, 50 do not, although no
    answer was lost."""
    assert one(KEEP, answers(400)).outcome == "passed"
    assert one(KEEP, answers(400, won=9, lost=9)).outcome == "passed"
    few = one(KEEP, answers(50))
    assert few.outcome == "too few prompts"
    assert few.needed == 72, "0.95^72 is 2.49 %"
    assert one(KEEP, answers(few.needed)).outcome == "passed"
    why = "a loss of 5.0 points is not excluded, p = 0.077 where the night asks for 0.025"
    assert f"{why} (50 prompts, paired, which find" in few.text


def test_a_lower_level_asks_for_more_of_every_rule() -> None:
    """35 changes, five lost: p = 1.1e-5. None of 400 lost where five points are the margin: p is
    0.95^400 = 1.2e-9."""
    won, kept = answers(400, won=30, lost=5), answers(400)
    assert one(WIN, won, level=1.2e-5).outcome == "passed"
    missed = one(WIN, won, level=1e-5)
    assert missed.outcome == "too few prompts"
    assert "p = 1.1e-05 after correction where the night asks for 1e-05 (400" in missed.text
    assert missed.needed > 400
    assert one(KEEP, kept, level=1.3e-9).outcome == "passed"
    open_ = one(KEEP, kept, level=1e-9)
    assert open_.outcome == "too few prompts"
    assert open_.p == pytest.approx(0.95**400)
    assert one(KEEP, answers(open_.needed), level=1e-9).outcome == "passed"


def test_a_metric_function_is_held_to_the_level_too() -> None:
    """Of a hundred values fifty rise by 2: Student's t is 9.95, p = 6e-17, and the signs of fifty
    equal changes are all the same with at most exp(-25) = 1.4e-11 (Hoeffding)."""
    before = [item(n, False, measured={"brevity": 0.0}) for n in range(100)]
    after = [item(n, False, measured={"brevity": n % 2 * 2.0}) for n in range(100)]
    rules = GateSpec(must_win=(GateRule(metric="brevity"),))
    of = Answers(before, after)
    assert one(rules, of, level=1e-6).outcome == "passed"
    assert one(rules, of, level=1e-12).outcome == "too few prompts"
    guard = GateSpec(must_not_lose=(MustNotLose(metric="brevity", margin=0.5),))
    lost = Answers(after, before)
    assert one(guard, lost).outcome != "passed"
    assert one(guard, of, level=1e-12).outcome == "passed"


def test_a_metric_function_of_zeros_and_ones_is_tested_as_a_rate() -> None:
    """Of a hundred one is lost, where five would be too many: 0.95^100 + 100 x 0.05 x 0.95^99 =
    0.037. Student's t is 4, p = 6e-5."""
    before = [item(n, False, measured={"polite": 1.0}) for n in range(100)]
    after = [before[0].model_copy(update={"measured": {"polite": 0.0}}), *before[1:]]
    guard = GateSpec(must_not_lose=(MustNotLose(metric="polite", margin=0.05),))
    found = one(guard, Answers(before, after))
    assert (found.outcome, found.p) == ("too few prompts", pytest.approx(0.037, abs=1e-3))


def test_a_bounded_loss_is_told_from_too_few_prompts() -> None:
    lost = one(KEEP, answers(400, lost=40))
    assert (lost.outcome, lost.needed) == ("failed", None)
    assert lost.text.endswith(", a loss (400 prompts, paired)")
    spec = GateSpec(must_not_lose=(MustNotLose(metric="exact_answer", margin=0.2),))
    within = one(spec, answers(400, lost=40))
    assert (within.outcome, within.difference.high < 0) == ("passed", True)
    open_ = one(KEEP, answers(200, won=12, lost=16))
    assert open_.outcome == "too few prompts"
    assert open_.needed > 400
    worse = one(KEEP, answers(60, won=5, lost=9))
    assert worse.outcome == "too few prompts", "7 points lost, more than the margin: maybe chance"
    assert worse.needed is not None


@pytest.mark.parametrize(
    ("discordant", "difference"), [(0.1, 0.0), (0.2, -0.1), (0.3, 0.1), (0.5, 0.2)]
)
def test_the_intervals_of_the_fewest_prompts_hold_the_truth(discordant, difference):
    """At least: where little changes they hold it more often, and less is proven."""
    assert paired_cell(LEAST, discordant, difference, trials=400).coverage > 0.93


def test_few_prompts_prove_nothing_whatever_they_show() -> None:
    """Ten of ten won, p = 0.001, and a loss of 5 points is excluded."""
    for n in (1, 10, LEAST - 1):
        for spec in (WIN, KEEP):
            finding = one(spec, answers(n, won=n))
            assert finding.outcome == "too few prompts"
            assert finding.needed == LEAST
    for spec in (WIN, KEEP):
        assert one(spec, answers(LEAST, won=LEAST)).outcome == "passed"


def test_of_some_rates_less_is_better() -> None:
    spec = GateSpec(must_win=(GateRule(metric="over_refusal_rate"),))
    fewer = answers(300, lost=20, name="abstained", grounding="answerable")
    finding = one(spec, fewer, "safety_eval")
    assert finding.outcome == "passed"
    assert " (lower is better) −6.7 points [" in finding.text
    more = Answers(fewer.after, fewer.before)
    assert one(spec, more, "safety_eval").outcome == "failed"
    keep = GateSpec(must_not_lose=(MustNotLose(metric="over_refusal_rate", margin=0.05),))
    assert one(keep, fewer, "safety_eval").outcome == "passed"
    assert one(keep, more, "safety_eval").outcome == "failed"


@pytest.mark.parametrize("kind", kinds_producing(Product.ANSWERS))
def test_every_rate_of_something_bad_is_known_to_be_one(kind: str) -> None:
    bad = re.compile("refusal|partial|compliance|hallucin|inconsistency|truncated|attack_success")
    evaluation = evaluation_of(kind)
    assert set(filter(bad.search, evaluation.outcomes)) == evaluation.lower_is_better


def test_a_rule_about_a_suite_or_a_domain_looks_at_no_other_prompt() -> None:
    gsm8k = renamed(answers(100, won=30, suite="gsm8k"), "gsm8k/")
    heldout = answers(100, lost=30)
    both = Answers([*gsm8k.before, *heldout.before], [*gsm8k.after, *heldout.after])
    rules = [GateRule(metric="exact_answer", suite=suite) for suite in ("gsm8k", "heldout")]
    first, second = found(GateSpec(must_win=tuple(rules)), both)
    assert (first.outcome, first.n, first.suite) == ("passed", 100, "gsm8k")
    assert first.text.startswith("exact answer on gsm8k +30.0 points")
    assert (second.outcome, second.n) == ("failed", 100)
    assert one(WIN, both).n == 200
    nowhere = one(GateSpec(must_win=(GateRule(metric="exact_answer", domain=Domain.CODING),)), both)
    assert (nowhere.outcome, nowhere.n) == ("not compared", 0)
    assert nowhere.text == "exact answer in coding: the candidate was asked no such prompt"


def test_what_the_champion_was_not_asked_is_no_pass() -> None:
    """Also of a rule over all suites: what is compared would be only a part."""
    part = answers(400, won=60)._replace(missing=[item(1, True, suite="gsm8k")])
    for spec in (WIN, KEEP):
        finding = one(spec, part)
        assert finding.outcome == "not compared"
        assert "the champion was not asked as the candidate was" in finding.text
    heldout = GateSpec(must_win=(GateRule(metric="exact_answer", suite="heldout"),))
    assert one(heldout, part).outcome == "passed"


def test_a_rule_about_nothing_names_what_there_is() -> None:
    of = answers(40)
    for metric, suite, message in (
        ("exact_anser", None, r"nothing that a gate can compare. Did you mean 'exact_answer'\?"),
        ("abstention_precision", None, "is nothing that a gate can compare"),
        ("safe_rate", None, "is measured by safety_eval, and no stage of that kind"),
        ("exact_answer", "heldot", r"none that reasoning_eval asks .* Did you mean 'heldout'\?"),
    ):
        with pytest.raises(InputError, match=f"'{suite or metric}' .*{message}"):
            found(GateSpec(must_win=(GateRule(metric=metric, suite=suite),)), of)


def test_a_rate_of_both_kinds_is_reasoning_s_unless_only_safety_asks_the_suite() -> None:
    asked = {"reasoning_eval": ["heldout"], "safety_eval": ["heldout", "xstest"]}
    kinds = {
        suite: gate_rules.metric_of(GateRule(metric="format_rate", suite=suite), asked, {}).kind
        for suite in (None, "heldout", "xstest")
    }
    assert kinds == {None: "reasoning_eval", "heldout": "reasoning_eval", "xstest": "safety_eval"}


def finding(rule: str, outcome: str, text: str = "x") -> Finding:
    known = {"metric": "exact_answer", "suite": None, "domain": None, "label": "", "margin": None}
    return Finding.model_validate({**known, "rule": rule, "outcome": outcome, "text": text})


def test_all_wins_or_any_one_and_every_rule_against_loss() -> None:
    won, missed = finding("must_win", "passed", "a"), finding("must_win", "too few prompts", "b")
    kept, lost = finding("must_not_lose", "passed"), finding("must_not_lose", "failed", "c")
    open_ = finding("must_not_lose", "too few prompts", "d")
    every = GateSpec(must_win=(GateRule(metric="m"), GateRule(metric="n")), wins="all")
    any_ = every.model_copy(update={"wins": "any"})
    assert decide(every, [won, won]) == (True, "won: a; a")
    assert decide(every, [won, missed, kept]) == (False, "no win: b")
    holds = "no loss beyond the margin, by 1 rule"
    assert decide(any_, [won, missed, kept]) == (True, f"won: a; {holds}")
    assert decide(any_, [missed, missed]) == (False, "no win in any: b; b")
    assert decide(KEEP, [kept]) == (True, holds)
    for outcome in ("failed", "too few prompts", "not compared"):
        assert not decide(any_, [won, won, kept, finding("must_not_lose", outcome)])[0]
    why = "lost: c (and 1 other rule does not hold)"
    assert decide(any_, [won, won, open_, lost]) == (False, why)
    assert decide(any_, [won, won, open_]) == (False, "too few prompts: d")
    assert decide(None, []) == (False, "nothing that a gate compares was measured")


def test_the_default_gate_is_for_what_was_measured() -> None:
    assert default_gate({}) is None
    assert default_gate({"safety_eval": Answers()}) is None
    alone = default_gate({"reasoning_eval": answers(5)})
    assert [rule.metric for rule in alone.must_win] == ["exact_answer", "format_rate"]
    assert [(rule.metric, rule.domain, rule.margin) for rule in alone.must_not_lose] == [
        ("exact_answer", None, 0.05),
        ("format_rate", None, 0.05),
    ]
    domains = [item(1, True), item(2, True, domain=Domain.CODING)]
    unchecked = item(3, True, check="none", domain=Domain.CREATIVE)
    two = default_gate({"reasoning_eval": Answers(missing=[*domains, unchecked])})
    assert [(rule.domain, rule.margin) for rule in two.must_not_lose[2:]] == [
        (Domain.MATH, 0.1),
        (Domain.CODING, 0.1),
    ]
    lacking = default_gate({"reasoning_eval": answers(5), "safety_eval": Answers()})
    assert [rule.metric for rule in lacking.must_not_lose[2:]] == ["safe_rate", "correct_rate"]


@cache
def variant(number: int, exact: bool, format_: bool, safe: bool) -> EvalItem:
    """Items of both kinds of evaluation in one: making 100,000 of them is what a simulation
    costs."""
    judged = {"format": format_, "safe": safe, "grounding": "answerable"}
    return item(number, exact, **judged, domain=list(Domain)[number % 6])


def drawn(rng: np.random.Generator, n: int) -> dict[str, Answers]:
    """Both kinds of evaluation of two models that answer rightly with the same chance."""
    draws = [rng.random((n, 3)) < 0.6 for _ in range(4)]
    sides = [
        [variant(number, *map(bool, right)) for number, right in enumerate(draw)] for draw in draws
    ]
    return {"reasoning_eval": Answers(*sides[:2]), "safety_eval": Answers(*sides[2:])}


def test_an_equal_model_wins_in_at_most_one_night_of_forty(monkeypatch) -> None:
    """Of 600 nights 15 are expected at most, and 30 are four standard deviations more. Without
    correction it would be about 55. What does not decide is left out, and the bootstrap is
    smaller."""
    monkeypatch.setattr(intervals, "RESAMPLES", 500)
    for name in ("detectable_effect", "needed_n", "needed_n_noninferiority"):
        monkeypatch.setattr(looks, name, lambda *arguments, **named: 1)
    rng = np.random.Generator(np.random.Philox(5))
    spec = GateSpec(must_win=tuple(GateRule(metric=metric.name) for metric in METRICS), wins="any")
    found = (findings(spec, drawn(rng, 120), "the champion", seed, LEVEL) for seed in range(600))
    assert sum(decide(spec, one)[0] for one in found) < 30
