"""Comparing two runs: rates, recipes, times; as data, as a page and on a terminal."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from flows.cli import show
from flows.report.blocks import plain
from flows.report.comparison import (
    comparison_blocks,
    forests,
    rate_tables,
    recipe_table,
    render_comparison,
    stage_table,
)
from flows.runs.compare import compare_runs
from flows.runs.effects import METRICS, Change, Metric
from infra.store.store import Store
from schemas.recipe import GateRule
from tasks.statistics.intervals import Interval, Rate
from tests.flows.promotion.gate_runs import with_gate
from tests.flows.report.reading import rows
from tests.flows.runs.synthetic_run import SKILL, write_run

BETTER = {**SKILL, "simpo": 0.6, "grpo": 0.9}
Compared = tuple[Store, dict[str, Any]]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """demo-2 is better than demo-1 from its simpo on, which has another beta."""
    root = tmp_path_factory.mktemp("store")
    store, a = write_run(root)
    _, b = write_run(root, "demo-2", skill=BETTER, config={"simpo": {"beta": 10.0}})
    return store, compare_runs(store, a, [b])[0]


def row(
    comparison: dict[str, Any], metric: str, model: str, domain: str | None = None
) -> dict[str, Any]:
    wanted = {"metric": metric, "model": model, "domain": domain}
    return next(one for one in comparison["metrics"] if one.items() >= wanted.items())


def test_runs_over_the_same_prompts_are_compared_in_pairs(compared: Compared) -> None:
    """grpo: 84 of 120 right in the first run, 108 in the second; the 24 that changed all changed
    for the better."""
    found = row(compared[1], "exact_answer", "grpo")
    assert (found["a"]["value"], found["b"]["value"]) == (0.7, 0.9)
    assert (found["b"]["n"], found["paired"]) == (120, True)
    assert found["difference"]["value"] == pytest.approx(0.2)
    assert 0 < found["difference"]["low"] < 0.2 < found["difference"]["high"]
    assert found["direction"] == "gain"


def test_every_model_and_domain_that_both_measured_has_a_row(compared: Compared) -> None:
    metrics = compared[1]["metrics"]
    exact = [one for one in metrics if one["metric"] == "exact_answer"]
    assert {one["model"] for one in exact} == {"base", "sft", "simpo", "grpo"}
    assert len(exact) == 4 * 7
    assert {one["metric"] for one in metrics} == {metric.name for metric in METRICS}
    assert json.loads(json.dumps(compared[1], allow_nan=False)) == compared[1]


def test_the_verdict_is_about_the_last_models(compared: Compared) -> None:
    first = compared[1]["verdict"][0]
    assert first["text"].startswith("exact answer (grpo): +20.0 points [")
    assert first["text"].endswith("better (120 prompts, paired).")
    assert first["tone"] == "good"


def test_a_sentence_says_what_its_row_says(tmp_path, monkeypatch):
    """Four models, each with p = 0.02 in one metric: one family of four, for row and sentence."""

    def change(first: Any, both: Any, metric: Metric, part: Any) -> Change:
        moved = metric.name == "exact_answer"
        sides, gained = (Rate(84, 120), Rate(93, 120)), Interval(0.01, 0.14)
        p, changed = (0.02, 9) if moved else (1.0, 0)
        return Change(*sides, gained, paired=True, p=p, changed=changed)

    monkeypatch.setattr("flows.runs.compare._change", change)
    store, a = write_run(tmp_path)
    _, b = write_run(tmp_path, "demo-2", skill=BETTER)
    found = compare_runs(store, a, [b])[0]
    said, shown = found["verdict"][0], row(found, "exact_answer", "grpo")
    assert (shown["p"], shown["direction"]) == (0.08, "unclear")
    assert (said["tone"], "no measurable difference" in said["text"]) == ("flat", True)


def test_runs_over_other_prompts_are_compared_unpaired(tmp_path: Path) -> None:
    store, a = write_run(tmp_path)
    _, b = write_run(tmp_path, "demo-2", prompts="other")
    found = row(compare_runs(store, a, [b])[0], "exact_answer", "grpo")
    assert not found["paired"]
    assert found["direction"] == "unclear"
    assert found["difference"]["low"] < 0 < found["difference"]["high"]


def test_differences_of_the_recipes_are_named_by_field(compared: Compared, tmp_path: Path) -> None:
    """A later version of a config has one more field; null is its default, and part of the stage
    key all the same. And where the recipes are the same, the code may not be."""
    assert compared[1]["recipes"] == [{"field": "stages.simpo.config.beta", "a": 2.0, "b": 10.0}]
    store, a = write_run(tmp_path, stop_before="simpo")
    _, b = write_run(tmp_path, "demo-2", stop_before="simpo", config={"sft": {"lora": None}})
    _, c = write_run(tmp_path, "demo-3", version=2, stop_before="base_eval")
    more, code = (one["recipes"] for one in compare_runs(store, a, [b, c]))
    assert more == [{"field": "stages.sft.config.lora", "b": None}]
    gated = with_gate(b, must_win=(GateRule(metric="exact_answer"),))
    [rules] = (one["recipes"] for one in compare_runs(store, b, [gated]))
    assert {"field": "gate.must_win.0.metric", "b": "exact_answer"} in rules
    names = [f"stages.{name}.VERSION" for name in ("distill", "rebalance")]
    assert code == [{"field": name, "a": 1, "b": 2} for name in names]


def test_stages_say_what_they_took_and_which_artifacts_are_shared(compared: Compared) -> None:
    stages = {one["stage"]: one for one in compared[1]["stages"]}
    assert (stages["sft"]["same_artifact"], stages["simpo"]["same_artifact"]) == (True, False)
    took = {"status": "ran", "seconds": 5.5, "made_in": 12.0, "cost_usd": None}
    assert stages["sft"]["a"] == took


def test_a_run_that_failed_early_can_be_compared(tmp_path: Path) -> None:
    """The first ends with sft, so its last model is compared with the second's grpo as well."""
    store, a = write_run(tmp_path, stop_before="simpo", failure="no pairs")
    _, b = write_run(tmp_path, "demo-2")
    comparison = compare_runs(store, a, [b])[0]
    exact = [one["model"] for one in comparison["metrics"] if one["metric"] == "exact_answer"]
    assert {*exact} == {"base", "sft", "sft / grpo"}
    said = "exact answer (sft against grpo): +30.0 points"
    assert comparison["verdict"][0]["text"].startswith(said)
    took = {"status": "skipped", "seconds": 0.0, "made_in": None, "cost_usd": None}
    assert comparison["stages"][-1]["a"] == took


def test_runs_without_a_common_evaluation_can_be_compared(tmp_path: Path) -> None:
    store, a = write_run(tmp_path, stop_before="base_eval")
    _, b = write_run(tmp_path, "demo-2", stop_before="base_eval")
    comparison = compare_runs(store, a, [b])[0]
    assert (comparison["metrics"], comparison["verdict"], comparison["recipes"]) == ([], [], [])
    assert "no evaluation in common" in Path(render_comparison(store, [comparison])).read_text()


def test_the_page_is_one_file_that_loads_nothing(compared: Compared) -> None:
    path = Path(render_comparison(compared[0], [compared[1]]))
    html = path.read_text(encoding="utf-8")
    assert (path.parent.name, path.name) == ("demo-1", "compare-demo-2.html")
    assert ", better (120 prompts, paired)" in html
    assert not re.search(r'<script|<link|(?<!xmlns=")(?<!xlink=")http://|src=', html)


def test_the_terminal_shows_rates_recipes_and_times(compared, capsys):
    """What the page shows at first sight, without plots and explanations."""
    show.show(comparison_blocks([compared[1]]))
    shown = capsys.readouterr().out
    assert "+20.0 [" in shown
    assert "stages.simpo.config.beta" in shown
    assert "ran 5.5 s" in shown
    assert "Holm" not in shown


def test_four_runs_stand_side_by_side(tmp_path: Path, capsys: Any) -> None:
    """Of 120 prompts the first got 84 right; of the 60 that the last was asked, all."""
    store, a = write_run(tmp_path)
    _, b = write_run(tmp_path, "demo-2", skill=BETTER)
    _, c = write_run(tmp_path, "demo-3", stop_before="grpo", config={"sft": {"steps": 9}})
    _, d = write_run(tmp_path, "demo-4", per_domain=10)
    comparisons = compare_runs(store, a, [b, c, d])
    pairs = [(one["a"]["run_id"], one["b"]["run_id"]) for one in comparisons]
    assert pairs == [("demo-1", f"demo-{n}") for n in (2, 3, 4)]
    table = dict(rate_tables(comparisons))["Over all prompts"]
    [[first, second, gained, *third, _, lost]] = [
        [plain(getattr(cell, "text", cell)) for cell in row[3:]]
        for row in table.rows
        if row[:2] == ("exact answer", "grpo")
    ]
    assert (first[:5], second) == ("70.0%", "90.0% [83.3, 94.2]")
    assert gained.endswith(" 120 prompts")
    assert third == ["–", "–"]
    assert re.fullmatch(r"−30\.0 \[\S+ \S+\] 60 prompts against 100\.0%", lost)
    steps = {"1": "3", "2": "3", "3": "9", "4": "3"}
    assert rows(recipe_table(comparisons)) == {"stages.sft.config.steps": steps}
    grpo = rows(stage_table(comparisons))["grpo"].values()
    assert [text.split(" ")[0] for text in grpo] == ["ran", "ran", "not", "ran"]
    page = Path(render_comparison(store, comparisons))
    assert page.name.startswith("compare-3-runs-")
    fields = [{"field": f"stages.sft.{n}", "a": n} for n in range(41)]
    show.show(comparison_blocks([comparisons[0] | {"recipes": fields}]))
    told = capsys.readouterr().out
    assert [one in told for one in ("Fields that differ: 41.", "stages.sft.3")] == [True, False]
    assert "Four runs compared" in page.read_text(encoding="utf-8")


def test_what_one_artifact_answered_for_both_runs_is_no_comparison(compared: Compared) -> None:
    exact = [one for one in compared[1]["metrics"] if one["metric"] == "exact_answer"]
    same = {one["model"]: one["same_answers"] for one in exact}
    assert same == {"base": True, "sft": True, "simpo": False, "grpo": False}
    [plot] = [one for one in forests([compared[1]]) if one.title.startswith("Exact answer")]
    assert ("simpo" in plot.svg, "base" in plot.svg.replace("baseline", "")) == (True, False)
