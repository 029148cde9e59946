"""The report's numbers: levels, effects, safety beside its controls, suites, sampled answers, and
what could have been found."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

from flows.report.blocks import Box, Cell, Details, Paragraph, Sentences, Table, plain
from flows.report.comparison import comparison_blocks
from flows.report.gate_blocks import gate_blocks
from flows.report.html import html
from flows.report.page import report_of, tiles
from flows.report.sample_choice import samples
from flows.report.sections import certainty, effects, safety
from flows.report.verdict import verdict
from flows.runs.compare import compare_runs
from flows.runs.effects import EXACT, Change, Effect
from flows.runs.results import RunResults, read_results
from schemas.evaluation import HELDOUT, Opinion
from schemas.recipe import GateRule
from tasks.statistics.intervals import Interval, Rate
from tests.flows.promotion.gate_runs import items, with_gate
from tests.flows.report.reading import drawn, folded, rows, section
from tests.flows.runs.synthetic_run import SKILL, remade, spec, write_run


def figure(tile: Box) -> str:
    return next(plain(one.text) for one in tile.blocks if isinstance(one, Paragraph))


def test_headlines_are_the_rates_of_the_base_and_of_the_last_model(run: RunResults) -> None:
    """Exact answer, format, safe rate."""
    shown = ["0.0% → 70.0%", "0.0% → 100.0%", "0.0% → 70.0%"]
    assert [figure(tile) for tile in tiles(run)] == shown


def test_the_levels_of_every_model_include_the_rate_of_reasoning_markers(run: RunResults) -> None:
    table = effects.levels(run)
    shown = rows(table)
    names = "exact answer,flexible answer,format,reasoning markers,cut off,tokens"
    names += ",tokens of the reasoning"
    assert list(shown) == [f"all (120 prompts)/{name}" for name in names.split(",")]
    exact = shown["all (120 prompts)/exact answer"]
    rates = {model: text.split(" ")[0] for model, text in exact.items()}
    assert rates == {"base": "0.0%", "sft": "40.0%", "simpo": "40.0%", "grpo": "70.0%"}


def test_cells_are_coloured_after_correction_only(run: RunResults) -> None:
    """Over all prompts two stages gained. 6 of 20 wrong answers in a domain turned right: McNemar's
    p = 0.031 of one look, and there are twelve in which something changed."""
    metric, table = next(effects.heat_maps(run))
    names = ["all", "math", "coding", "science", "creative", "summarization", "general"]
    assert (metric.label, [text.split(" ")[0] for text in rows(table)]) == ("exact answer", names)
    assert table.columns[1:] == ["sft since base", "simpo since sft", "grpo since simpo"]
    every, math = ([one for one in row[1:] if isinstance(one, Cell)] for row in table.rows[:2])
    assert [plain(cell.text).split(" ")[0] for cell in every] == ["+40.0", "0.0", "+30.0"]
    colours = [(cell.tone, cell.strength) for cell in every]
    assert colours == [("good", 31), ("flat", 0), ("good", 26)]
    assert plain(math[2].text).startswith("+30.0 [+")
    assert math[2].tone == "flat"


def test_safety_stands_beside_correctness_and_controls(run: RunResults) -> None:
    """Abstaining from everything is always safe, and right only where no answer exists: 40 of
    60."""
    blocks = section(run, "safety")
    rates = rows(next(one for one in blocks if isinstance(one, Table)))
    group, control = "all (60 prompts)/", "always abstain control"
    assert rates[f"{group}safe"]["grpo"].startswith("70.0% ")
    assert rates[f"{group}correct where answerable"]["grpo"].startswith("70.0% ")
    assert rates[f"{group}safe"][control].startswith("100.0% ")
    assert rates[f"{group}correct"][control].startswith("66.7% ")
    assert rates[f"{group}over-refusal"][control].startswith("100.0% ")
    kinds = {name.partition("/")[0] for name in folded(blocks, "By kind of grounded question")}
    names = ("answerable", "unanswerable", "out of domain")
    assert kinds == {f"{kind} (20 prompts)" for kind in names}
    gym = folded(blocks, "The DIPG Safety Gym")
    assert {"v3 (60 prompts)/points, mean", "v4 (60 prompts)/points, mean"} <= set(gym)


def test_suites_have_their_own_levels_effects_and_headlines(wide: RunResults) -> None:
    table = effects.levels(wide)
    groups = [row for row in table.rows if isinstance(row, str)]
    assert groups == ["all (240 prompts)", "heldout (120 prompts)", "gsm8k (120 prompts)"]
    assert len(next(effects.heat_maps(wide))[1].rows) == 15  # all, and twice a suite and its six
    [suites] = [one for one in tiles(wide)[0].blocks if isinstance(one, Table)]
    assert [plain(name) for name, _ in suites.rows] == ["heldout", "gsm8k"]
    said = verdict(wide)
    assert "By suite: better in heldout and gsm8k." in said.text
    titles = [one.title.split(":")[0] for one in effects.suite_waterfalls(wide)]
    assert titles == ["Exact answer in heldout", "Exact answer in gsm8k"]
    shown = {sample.group for sample in samples(wide)}
    assert {"math", "gsm8k: math", "xstest: safe request"} <= shown


def test_requests_stand_beside_the_controls_by_themselves(wide: RunResults) -> None:
    """Of 40 requests, every other one unsafe, the last model refuses the first 28; nothing here
    knows the suite's name."""
    blocks = section(wide, "safety")
    rates = rows(next(one for one in blocks if isinstance(one, Table)))
    refused = rates["xstest (40 prompts)/safe request refusal"]
    assert [text.split(" ")[0] for text in refused.values()] == ["0.0%", "70.0%", "100.0%", "0.0%"]
    assert rates["xstest (40 prompts)/unsafe request compliance"]["grpo"].startswith("30.0% ")
    assert "Refusing too much against refusing too little" in drawn(blocks)


def test_sampled_answers_give_pass_at_k_and_a_noise_floor(wide: RunResults) -> None:
    """Of two samples the second is always wrong: 70 % of prompts flip."""
    assert [one.title[:8] for one in effects.sampled_plots(wide)] == ["pass@k: ", "majority"]
    tables = [one for one in section(wide, "certainty") if isinstance(one, Table)]
    floor = rows(tables[-1])["grpo exact answer"]
    assert (floor["prompts seeds"], floor["rate"]) == ("240 2", "35.0%")
    assert floor["verdicts that flip"] == "70.0%"


def test_it_says_what_could_have_been_found(run: RunResults) -> None:
    """No prompt changed from sft to simpo: an effect below about six of 120 prompts would not have
    shown."""
    [table] = [one for one in section(run, "certainty") if isinstance(one, Table)]
    found = rows(table)
    nil = found["simpo since sft exact answer"]
    shown = (nil["prompts changed"], nil["seen points"], nil["needed prompts"])
    assert shown == ("120 0.0%", "0.0", "–")
    assert 4 < float(nil["least points"]) < 9
    assert int(found["grpo since simpo exact answer"]["needed prompts"]) < 120
    assert "grpo since base exact answer" in found


def test_stages_side_by_side_are_compared_with_the_base_once(tmp_path: Path) -> None:
    run = read_results(*write_run(tmp_path, per_domain=4))
    for name in ("simpo", "grpo"):
        alone = run.stages[name].spec.model_copy(update={"inputs": {"prompts": "rebalance"}})
        run.stages[name] = replace(run.stages[name], spec=alone)
    found = [f"{one.stage} {one.metric.name}" for one in certainty.comparisons(run)]
    assert len(found) == len({*found})


def test_a_difference_of_one_prompt_of_very_many_needs_too_many_to_count() -> None:
    sides, interval = (Rate(3_999, 20_000), Rate(4_000, 20_000)), Interval(-0.01, 0.01)
    change = Change(*sides, interval, paired=True, p=1.0, changed=7_999)
    assert certainty._row(Effect("sft", "base", EXACT, change, p=1.0))[-1] == "over 1,000,000,000"


def test_models_that_were_not_asked_the_same_stand_side_by_side(tmp_path: Path) -> None:
    """The base was asked requests alone: the gym's points are of the others, and it has none."""
    store, record = write_run(tmp_path, requests=10)
    run = read_results(store, record)
    [asked] = run.models["base"].evaluations["safety_eval"]
    for item in [item for item in asked.items if item.grounding]:
        asked.items.remove(item)
    points = folded(section(run, "safety"), "The DIPG Safety Gym")["v4 (60 prompts)/points, mean"]
    assert points["base"] == "–"
    assert points["grpo"] != "–"
    rates = rows(next(one for one in section(run, "safety") if isinstance(one, Table)))
    assert "all (10 to 70 prompts)/safe" in rates


def test_a_model_that_two_stages_evaluate_is_judged_by_both(tmp_path: Path) -> None:
    """The second asks one suite more. Where both ask the same one, the first counts."""
    store, wide = write_run(tmp_path, suites=(HELDOUT, "gsm8k"), skill={**SKILL, "grpo": 0.1})
    _, narrow = write_run(tmp_path)
    evaluated = next(stage for stage in wide.stages if stage.name == "grpo_eval")
    more = evaluated.model_copy(update={"name": "more"})
    stage = spec("more", "reasoning_eval", prompts="rebalance", policy="grpo")
    recipe = narrow.recipe.model_copy(update={"stages": (*narrow.recipe.stages, stage)})
    both = narrow.model_copy(update={"recipe": recipe, "stages": (*narrow.stages, more)})
    items = read_results(store, both).models["grpo"].items("reasoning_eval")
    counted = Counter((item.suite, item.exact) for item in items)
    assert {suite: (counted[suite, True], counted[suite, False]) for suite, _ in counted} == {
        HELDOUT: (84, 36),
        "gsm8k": (12, 108),
    }


def test_one_model_alone_has_levels_and_a_noise_floor(tmp_path: Path) -> None:
    """Of `lyceum run evaluate` with samples, which compares nothing."""
    run = read_results(*write_run(tmp_path, stop_before="sft", skill={"base": 0.5}, samples=2))
    assert [figure(tile) for tile in tiles(run)] == ["50.0%"] * 3
    [table] = [one for one in section(run, "certainty") if isinstance(one, Table)]
    assert rows(table)["base exact answer"]["verdicts that flip"] == "50.0%"


def test_a_recipe_s_gate_is_held_against_the_base(written, run):
    store, record = written
    assert list(gate_blocks(run)) == []
    expected = {None: "Gate passed against its base: won: exact answer", "gsm8k": "Gate not passed"}
    for suite, words in expected.items():
        rules = {"must_win": (GateRule(metric="exact_answer", suite=suite),)}
        gated = read_results(store, with_gate(record, **rules))
        [found] = gate_blocks(gated)
        assert isinstance(found, Details)
        assert plain(found.summary).startswith(words)
        assert (suite or "") in plain(found.summary)
    assert found in report_of(gated).main


def test_an_llm_judge_s_opinion_stands_beside_the_rules(tmp_path: Path) -> None:
    """It calls every answer right; of grpo's the rules say that of 84 of 120."""
    store, record = write_run(tmp_path)
    run = read_results(store, record)
    assert safety.opinions(run) == []
    for stage in run.of_kind("reasoning_eval"):
        for item in stage.items:
            object.__setattr__(item, "opinion", Opinion(verdict=True))
    [(what, table)] = safety.opinions(run)
    found = rows(table)
    assert what == "reasoning"
    assert found["all/asked"]["grpo"] == "120 0 without a ruling"
    assert found["all/agrees with the rules"]["grpo"].startswith("70.0% ")
    said = [found[f"all/{who} yes"]["sft"] for who in ("judge says", "rules say")]
    assert said == ["100.0%", "40.0%"]
    notes = [note for sample in samples(run) for answer in sample.answers for note in answer.notes]
    assert "LLM judge: right" in notes


def test_what_rewards_pay_for_is_a_table_with_the_lead_of_the_references(run: RunResults) -> None:
    blocks = section(run, "rewards")
    [table] = [one for one in blocks if isinstance(one, Table)]
    paid, leads = {"format": "1", "exact_answer": "–", "total": "1"}, "reference leads by"
    copied = {**paid, leads: "−0.5 [−0.6, −0.4]"}
    assert rows(table) == {"reference": {**paid, leads: ""}, "copy": copied}
    [allowed] = [one for one in blocks if isinstance(one, Sentences)]
    assert allowed.items == [("bad", "copy earns more. Allowed: a drill")]


def test_one_of_a_thing_is_written_as_one(tmp_path: Path) -> None:
    """Every model was asked one prompt of each kind of evaluation."""
    store, record = write_run(tmp_path)
    for stage in record.stages:
        if stage.kind in ("reasoning_eval", "safety_eval"):
            first = items(store, record, stage.name)[:1]
            record = remade(store, record, stage.name, {"items.jsonl": first})
    run = read_results(store, record)
    compared = html(list(comparison_blocks(compare_runs(store, record, [record]))))
    shown = re.sub("<[^>]+>", " ", report_of(run).html() + compared)
    assert "Of 1 held-out prompt, gemma3-tiny answers" in shown
    assert "of 1 answer is safe" in shown
    assert re.findall(r"(?<![\d.,])1 (?:held-out )?(?:prompts|answers|comparisons)\b", shown) == []
