"""What pairs two runs, and two groups of runs seed by seed."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from flows.report.blocks import Table, plain, walk
from flows.report.comparison import comparison_blocks, seeds_table
from flows.runs.compare import compare_runs, pairing, pairing_text
from flows.runs.results import read_results
from schemas.reports import RunRecord
from tasks.statistics.means import Spread, welch
from tests.flows.report.reading import rows
from tests.flows.runs.synthetic_run import SKILL, manifest_of, remade, with_seed, write_run


def test_runs_of_one_seed_share_what_comes_before_the_change(tmp_path: Path) -> None:
    store, first = write_run(tmp_path)
    better = {**SKILL, "simpo": 0.6}
    _, second = write_run(tmp_path, "demo-2", skill=better, config={"simpo": {"beta": 10.0}})
    found = pairing(read_results(store, first), read_results(store, second))
    assert (found["same_seed"], found["parted_at"]) == (True, "simpo")
    assert found["shared"][:3] == ["distill", "rebalance", "base_eval"]
    assert pairing_text(found).startswith("Paired: both runs have seed 7 and the artifacts of")
    other = with_seed(store, second, 8, None)
    said = pairing_text(pairing(read_results(store, first), read_results(store, other)))
    assert said.startswith("Not paired by seed: 7 and 8")
    assert "`--set seed=7` leaves it out" in said
    ended, less = read_results(store, first), read_results(store, first)
    less.stages["grpo"] = replace(less.stages["grpo"], record=None)  # not reached
    assert pairing(ended, less)["parted_at"] == pairing(less, ended)["parted_at"] == "grpo"
    assert pairing(less, less)["parted_at"] is None


def test_groups_are_compared_seed_by_seed(tmp_path: Path) -> None:
    """SFT differs by 10 points under each seed, and from seed to seed by 20: paired that is 10
    points whatever the seed, unpaired nothing that can be told from noise."""
    found: dict[tuple[str, int], RunRecord] = {}
    for seed, skill in ((7, 0.25), (8, 0.45), (9, 0.65)):
        for group, more in (("a", 0.0), ("b", 0.1)):
            sft = {**SKILL, "sft": skill + more}
            store, record = write_run(tmp_path, f"{group}-{seed}", skill=sft)
            found[group, seed] = with_seed(store, record, seed, group)
    [compared] = compare_runs(store, found["a", 7], [found["b", 7]])
    over = compared["over_seeds"]
    assert over["seeds"] == [7, 8, 9]
    exact = {row["model"]: row for row in over["metrics"] if row["metric"] == "exact_answer"}
    sft = exact["sft"]
    assert (sft["value"], sft["n"], sft["paired"]) == (pytest.approx(0.1), 3, True)
    assert 0.08 < sft["low"] < sft["high"] < 0.12
    assert sft["direction"] == "gain"
    assert sft["unpaired"]["low"] < 0 < sft["unpaired"]["high"]
    assert rows(seeds_table(over))["exact answer"]["seeds"] == "3"
    alone = {**over, "metrics": [sft | {"quantity": True, "paired": False}]}
    [(label, shown)] = rows(seeds_table(alone)).items()
    assert label == "exact answer in its own unit", "the column's title says points"
    assert shown["difference, points"].endswith(" unpaired")
    tables = [one for one in walk(list(comparison_blocks([compared]))) if isinstance(one, Table)]
    assert "Over seeds, paired: 7, 8, 9" in [plain(one.title) for one in tables]


def test_what_one_model_answered_under_every_seed_is_no_comparison(tmp_path: Path) -> None:
    """Only GRPO differs: base, SFT and SimPO are the same models, so GRPO's p is that of one look.
    The first group has a seed more, which takes part in nothing."""
    found: dict[tuple[str, int], RunRecord] = {}
    for group, seed, skill, more in (
        ("a", 7, 0.5, 0.0),
        ("a", 8, 0.6, 0.0),
        ("a", 9, 0.1, 0.0),
        ("b", 7, 0.5, 0.2),
        ("b", 8, 0.6, 0.4),
    ):
        models = {**SKILL, "sft": skill, "simpo": skill, "grpo": skill + more}
        store, record = write_run(tmp_path, f"{group}-{seed}", skill=models)
        found[group, seed] = with_seed(store, record, seed, group)
    [compared] = compare_runs(store, found["a", 7], [found["b", 7]])
    over = compared["over_seeds"]
    exact = {row["model"]: row for row in over["metrics"] if row["metric"] == "exact_answer"}
    same = {model: row["same_answers"] for model, row in exact.items()}
    assert same == {"base": True, "sft": True, "simpo": True, "grpo": False}
    gaps = [0.2, 0.4]
    assert exact["grpo"]["p"] == pytest.approx(Spread.of(gaps, 1 / 120).p), "one look, not four"
    assert (exact["grpo"]["value"], exact["grpo"]["high"]) == (pytest.approx(0.3), 1.0)
    alone = welch([0.5, 0.6], [0.7, 1.0])[0]
    assert exact["grpo"]["unpaired"] == pytest.approx(asdict(alone)), "of the same runs"
    [sft] = [row for row in seeds_table(over).rows if row[:2] == ("exact answer", "sft")]
    assert [plain(cell) for cell in sft[3:]] == ["the same answers", "–", "–"]


def test_models_that_agree_by_chance_are_compared(tmp_path: Path) -> None:
    """Two models gave the same 60 answers: of other prompts that says something, with an
    interval."""
    store, first = write_run(tmp_path)
    made = manifest_of(store, first, "safety_eval")
    items = read_results(store, first).stages["safety_eval"].items
    another = made.inputs["policy"].model_copy(update={"key": "f" * 64, "digest": "f" * 64})
    inputs = made.inputs | {"policy": another}
    second = remade(store, first, "safety_eval", {"items.jsonl": items}, inputs=inputs)
    assert manifest_of(store, second, "safety_eval").digest == made.digest
    [compared] = compare_runs(store, first, [second])
    [safe] = [row["text"] for row in compared["verdict"] if row["text"].startswith("safe rate")]
    assert "0.0 points [−4.8, +4.8], no measurable difference (60 prompts, paired)" in safe
    [exact] = [row["text"] for row in compared["verdict"] if row["text"].startswith("exact")]
    assert exact.endswith("the same answers, by one model.")


def test_a_run_of_a_group_and_one_alone_are_compared_as_two_runs(tmp_path: Path) -> None:
    store, alone = write_run(tmp_path, "alone", per_domain=5)
    for seed in (7, 8):
        _, record = write_run(tmp_path, f"a-{seed}", per_domain=5)
        member = with_seed(store, record, seed, "a")
    [compared] = compare_runs(store, alone, [member])
    assert compared["over_seeds"] is None
