"""Runs under several seeds together: means over seeds, the noise floor, what a failed seed leaves,
the page."""

from pathlib import Path

import pytest

from flows.report.blocks import Box, Heading, Table, plain, walk
from flows.report.seeds_page import effects_table, seeds_blocks, verdicts, write_seeds
from flows.runs.effects import EXACT
from flows.runs.replicates import Replicates, group_of, read_replicates, told
from infra.store.store import Store
from schemas.reports import RunRecord
from tasks.statistics.means import Spread
from tests.flows.report.reading import rows
from tests.flows.runs.synthetic_run import NEVER, SKILL, with_seed, write_run

Three = tuple[Store, list[RunRecord]]


def under_seed(
    root: Path, seed: int, sft: float, grpo: float, *, stop_before: str = NEVER
) -> tuple[Store, RunRecord]:
    """A run of the group `g`."""
    given = {"skill": {**SKILL, "sft": sft, "simpo": sft, "grpo": grpo}}
    given["failure"] = "out of memory" if stop_before != NEVER else None
    store, record = write_run(root, f"demo-{seed}", stop_before=stop_before, **given)
    return store, with_seed(store, record, seed, "g")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Three:
    """SFT gives 40, 50, 60 points, SimPO nothing; the seed of the third fails in GRPO."""
    root = tmp_path_factory.mktemp("seeds")
    store, first = under_seed(root, 7, 0.4, 0.7)
    _, second = under_seed(root, 8, 0.5, 0.7)
    _, third = under_seed(root, 9, 0.6, 0.7, stop_before="grpo")
    write_run(root, "alone")
    return store, [third, first, second]


@pytest.fixture
def runs(three: Three) -> Replicates:
    return read_replicates(*three)


def test_a_stage_has_its_mean_over_seeds_and_each_seeds_paired_interval(runs: Replicates) -> None:
    """40, 50, 60: sd 10, t(2) = 4.303, so 50 +- 4.303 * 10 / sqrt(3) = 50 +- 24.84. Steps of 1/120
    add their rounding to the variance."""
    sft, simpo, grpo = runs.stages(EXACT)
    assert list(sft.effects) == [7, 8, 9]
    assert sft.spread.mean == pytest.approx(0.5)
    assert sft.spread.sd == pytest.approx(0.1, abs=1e-3)
    assert sft.spread.interval.low == pytest.approx(0.5 - 0.2484, abs=1e-3)
    assert sft.effects[8].change.paired
    assert sft.effects[8].change.interval.low < 0.5 < sft.effects[8].change.interval.high
    assert (simpo.spread.mean, simpo.direction) == (0.0, "unclear")
    assert list(grpo.effects) == [7, 8]
    # corrected for the number of stages: 0.013 alone, times 3
    assert sft.spread.p == pytest.approx(0.0131, abs=1e-3)
    assert sft.p == pytest.approx(3 * sft.spread.p)
    assert sft.direction == "gain"


def test_two_seeds_that_agree_by_chance_are_no_proof() -> None:
    """Both lose 1 of 60 prompts: that is known to 1/60, and of two seeds little is known."""
    found = Spread.of([-1 / 60, -1 / 60], step=1 / 60)
    assert found.interval.low < 0 < found.interval.high
    assert found.p > 0.05
    assert Spread.of([0.5]) is None
    equal = [Spread.of([0.5] * n) for n in (2, 6)]  # of a metric function, which has no step
    equal.append(Spread.of([0.1 + 0.2, 0.3]))
    assert [one and one.p for one in equal] == [0.5, 1 / 32, 0.5]


def test_the_noise_bound_holds_nineteen_pairs_of_twenty() -> None:
    """Of seeds 0 and 1, sd = 1/sqrt(2): t(1) * sqrt(2) * sd = 12.706."""
    found = Spread.of([0.0, 1.0])
    assert (found.sd, found.bound) == (pytest.approx(0.5**0.5), pytest.approx(12.706, abs=1e-3))


def test_the_page_says_which_seed_failed_and_shows_every_seed(three: Three, tmp_path: Path) -> None:
    store, records = three
    runs = read_replicates(store, records)
    blocks = list(walk(list(seeds_blocks(runs, {10: "it was not begun"}))))
    boxes = [one for one in blocks if isinstance(one, Box) and "failure" in one.classes]
    heads = [one.blocks[0] for one in boxes]
    failed = [plain(one.text) for one in heads if isinstance(one, Heading)]
    assert failed == ["Seed 10 has no run", "Seed 9 failed"]
    table = rows(effects_table(EXACT, runs.stages(EXACT), [7, 8, 9]))
    assert table["grpo since simpo"]["seed 9"] == "–"
    assert table["sft since base"]["seed 8"].startswith("+50.0 [+4")
    assert table["sft since base"]["mean over seeds"] == "+50.0 [+25.2, +74.8] 3 seeds"
    said = [plain(text) for _, text in verdicts(runs)]
    assert said[0].startswith("sft since base: exact answer +50.0 points [+25.2, +74.8] over 3")
    assert "noise floor 10.0: a gain" in said[0]
    location = write_seeds(store, runs, {})
    page = Path(location).read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "demo under 3 seeds" in page
    assert any(isinstance(one, Table) for one in blocks)


def test_a_run_knows_its_fellows(three: Three) -> None:
    store, records = three
    found = group_of(store, records[0])
    assert [run.record.run_id for run in found.runs.values()] == ["demo-7", "demo-8", "demo-9"]
    assert group_of(store, records[0].model_copy(update={"group": None})) is None


def test_json_has_effects_parts_and_levels(runs: Replicates) -> None:
    value = told(runs)
    sft = next(one for one in value["effects"] if one["stage"] == "sft" and one["domain"] is None)
    assert (sft["metric"], sft["n"], set(sft["seeds"])) == ("exact_answer", 3, {"7", "8", "9"})
    assert {"math", "coding"} <= {one["domain"] for one in value["effects"]}
    base = next(one for one in value["levels"] if one["model"] == "base")
    assert (base["mean"], base["seeds"]) == (0.0, {"7": 0.0, "8": 0.0, "9": 0.0})
    assert base["low"] == 0.0 < base["high"], "no rate is below 0"
    assert value["overall"][0]["stage"] == "grpo"
