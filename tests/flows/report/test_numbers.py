"""The report's numbers: levels, effects, safety beside its controls, suites, sampled answers, and
what could have been found."""

from collections import Counter
from pathlib import Path

import pytest

from flows.report import samples_section
from flows.report.certainty_section import comparisons, noises, sampled_plots
from flows.report.effects_section import heat_maps, levels, suite_waterfalls, tiles
from flows.report.gate_section import gate_verdict
from flows.report.page import report_html
from flows.report.rates import Table
from flows.report.safety_section import opinions, safety
from flows.report.verdict import verdict
from flows.runs.results import RunResults, read_results
from infra.store.store import Store
from schemas.evaluation import HELDOUT, Opinion
from schemas.recipe import GateRule, GateSpec, StageSpec
from schemas.reports import RunRecord
from tests.flows.runs.synthetic_run import SKILL, write_run


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, RunRecord]:
    return write_run(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def run(written: tuple[Store, RunRecord]) -> RunResults:
    return read_results(*written)


def table_of(table: Table) -> dict[str, dict[str, dict[str, str]]]:
    """Group -> rate -> column -> the rate as text."""
    columns = [name for name, _ in table.columns]
    return {
        title: {
            row.label: dict(zip(columns, (rate for rate, _ in row.cells), strict=True))
            for row in rows
        }
        for title, rows in table.groups
    }


def test_headlines_are_the_rates_of_the_base_and_of_the_last_model(run: RunResults) -> None:
    found = {
        tile.label: (tile.before, tile.after, tile.change.partition(" [")[0]) for tile in tiles(run)
    }
    assert found == {
        "exact answer": ("0.0%", "70.0%", "+70.0 points"),
        "format": ("0.0%", "100.0%", "+100.0 points"),
        "safe rate": ("0.0%", "70.0%", "+70.0 points"),
    }


def test_the_levels_of_every_model_include_the_rate_of_reasoning_markers(run: RunResults) -> None:
    shown = levels(run)
    assert shown is not None
    assert [name for name, _ in shown.columns] == ["base", "sft", "simpo", "grpo"]
    [(title, rows)] = shown.groups
    assert title == "all (120 prompts)"
    assert [row.label for row in rows[:5]] == [
        "exact answer",
        "flexible answer",
        "format",
        "reasoning markers",
        "cut off",
    ]
    assert [row.label for row in rows[5:]] == ["tokens", "tokens of the reasoning"]
    assert [rate for rate, _ in rows[0].cells] == ["0.0%", "40.0%", "40.0%", "70.0%"]


def test_the_heat_map_has_every_stage_in_every_domain(run: RunResults) -> None:
    exact = heat_maps(run)[0]
    assert exact.columns == ["sft since base", "simpo since sft", "grpo since simpo"]
    assert [part.label for part, _, _ in exact.rows] == [
        "all",
        "math",
        "coding",
        "science",
        "creative",
        "summarization",
        "general",
    ]
    assert [n for _, n, _ in exact.rows] == [120] + [20] * 6
    assert [[cell.delta for cell in cells if cell] for _, _, cells in exact.rows] == [
        ["+40.0", "0.0", "+30.0"]
    ] * 7
    sft, simpo, grpo = exact.rows[0][2]
    assert sft is not None
    assert simpo is not None
    assert grpo is not None
    assert [sft.tone, simpo.tone, grpo.tone] == ["good", "flat", "good"]
    assert (sft.strength, simpo.strength) == (31, 0)


def test_cells_are_coloured_after_correction_only(run: RunResults) -> None:
    """6 of 20 wrong answers turned right: McNemar's p = 0.031 of one look, and there are twelve in
    which something changed."""
    math = heat_maps(run)[0].rows[1]
    grpo = math[2][2]
    assert grpo is not None
    assert grpo.interval.startswith("[+")
    assert grpo.tone == "flat"


def test_safety_stands_beside_correctness_and_controls(run: RunResults) -> None:
    """Abstaining from everything is always safe, and right only where no answer exists: 40 of
    60."""
    shown = safety(run)
    assert shown is not None
    rates = table_of(shown.rates)["all (60 prompts)"]
    assert (rates["safe"]["grpo"], rates["correct where answerable"]["grpo"]) == ("70.0%", "70.0%")
    assert (rates["safe"]["always abstain"], rates["correct"]["always abstain"]) == (
        "100.0%",
        "66.7%",
    )
    assert rates["over-refusal"]["always abstain"] == "100.0%"
    assert list(table_of(shown.kinds)) == [
        "answerable (20 prompts)",
        "unanswerable (20 prompts)",
        "out of domain (20 prompts)",
    ]
    assert list(table_of(shown.gym)) == ["v3 (60 prompts)", "v4 (60 prompts)"]
    assert set(table_of(shown.gym)["v4 (60 prompts)"]["points, mean"]) == {
        "base",
        "grpo",
        "always abstain",
        "always answer",
    }


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    """Two suites, sampled answers, requests."""
    return read_results(
        *write_run(
            tmp_path_factory.mktemp("wide"), suites=(HELDOUT, "gsm8k"), samples=2, requests=40
        )
    )


def test_suites_have_their_own_levels_effects_and_headlines(wide: RunResults) -> None:
    shown = levels(wide)
    assert shown is not None
    assert [title for title, _ in shown.groups] == [
        "all (240 prompts)",
        "heldout (120 prompts)",
        "gsm8k (120 prompts)",
    ]
    parts = [part.label for part, _, _ in heat_maps(wide)[0].rows]
    assert (parts[:3], parts[8:10], len(parts)) == (
        ["all", "heldout", "heldout: math"],
        ["gsm8k", "gsm8k: math"],
        15,
    )
    assert [(suite, rates) for suite, rates, _, _ in tiles(wide)[0].suites] == [
        ("heldout", "0.0% → 70.0%"),
        ("gsm8k", "0.0% → 70.0%"),
    ]
    said = verdict(wide)
    assert said is not None
    assert "By suite: better in heldout and gsm8k." in said.text
    assert ["in heldout" in plot or "in gsm8k" in plot for plot in suite_waterfalls(wide)] == [
        True,
        True,
    ]
    assert {"math", "gsm8k: math", "xstest: safe request"} <= {
        sample.group for sample in samples_section.samples(wide)
    }


def test_requests_stand_beside_the_controls_by_themselves(wide: RunResults) -> None:
    """Of 40 requests, every other one unsafe, the last model refuses the first 28; nothing here
    knows the suite's name."""
    shown = safety(wide)
    assert shown is not None
    rates = table_of(shown.rates)["xstest (40 prompts)"]
    assert rates["safe request refusal"] == {
        "base": "0.0%",
        "grpo": "70.0%",
        "always abstain": "100.0%",
        "always answer": "0.0%",
    }
    assert rates["unsafe request compliance"]["grpo"] == "30.0%"
    assert [("Refusing too much" in plane) for plane in shown.planes] == [False, True]


def test_sampled_answers_give_pass_at_k_and_a_noise_floor(wide: RunResults) -> None:
    """Of two samples the second is always wrong: 70 % of prompts flip."""
    assert [plot.count("<figcaption>") for plot in sampled_plots(wide)] == [1, 1]
    floor = next(one for one in noises(wide) if (one.model, one.metric) == ("grpo", "exact answer"))
    assert (floor.seeds, floor.n, floor.mean, floor.flips) == (2, 240, "35.0%", "70.0%")


def test_it_says_what_could_have_been_found(run: RunResults) -> None:
    """No prompt changed from sft to simpo: an effect below about six of 120 prompts would not have
    shown."""
    found = {(one.metric, one.what): one for one in comparisons(run)}
    nil = found["exact answer", "simpo since sft"]
    assert (nil.n, nil.changed, nil.seen, nil.needed, nil.found) == (120, "0.0%", "0.0", "–", False)
    assert 4 < float(nil.detectable) < 9
    gain = found["exact answer", "grpo since simpo"]
    assert gain.found
    assert int(gain.needed) < 120
    assert ("exact answer", "grpo since base") in found


def test_a_model_that_two_stages_evaluate_is_judged_by_both(tmp_path: Path) -> None:
    """The second asks one suite more. Where both ask the same one, the first counts."""
    store, wide = write_run(tmp_path, suites=(HELDOUT, "gsm8k"), skill={**SKILL, "grpo": 0.1})
    _, narrow = write_run(tmp_path)
    more = next(stage for stage in wide.stages if stage.name == "grpo_eval").model_copy(
        update={"name": "more"}
    )
    spec = StageSpec(
        name="more", kind="reasoning_eval", inputs={"prompts": "rebalance", "policy": "grpo"}
    )
    recipe = narrow.recipe.model_copy(update={"stages": (*narrow.recipe.stages, spec)})
    both = narrow.model_copy(update={"recipe": recipe, "stages": (*narrow.stages, more)})
    items = read_results(store, both).models["grpo"].items("reasoning_eval")
    assert Counter((item.suite, item.exact) for item in items) == {
        (HELDOUT, True): 84,
        (HELDOUT, False): 36,
        ("gsm8k", True): 12,
        ("gsm8k", False): 108,
    }


def test_one_evaluation_alone_is_shown_as_a_level(tmp_path: Path) -> None:
    store, record = write_run(tmp_path, stop_before="sft")
    assert [(tile.before, tile.after) for tile in tiles(read_results(store, record))] == [
        (None, "0.0%")
    ] * 3


def test_a_recipe_s_gate_is_held_against_the_base(
    written: tuple[Store, RunRecord], run: RunResults
) -> None:
    store, record = written
    assert gate_verdict(run) is None
    for suite, passed, words in ((None, True, "won: exact answer"), ("gsm8k", False, "gsm8k")):
        spec = GateSpec(must_win=(GateRule(metric="exact_answer", suite=suite),))
        gated = read_results(
            store,
            record.model_copy(update={"recipe": record.recipe.model_copy(update={"gate": spec})}),
        )
        found = gate_verdict(gated)
        assert found is not None
        assert found.passed is passed
        assert words in found.why
        assert words in report_html(gated)


def test_an_llm_judge_s_opinion_stands_beside_the_rules(tmp_path: Path) -> None:
    """It calls every answer right; of grpo's the rules say that of 84 of 120."""
    store, record = write_run(tmp_path)
    run = read_results(store, record)
    for stage in run.of_kind("reasoning_eval"):
        for item in stage.items:
            object.__setattr__(item, "opinion", Opinion(verdict=True))
    [(what, table)] = opinions(run)
    rows = table_of(table)["all"]
    assert what == "reasoning"
    assert (rows["asked"]["grpo"], rows["agrees with the rules"]["grpo"]) == ("120", "70.0%")
    assert (rows["judge says yes"]["sft"], rows["rules say yes"]["sft"]) == ("100.0%", "40.0%")
    assert "LLM judge: right" in report_html(run)
    assert opinions(read_results(store, record)) == []
