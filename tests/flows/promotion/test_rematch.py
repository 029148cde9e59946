"""What an opponent is evaluated by again, and what nobody has it evaluated by."""

from pathlib import Path

import pytest

from flows.promotion.champion import promote_by_hand
from flows.promotion.gate import gate, rematches
from flows.promotion.rematch import meet
from infra.store.store import Store
from schemas.base import InputError
from schemas.recipe import GateRule
from schemas.reports import RunRecord
from tests.flows.promotion.gate_runs import make, with_gate
from tests.flows.runs.synthetic_run import SKILL, damage, spec, write_run

METRIC = {
    "name": "function",
    "path": "mine.py:depth",
    "source": "def depth(completions, **_): return [1.0 for _ in completions]",
}


def test_a_rematch_runs_no_code_whatever_the_store_says(tmp_path: Path) -> None:
    """The config is that of the candidate's manifest, and nobody watches a night."""
    store, champion = write_run(tmp_path, "old", prompts="other")
    _, plain = write_run(tmp_path, "plain", text=" again")
    assert [spec.stage for spec in rematches(store, plain, champion)]
    config = {"grpo_eval": {"metrics": [METRIC]}}
    _, candidate = write_run(tmp_path, "new", text=" once more", config=config)
    with pytest.raises(InputError, match=r"champion_grpo_eval would run code of run 'new'"):
        rematches(store, candidate, champion)


def test_a_metric_that_only_one_side_has_leaves_the_rates_comparable(tmp_path: Path) -> None:
    skill = {"base": 0.0, "sft": 0.0, "simpo": 0.0, "grpo": 0.2}
    store, champion = write_run(tmp_path, "old", skill=skill, text=" long ago")
    config = {"grpo_eval": {"metrics": [METRIC]}}
    _, candidate = write_run(tmp_path, "new", config=config)
    assert rematches(store, candidate, champion) == []
    candidate = with_gate(candidate, must_win=(GateRule(metric="exact_answer"),))
    assert gate(store, candidate, champion).promote


def shown_examples(root: Path, name: str, kind: str = "reasoning_eval") -> tuple[Store, RunRecord]:
    """A run whose last model was also asked with worked examples, before the evaluation without
    them in the recipe's order, and then knew nothing."""
    few = spec("shown", kind, {"shots": 4}, prompts="rebalance", policy="grpo")
    skill = {**SKILL, few.name: 0.0}
    store, record = write_run(root, name, skill=skill, text=name, more=[few])
    recipe, made = record.recipe.stages, record.stages
    stages = {"stages": (*recipe[:-3], recipe[-1], *recipe[-3:-1])}
    changes = {"recipe": record.recipe.model_copy(update=stages)}
    changed = record.model_copy(update={**changes, "stages": (*made[:-3], made[-1], *made[-3:-1])})
    store.write_json(f"runs/{name}/run.json", changed)
    return store, changed


@pytest.mark.parametrize("kind", ["reasoning_eval", "safety_eval"])
def test_worked_examples_compare_no_models(tmp_path: Path, kind: str) -> None:
    """Neither a candidate's nor a champion's rate is the one that it has with them, and one that is
    gone stands in nobody's way."""
    store, champion = shown_examples(tmp_path, "old", kind)
    _, candidate = shown_examples(tmp_path, "new", kind)
    assert rematches(store, candidate, champion) == []
    met = [match.ours.name for match in meet(store, candidate, champion)[0]]
    assert met == ["grpo_eval", "safety_eval"]
    rates = promote_by_hand(store, "new", "").metrics
    assert (rates["exact_answer"], rates["safe_rate"]) == (pytest.approx(0.7), pytest.approx(0.7))
    damage(store, candidate, "shown")
    assert [match.ours.name for match in meet(store, candidate, champion)[0]] == met


def test_a_kind_that_only_a_base_with_worked_examples_was_asked_is_no_rule(tmp_path: Path) -> None:
    few = spec("shown", "safety_eval", {"shots": 4}, prompts="rebalance")
    store, record = make(tmp_path, "new", more=[few], skill=0.9)
    without = ("base_safety", "safety_eval")
    recipe, made = record.recipe.stages, record.stages
    kept = record.recipe.model_copy(
        update={"stages": tuple(one for one in recipe if one.name not in without)}
    )
    stages = tuple(one for one in made if one.name not in without)
    candidate = record.model_copy(update={"recipe": kept, "stages": stages})
    found = gate(store, candidate, None).findings
    assert {one.metric for one in found} == {"exact_answer", "format_rate"}
