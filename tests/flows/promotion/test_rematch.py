"""What an opponent is evaluated by again, and what nobody has it evaluated by."""

from pathlib import Path

import pytest

from flows.promotion.gate import gate, rematches
from schemas.base import InputError
from schemas.recipe import GateRule
from tests.flows.promotion.gate_runs import with_gate
from tests.flows.runs.synthetic_run import write_run

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
