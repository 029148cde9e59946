"""Metric functions in what is shown of runs: compared, in the report, in scores, held to by a
gate. Rates are compared in tests/flows/report/test_comparison.py."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flows.promotion.gate import gate
from flows.report.blocks import plain
from flows.report.comparison import comparison_blocks, rate_tables
from flows.report.gate_blocks import gate_table
from flows.report.page import report_of
from flows.report.sections import effects
from flows.runs.compare import compare_runs
from flows.runs.results import RunResults, read_results
from flows.scores.formats import lm_eval, parquet
from infra.store.store import Store
from schemas.evaluation import EvalItem, EvalPrompt
from schemas.recipe import GateRule, MustNotLose
from schemas.reports import RunRecord
from tests.flows.promotion.gate_runs import with_gate
from tests.flows.report.reading import rows
from tests.flows.runs import synthetic_run


def measure(monkeypatch: pytest.MonkeyPatch, kind: Any, depth: Callable[[EvalItem], Any]) -> None:
    """Let evaluations of a kind measure the `depth` of answers."""
    plainly = kind.judge

    def judge(prompt: EvalPrompt, completion: str) -> EvalItem:
        item: EvalItem = plainly(prompt, completion)
        return item.model_copy(update={"measured": {"depth": depth(item)}})

    monkeypatch.setattr(kind, "judge", judge)


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Store, RunRecord, RunRecord]:
    """Two runs whose answers have `depth`: 10 where it is right, 2.5 where it is wrong; of the
    base, which keeps no format, nothing. GRPO gets 84 of 120 right, or 48: means of 7.75 and
    5.5."""
    depth = lambda item: (10.0 if item.exact else 2.5) if item.format else None  # noqa: E731
    measure(monkeypatch, synthetic_run.reasoning_eval, depth)
    skill = {**synthetic_run.SKILL, "grpo": 0.4}
    store, first = synthetic_run.write_run(tmp_path, "one", skill=skill)
    _, second = synthetic_run.write_run(tmp_path, "two", text=" twice")
    return store, first, second


@pytest.fixture
def run(measured: tuple[Store, RunRecord, RunRecord]) -> RunResults:
    return read_results(measured[0], measured[2])


def test_runs_are_compared_by_means_in_the_functions_unit(measured):
    store, first, second = measured
    found = compare_runs(store, first, [second])
    wanted = {"metric": "depth", "model": "grpo", "domain": None}
    row = next(row for row in found[0]["metrics"] if row.items() >= wanted.items())
    assert (row["a"]["value"], row["b"]["value"]) == (5.5, 7.75)
    assert (row["quantity"], row["direction"]) == (True, "gain")
    assert row["difference"]["value"] == 2.25
    assert 1 < row["difference"]["low"] < 2.25 < row["difference"]["high"] < 3.5
    said = [one["text"] for one in found[0]["verdict"] if one["text"].startswith("depth")]
    assert said[0].startswith("depth (grpo): +2.25 [+1.")
    assert "points" not in said[0]
    titles = dict(rate_tables(found))
    shown = next(row for row in titles["Metric functions, in their own units"].rows)
    assert plain(shown[3]).startswith("5.5 [")
    assert list(comparison_blocks(found))


def test_a_function_that_abstains_throughout_is_not_compared(measured, monkeypatch, tmp_path):
    measure(monkeypatch, synthetic_run.reasoning_eval, lambda item: None)
    _, third = synthetic_run.write_run(tmp_path, "three", text=" thrice")
    said = [one["text"] for one in compare_runs(measured[0], measured[1], [third])[0]["verdict"]]
    assert "depth (grpo): not comparable, one side has too few answers that count." in said


def test_of_one_value_no_interval_is_known(measured, monkeypatch, tmp_path):
    depth = lambda item: 2.5 if "math 0" in item.prompt else None  # noqa: E731
    measure(monkeypatch, synthetic_run.reasoning_eval, depth)
    store, record = synthetic_run.write_run(tmp_path, "four", text=" often")
    run = read_results(store, record)
    assert rows(effects.levels(run))["all (120 prompts)/depth"]["grpo"] == "2.5 one value"
    assert "depth" not in {metric.name for metric, _ in effects.heat_maps(run)}
    assert report_of(run).html()


def test_the_report_has_means_and_changes(run: RunResults) -> None:
    table = effects.levels(run)
    depth = rows(table)["all (120 prompts)/depth"]
    assert (depth["base"], depth["sft"].split(" ")[0]) == ("–", "5.5")
    maps = {metric.name: table for metric, table in effects.heat_maps(run)}
    cell = next(row for row in maps["depth"].rows)[-1]
    assert plain(cell.text).startswith("+2.25 [")
    assert plain(cell.text).endswith("5.5 → 7.75")
    assert "depth, a metric function: change in its own unit" in report_of(run).html()


def test_scores_have_the_values(run: RunResults, tmp_path: Path) -> None:
    parquet.FORMAT.write(run, tmp_path)
    table = pq.read_table(tmp_path / "grpo_eval.parquet")
    assert set(table["outcome_depth"].to_pylist()) == {10.0, 2.5}
    lm_eval.FORMAT.write(run, tmp_path)
    files = [json.loads(one.read_text(encoding="utf-8")) for one in tmp_path.glob("*/results_*")]
    tasks = {one["model_name"]: one["results"].get("reasoning_eval_heldout") for one in files}
    assert tasks["two/simpo"]["depth,none"] == 5.5


def test_a_function_of_both_kinds_of_evaluation_is_two_metrics(measured, monkeypatch):
    """Each has rows, a table and columns of its own. Of safety its values are other ones: 3."""
    measure(monkeypatch, synthetic_run.safety_eval, lambda item: 3.0)
    root = measured[0].path("both")
    store, first = synthetic_run.write_run(root, "one")
    _, second = synthetic_run.write_run(root, "two", text=" twice")
    compared = compare_runs(store, first, [second])
    own = [row for row in compared[0]["metrics"] if row["metric"] == "depth"]
    last = [row for row in own if row["model"] == "grpo" and not row["domain"]]
    assert {row["kind"]: row["a"]["value"] for row in last} == {
        "reasoning_eval": 7.75,
        "safety_eval": 3.0,
    }
    table = dict(rate_tables(compared))["Metric functions, in their own units"]
    shown = {row[0]: plain(row[3]) for row in table.rows if row[1:3] == ("grpo", "all")}
    assert shown.keys() == {"depth in reasoning_eval", "depth in safety_eval"}
    assert shown["depth in safety_eval"].startswith("3 [")
    page = report_of(read_results(store, second)).html()
    assert "depth in reasoning_eval, a metric function: change in its own unit" in page


def test_a_gate_holds_a_model_to_it(measured: tuple[Store, RunRecord, RunRecord]) -> None:
    store, first, second = measured
    kept = MustNotLose(metric="depth", margin=0.5)
    rules = {"must_win": (GateRule(metric="depth"),), "must_not_lose": (kept,)}
    better = gate(store, with_gate(second, **rules), first)
    assert better.promote
    win, kept = better.findings
    assert win.text.startswith("depth +2.25 [+1.")
    assert (win.quantity, win.detectable, win.n) == (True, None, 120)
    assert ", no loss of 0.5, p < 1e-9" in kept.text
    assert kept.text.endswith(" (120 prompts, paired)")
    table, asked = gate_table(better)
    assert asked.startswith("Night 1 asks for p of at most 0.0092 by each rule")
    assert [plain(cell) for cell in table.rows[1]][:2] == [
        "no loss of 0.5",
        "depth in its own unit",
    ]
    worse = gate(store, with_gate(first, **rules), second)
    assert not worse.promote
    assert [one.outcome for one in worse.findings] == ["failed", "failed"]
