"""An artifact whose bytes changed: no command tells less than it seems to, and a run that repairs
it says so wherever it is looked at."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from infra.store.store import Store
from schemas.base import InputError
from schemas.recipe import GateRule
from schemas.reports import RunRecord
from tests.flows.promotion.gate_runs import with_gate
from tests.flows.runs.synthetic_run import SKILL, damage, with_seed, write_run


@pytest.fixture
def run(tmp_path: Path) -> tuple[Store, RunRecord]:
    return write_run(tmp_path / "store")


@pytest.fixture
def says(run: tuple[Store, RunRecord], lyceum: Any) -> Callable[..., Any]:
    """What a command about the store says."""
    return lambda *arguments, code: lyceum(*arguments, "--store", run[0].uri, code=code)


WHY = "stage sft_eval: its artifact is damaged: items.jsonl: has sha256"


def test_scores_write_what_is_whole_and_say_what_is_missing(run, says, tmp_path):
    damage(*run, "sft_eval", "items.jsonl")
    assert f"Left out: {WHY}" in says("scores", "demo-1", "--to", tmp_path / "out", code=1).out
    value = says("scores", "demo-1", "--to", tmp_path / "json", "--json", code=1).json
    assert list(value["left_out"]) == ["sft_eval"]
    tables = value["formats"]["parquet"]
    assert not any("sft_eval" in name for name in tables)
    assert any("simpo_eval" in name for name in tables)


def test_scores_of_nothing_that_is_whole_leave_nothing(run, says, tmp_path):
    for stage in run[1].stages:
        damage(*run, stage.name)
    told = says("scores", "demo-1", "--to", tmp_path / "out", "--as", "parquet", code=1)
    assert WHY.partition(": items")[0] in told.err
    assert not (tmp_path / "out").exists()


def test_a_report_and_a_comparison_say_it_on_the_page_the_terminal_and_by_their_exit_code(
    run, says, tmp_path
):
    write_run(tmp_path / "store", "demo-2", skill={**SKILL, "sft": 0.6})
    for whole in (["report", "demo-1"], ["compare", "demo-1", "demo-2"]):
        says(*whole, code=0)
    damage(*run, "sft_eval", "items.jsonl")
    assert f"Left out: {WHY}" in says("report", "demo-1", code=1).out
    runs = tmp_path / "store" / "runs"
    assert "its artifact is damaged" in (runs / "demo-1" / "report.html").read_text("utf-8")
    told = "Left out: stage demo-1/sft_eval: its artifact is damaged"
    assert told in says("compare", "demo-2", "demo-1", code=1).out
    assert "demo-1/sft_eval" in (runs / "demo-2" / "compare-demo-1.html").read_text("utf-8")
    value = says("compare", "demo-2", "demo-1", "--json", code=1).json
    assert list(value["left_out"]) == ["demo-1/sft_eval"]


def test_a_page_over_seeds_says_which_seed_is_left_out(run, says, tmp_path):
    """A mean over the other seeds alone would tell less than it seems to."""
    store, first = run
    groups: dict[tuple[str, int], RunRecord] = {("a", 7): with_seed(store, first, 7, "a")}
    for group, seed in (("a", 8), ("b", 7), ("b", 8)):
        skill = {**SKILL, "sft": 0.1 * seed - 0.3 * (group == "b")}
        _, record = write_run(tmp_path / "store", f"{group}-{seed}", skill=skill)
        groups[group, seed] = with_seed(store, record, seed, group)
    assert "Left out" not in says("report", "demo-1", code=0).out
    damage(store, groups["a", 8], "sft_eval", "items.jsonl")
    told = "stage a-8/sft_eval: its artifact is damaged"
    assert told in says("report", "demo-1", code=1).out
    page = (tmp_path / "store" / "runs" / "demo-1" / "seeds.html").read_text("utf-8")
    assert "a-8/sft_eval" in page
    assert told in says("compare", "demo-1", "b-7", code=1).out


def test_a_report_without_what_its_gate_needs_shows_the_rest(run, says, tmp_path):
    store, record = run
    gated = with_gate(record, must_win=(GateRule(metric="exact_answer"),))
    store.write_json("runs/demo-1/run.json", gated)
    damage(store, record, "grpo_eval", "items.jsonl")
    assert "Left out: stage grpo_eval" in says("report", "demo-1", code=1).out
    page = (tmp_path / "store" / "runs" / "demo-1" / "report.html").read_text("utf-8")
    assert "Gate not passed" in page
    assert "cannot be judged" in page


def test_who_may_only_read_the_store_has_a_comparison_without_a_page(says, tmp_path, monkeypatch):
    write_run(tmp_path / "store", "demo-2", skill={**SKILL, "sft": 0.6})
    refused = Mock(side_effect=InputError("the store is not writable"))
    monkeypatch.setattr("flows.report.comparison.write_page", refused)
    out = says("compare", "demo-1", "demo-2", code=0).out
    assert ("sft_eval" in out, "No page: the store is not writable" in out) == (True, True)
    assert says("compare", "demo-1", "demo-2", "--json", code=0).json["page"] is None


@pytest.mark.parametrize("stage", ["grpo_eval", "safety_eval", "base_safety"])
def test_the_gate_does_not_judge_by_what_is_left(run, says, stage):
    assert says("gate", "demo-1", code=1).err == ""
    damage(*run, stage, "items.jsonl")
    told = says("gate", "demo-1", code=1)
    assert (told.out, f"stage {stage}: its artifact is damaged" in told.err) == ("", True)


@pytest.mark.parametrize(
    ("stage", "arguments", "expected"),
    [
        ("grpo", "ask demo-1 Why?", "model of stage 'grpo' is damaged"),
        ("grpo", "export demo-1 --to out", "model of stage 'grpo' is damaged"),
        ("sft_eval", "export demo-1 --to out", WHY),
        ("grpo", "rejudge demo-1 --rubric rubric.toml", "the ledger of stage 'grpo' is damaged"),
        ("sft_eval", "promote demo-1", WHY),
    ],
)
def test_what_needs_it_fails_and_changes_nothing(
    run, says, tmp_path, monkeypatch, stage, arguments, expected
):
    """The damage stays where it is: the run that repairs it is to find it, and to say so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tasks.exporting.round_trip.require_transformers", lambda: None)
    (tmp_path / "rubric.toml").write_text("[[rewards]]\nname = 'format'\n", encoding="utf-8")
    damage(*run, stage)
    before = sorted((tmp_path / "store").rglob("*"))
    told = says(*arguments.split(), code=2 if "promote" in arguments else 1)
    assert (told.out, expected in told.err) == ("", True)
    assert sorted((tmp_path / "store").rglob("*")) == before
    assert not (tmp_path / "out").exists()
