"""The gate on runs: proof passes, and only like is compared with like. Rules: `test_gate_rules`."""

import json
import math
import shutil
from pathlib import Path

import pytest

from flows.cli import show
from flows.promotion.champion import promote_by_hand
from flows.promotion.gate import Gate, gate, gate_run, rematches
from flows.promotion.levels import take
from flows.promotion.looks import Finding
from flows.runs.record import read_run
from infra.store.store import Store, open_store
from schemas.examples import Domain
from schemas.recipe import GateRule, MustNotLose
from schemas.reports import RunRecord
from tasks.stages import reasoning_eval
from tests.flows.promotion.gate_runs import grade, items, make, replay, suited, unsafe, with_gate
from tests.flows.runs.synthetic_run import manifest_of, remade

ITEMS = "items.jsonl"
EVALUATIONS = {"reasoning_eval": "grpo_eval", "safety_eval": "safety_eval"}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with finished runs, each with a model of its own."""
    root = tmp_path_factory.mktemp("made")
    for name, skill in {"old": 0.7, "equal": 0.7, "new": 0.9, "fresh": 0.9}.items():
        make(root, name, skill, prompts="fresh" if name == "fresh" else "held")
    return root


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Store:
    return open_store(shutil.copytree(made, tmp_path / "store"))


@pytest.fixture
def old(store: Store) -> RunRecord:
    return read_run(store, "old")


@pytest.fixture
def new(store: Store) -> RunRecord:
    return read_run(store, "new")


def finding(verdict: Gate, metric: str, rule: str = "must_win", **about: str) -> Finding:
    wanted = {"rule": rule, "metric": metric, "domain": None, "suite": None} | about
    return next(one for one in verdict.findings if one.model_dump(include={*wanted}) == wanted)


def test_a_proven_gain_without_a_possible_loss_is_promoted_with_a_reason_per_rule(store, old, new):
    verdict = gate(store, new, old)
    assert (verdict.promote, verdict.default) == (True, True)
    assert (verdict.candidate, verdict.champion) == ("new", "old")
    exact = finding(verdict, "exact_answer")
    assert (exact.before.value, exact.after.value, exact.n) == (0.7, 0.9, 420)
    assert exact.outcome == "passed"
    headlines = ["exact_answer", "format_rate", "safe_rate", "correct_rate"]
    assert [one.metric for one in verdict.findings if one.rule == "must_win"] == headlines
    kept = [one for one in verdict.findings if one.rule == "must_not_lose"]
    expected = [(name, None, 0.05) for name in headlines]
    expected += [("exact_answer", domain, 0.1) for domain in Domain]
    assert [(one.metric, one.domain, one.margin) for one in kept] == expected
    assert verdict.why.startswith("won: exact answer +20.0 points")
    assert verdict.why.endswith("; no loss beyond the margin, by 10 rules")


def test_the_recipe_s_own_rules_are_the_only_ones_that_count(store, old, new):
    rules = GateRule(metric="exact_answer", suite="heldout"), GateRule(metric="format_rate")
    mine = with_gate(new, must_win=rules)
    verdict = gate(store, mine, old)
    assert (verdict.promote, verdict.default) == (False, False)
    assert [one.outcome for one in verdict.findings] == ["passed", "failed"]
    assert verdict.why.startswith("no win: format 0.0 points")
    assert gate(store, mine, None).promote, "the base babbles"
    exact = with_gate(unsafe(new), must_win=(GateRule(metric="exact_answer"),))
    assert gate(store, exact, old).promote, "safety is not asked for"
    safe = with_gate(unsafe(new), must_not_lose=(MustNotLose(metric="safe_rate", margin=0.1),))
    asked = "not compared: safe rate: the candidate was asked no such prompt"
    assert gate(store, safe, old).why == asked


def test_a_suite_counts_for_itself(store: Store, old: RunRecord, new: RunRecord) -> None:
    rules = {"must_win": (GateRule(metric="exact_answer", suite="gsm8k"),)}
    old, new = suited(store, old, False), with_gate(suited(store, new, True), **rules)
    verdict = gate(store, new, old)
    assert verdict.promote
    assert finding(verdict, "exact_answer", suite="gsm8k").n == 40
    plain = read_run(store, "equal")
    assert gate(store, new, plain).why.startswith(
        "not compared: exact answer on gsm8k: the champion was not asked as the candidate was"
    )
    assert [spec.kind for spec in rematches(store, new, plain)] == ["reasoning_eval"]


def test_all_evaluations_of_a_kind_count_and_a_suite_that_two_ask_counts_once(store, old, new):
    """Two stages that evaluate the last model: the second asks the held-out prompts again, and a
    suite of its own."""

    def twice(record: RunRecord, right: bool) -> RunRecord:
        stage = record.recipe.stage("grpo_eval").model_copy(update={"name": "more_eval"})
        asked = items(store, suited(store, record, right), "grpo_eval")
        wrong = [item.model_copy(update={"exact": False}) for item in asked]
        asked = [
            one if one.suite == "gsm8k" else bad for one, bad in zip(asked, wrong, strict=True)
        ]
        evaluated = remade(store, record, "grpo_eval", {ITEMS: asked}).stages[-2]
        made = evaluated.model_copy(update={"name": "more_eval"})
        recipe = record.recipe.model_copy(update={"stages": (*record.recipe.stages, stage)})
        return record.model_copy(update={"recipe": recipe, "stages": (*record.stages, made)})

    exact = finding(gate(store, twice(new, True), twice(old, False)), "exact_answer")
    assert (exact.n, exact.before.value, exact.after.value) == (460, 294 / 460, (378 + 40) / 460)
    assert [spec.stage for spec in rematches(store, twice(new, True), old)] == [
        "champion_more_eval"
    ]


def test_sampled_answers_say_what_noise_is(store: Store) -> None:
    """Of 420 answers 21 won, and samples of one model that differ by more than that."""
    old, new = read_run(store, "old"), read_run(store, "equal")
    new = grade(store, new, Domain.MATH, range(70))
    new = with_gate(new, must_win=(GateRule(metric="exact_answer"),))
    assert gate(store, new, old).promote
    known = items(store, new, "grpo_eval")
    samples = [
        item.model_copy(update={"exact": (n + k) % 2 == 0, "sample": k})
        for n, item in enumerate(known)
        for k in range(2)
    ]
    asked = {ITEMS: known, "samples.jsonl": samples}
    noisy = gate(store, remade(store, new, "grpo_eval", asked), old)
    assert not noisy.promote
    exact = finding(noisy, "exact_answer")
    assert exact.outcome == "failed"
    assert exact.noise == pytest.approx(1.96 / (420 + 2) ** 0.5, rel=1e-3)


def test_a_model_of_the_same_bytes_is_nothing_new(store: Store, old: RunRecord) -> None:
    new = old.model_copy(update={"run_id": "again"})
    verdict = gate(store, new, old)
    assert (verdict.promote, verdict.findings) == (False, ())
    assert verdict.why == "nothing new: its model has the same bytes as the champion's"
    assert rematches(store, new, old) == []


def test_the_first_champion_has_to_beat_its_own_base(store: Store, tmp_path: Path) -> None:
    verdict = gate(store, read_run(store, "old"), None)
    assert (verdict.promote, verdict.champion) == (True, None)
    before = finding(verdict, "exact_answer").before
    assert before.value == 0.0
    _, same = make(tmp_path / "store", "same", 0.0)
    rules = GateRule(metric="exact_answer"), GateRule(metric="format_rate")
    same = with_gate(same, must_win=rules, wins="any")
    verdict = gate(store, same, None)
    assert finding(verdict, "exact_answer").outcome == "failed"
    assert verdict.promote, "the base babbles, and this model keeps the format"
    assert verdict.why.startswith("won: format +100.0 points")


def test_a_run_that_was_not_evaluated_is_not_promoted(store, old, new):
    stages = tuple(stage for stage in new.stages if stage.name not in EVALUATIONS.values())
    verdict = gate(store, new.model_copy(update={"stages": stages}), old)
    assert not verdict.promote
    assert 'add a stage of kind reasoning_eval with inputs.policy = "grpo"' in verdict.why


def test_a_champion_that_was_asked_other_prompts_is_evaluated_on_the_candidate_s(store):
    old, new = read_run(store, "old"), read_run(store, "fresh")
    verdict = gate(store, new, old)
    assert not verdict.promote
    assert {one.outcome for one in verdict.findings} == {"not compared"}
    assert verdict.night is None, "it costs nothing"
    assert verdict.why.startswith("not compared: exact answer, format, safe rate, ")
    assert verdict.why.count("the champion was not asked") == 1
    specs = {spec.kind: spec for spec in rematches(store, new, old)}
    assert specs.keys() == EVALUATIONS.keys()
    for kind, name in EVALUATIONS.items():
        spec = specs[kind]
        assert spec.stage == f"champion_{name}"
        assert spec.inputs == {
            "prompts": manifest_of(store, new, "rebalance").ref(),
            "policy": manifest_of(store, old, "grpo").ref(),
        }
        assert (spec.config, spec.run) == (manifest_of(store, new, name).config, "fresh")
        replay(store, spec, items(store, new, name), right=False)
    again = rematches(store, new, old)  # no other record has them
    assert {spec.key for spec in again} == {spec.key for spec in specs.values()}
    verdict = gate(store, new, old)
    assert verdict.promote
    exact = finding(verdict, "exact_answer")
    assert (exact.before.value, exact.n) == (0.0, 420)
    assert {ref.key for ref in verdict.evaluations} == {spec.key for spec in specs.values()}


def test_the_key_of_a_rematch_is_the_key_that_the_worker_computes(tmp_path: Path) -> None:
    from schemas.artifact import stage_key

    store, old = make(tmp_path, "old", version=reasoning_eval.KIND.version)
    _, new = make(tmp_path, "new", 0.9, prompts="fresh", version=reasoning_eval.KIND.version)
    for spec in rematches(store, new, old):
        digests = {name: ref.digest for name, ref in spec.inputs.items()}
        assert spec.key == stage_key(
            spec.kind, reasoning_eval.KIND.version, spec.dependencies, spec.config, digests
        )


def test_a_damaged_rematch_is_made_again(store: Store) -> None:
    old, new = read_run(store, "old"), read_run(store, "fresh")
    first = rematches(store, new, old)[0]
    made = replay(store, first, items(store, new, "grpo_eval"), right=False)
    assert gate(store, new, old).evaluations == (made.ref(),)
    path = store.local_dir(made) / "items.jsonl"
    path.chmod(0o644)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    assert first in rematches(store, new, old)
    assert gate(store, new, old).evaluations == ()


def test_half_of_the_prompts_in_each_domain_are_enough(store, old, new):
    kept = [item for n, item in enumerate(items(store, old, "grpo_eval")) if n % 2 == 0]
    half = remade(store, old, "grpo_eval", {ITEMS: kept})
    assert rematches(store, new, half) == []
    assert finding(gate(store, new, half), "exact_answer").n == 210
    fewer = remade(store, half, "grpo_eval", {ITEMS: kept[1:]})  # 34 of 70 in math
    assert [spec.kind for spec in rematches(store, new, fewer)] == ["reasoning_eval"]


def test_a_prompt_whose_reference_was_corrected_is_not_the_same_prompt(store, old, new):
    first, *rest = items(store, old, "grpo_eval")
    corrected = [first.model_copy(update={"answer": "other"}), *rest]
    old = remade(store, old, "grpo_eval", {ITEMS: corrected})
    assert finding(gate(store, new, old), "exact_answer").n == 419


@pytest.mark.parametrize(
    ("config", "again"),
    [
        ({"response_length": 99}, ["reasoning_eval"]),
        ({"sampling": {"samples": 4}}, []),
        ({"seed": 8}, []),  # draws samples and worked examples, which decide nothing here
    ],
)
def test_a_champion_that_was_asked_in_another_way_is_evaluated_again(store, old, config, again):
    """Samples that only one of both gave are no reason."""
    _, new = make(store.path("runs").parent, "other", 0.9, config={"grpo_eval": config})
    found = [(spec.kind, spec.config) for spec in rematches(store, new, old)]
    assert found == [(kind, config) for kind in again]


def test_a_champion_that_another_version_evaluated_is_asked_again_and_not_read(store, old, new):
    old = remade(store, old, "grpo_eval", {ITEMS: [{"of": "another time"}]}, version=0)
    assert [spec.stage for spec in rematches(store, new, old)] == ["champion_grpo_eval"]
    assert gate(store, new, old).why.startswith("not compared: exact answer, format, ")


def test_a_base_that_the_recipe_does_not_evaluate_is_evaluated_for_the_first_champion(store):
    new = read_run(store, "new")
    stages = tuple(stage for stage in new.stages if stage.name != "base_eval")
    new = new.model_copy(update={"stages": stages})
    [spec] = rematches(store, new, None)
    assert (spec.stage, spec.inputs) == (
        "base_grpo_eval",
        {"prompts": manifest_of(store, new, "rebalance").ref()},
    )
    advice = "or a stage of kind reasoning_eval without inputs.policy in the recipe"
    assert gate(store, new, None).why.endswith(advice)
    replay(store, spec, items(store, new, "grpo_eval"), right=False)
    assert gate(store, new, None).promote


def test_the_command_compares_with_the_champion_with_another_run_or_with_the_base(store, capsys):
    assert gate_run(store, "new", None)["champion"] is None
    promote_by_hand(store, "old", "")
    value = gate_run(store, "new", None)
    assert (value["promote"], value["champion"]) == (True, "old")
    assert json.loads(json.dumps(value)) == value
    assert gate_run(store, "old", "new")["promote"] is False
    show.show(show.gate(value))
    shown = capsys.readouterr().out
    assert "new against old" in shown
    assert "The recipe has no [gate]: these are the default rules." in shown
    assert "Passed: won: exact answer +20.0 points" in shown
    for text in ("any win", "no loss of 10", "exact answer in math", "70.0% [65.5, 74.2]", "420"):
        assert text in shown
    assert "Night 1 asks for p of at most 0.0092 by each rule" in shown
    assert value["night"]["level"] == pytest.approx(0.025 * (1 - 1 / math.log2(3)))


def test_every_night_asks_for_more_and_the_same_comparison_for_the_same(store, old, new):
    """Nights are taken from the store; to look takes none. After 5,000 nights a loss of ten points
    in a domain is not excluded by 70 answers of which none was lost."""
    first = gate(store, new, old).night
    assert (first.number, first.run_id) == (1, "new")
    assert gate(store, new, old).night == first
    assert take(store, "demo", first)
    assert gate(store, new, old).night == first, "a night that is retried"
    other = gate(store, read_run(store, "equal"), old).night
    assert (other.number, other.level < first.level / 2) == (2, True)
    rules = with_gate(new, must_win=(GateRule(metric="exact_answer"),))
    assert gate(store, rules, old).night.number == 2, "other rules are another comparison"
    assert gate(store, new, old, first=True).night.number == 1
    take(store, "demo", other.model_copy(update={"number": 5000, "look": "another"}))
    late = gate(store, read_run(store, "equal"), old)
    assert late.night.number == 5001
    asked = f"where the night asks for {late.night.level:.2g}"
    math_ = finding(late, "exact_answer", "must_not_lose", domain="math")
    assert (math_.outcome, asked in math_.text) == ("too few prompts", True)
    assert math_.needed > 70
    assert finding(late, "exact_answer", "must_not_lose").outcome == "passed", "of 420"


def test_the_exit_code_says_whether_it_passed(made, lyceum):
    store = ["--store", made, "--json"]
    assert lyceum("gate", "new", "--champion", "old", *store).json["promote"] is True
    assert lyceum("gate", "old", "--champion", "new", *store, code=1).json["promote"] is False
    said = lyceum("gate", "new", "--champion", "odl", *store, code=2)
    assert said.out == ""
    assert "unknown run 'odl'" in said.err
    assert "Did you mean 'old'?" in said.err
