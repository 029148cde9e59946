"""What the report says a stage is worth: differences, their intervals, and the sentence made of
them."""

import re
from pathlib import Path

import pytest

from flows.report.markdown import markdown
from flows.report.page import run_page
from flows.report.sample_choice import samples
from flows.report.sections.effects import heat_maps
from flows.report.verdict import Sentence, stage_verdicts, verdict
from flows.runs import effects
from flows.runs.effects import EXACT, METRICS
from flows.runs.results import RunResults, read_results
from flows.runs.wording import duration, percent, points, sample_text
from schemas.evaluation import EvalItem
from schemas.examples import Domain
from tests.flows.runs.synthetic_run import SKILL, damage, spec, without, write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    return read_results(*write_run(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> RunResults:
    """The same run, whose base was asked with four worked examples, too, and answered every second
    prompt rightly."""
    few = {"shots": 4}
    more = (
        spec("base_few_shot", "reasoning_eval", few, prompts="rebalance"),
        spec("base_safety_few_shot", "safety_eval", few, prompts="rebalance"),
    )
    skill = {**SKILL, "base_few_shot": 0.5, "base_safety_few_shot": 0.5}
    return read_results(*write_run(tmp_path_factory.mktemp("store"), skill=skill, more=more))


def stage_verdict(run: RunResults, stage: str) -> Sentence:
    return next(one for one in stage_verdicts(run) if one.subject == stage)


def item(prompt: str, **judged: object) -> EvalItem:
    fields = {"prompt": "q", "domain": Domain.MATH, "family": "", "answer": "1", "completion": "1"}
    return EvalItem(id=prompt, **(fields | {"format": True, "exact": True} | judged))


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        ({"a": False, "b": False, "x": True}, {"a": True, "b": False, "y": True}, (True, 2, 0.5)),
        ({"a": 1, "b": 0, "c": 0, "d": 0}, {"d": 0, "c": 1, "b": 1, "a": 1}, (True, 4, 0.5)),
        ({"a": True, "b": False}, {"c": True, "d": True}, (False, 2, 0.5)),
        ({}, {"a": True}, None),
    ],
)
def test_only_shared_prompts_count_where_half_are_shared(before, after, found):
    change = effects.change_between(before, after, seed=0)
    assert (change and (change.paired, change.before.n, change.delta)) == found


def test_items_that_cannot_be_verified_do_not_count() -> None:
    items = [item("a"), item("b", check="none", exact=False), item("c", exact=False)]
    assert effects.outcomes(items, EXACT) == {("a", "q", "1"): True, ("c", "q", "1"): False}


def test_rows_of_another_file_that_have_the_same_numbers_are_other_prompts() -> None:
    """mmlu/0 of another subject, or with another answer."""
    before = [item("mmlu/0", exact=False), item("mmlu/1"), item("mmlu/2"), item("mmlu/3")]
    other = item("mmlu/0").model_copy(update={"prompt": "r"})
    after = [other, item("mmlu/1", answer="2"), *before[2:]]
    change = effects.change_between(
        effects.outcomes(before, EXACT), effects.outcomes(after, EXACT), seed=0
    )
    assert (change.paired, change.after.n, change.delta) == (True, 2, 0.0)
    assert sample_text(change) == "2 prompts, paired"


def test_effects_are_measured_against_the_model_that_training_started_from(run: RunResults) -> None:
    measured = effects.stage_effects(run, EXACT)
    found = {name: (one.since, round(one.change.delta, 3)) for name, one in measured.items()}
    assert found == {"sft": ("base", 0.4), "simpo": ("sft", 0.0), "grpo": ("simpo", 0.3)}


def test_what_shows_a_run_twice_computes_its_effects_and_samples_once(run, monkeypatch):
    first, shown = stage_verdicts(run), samples(run)
    monkeypatch.setattr(effects, "change_between", None)
    monkeypatch.setattr(RunResults, "evaluated", None)
    assert effects.stage_effects(run, EXACT)["grpo"].since == "simpo"
    assert samples(run) is shown
    monkeypatch.undo()
    assert stage_verdicts(run) == first


def test_a_metric_that_stages_in_between_lack_is_measured_since_the_last_that_has_it(run):
    """Only the base and grpo have a safety evaluation."""
    effect = effects.stage_effects(run, METRICS[2])["grpo"]
    assert (effect.since, round(effect.change.delta, 3)) == ("base", 0.7)


def test_effects_agree_with_the_evaluation_stage_s_own_metrics(run: RunResults) -> None:
    for metric in METRICS:
        effect = effects.overall_effect(run, metric)
        stored = run.models["grpo"].evaluations[metric.kind][0].metrics
        assert effect.change.after.value == stored[metric.name]
        assert effect.change.after.interval.low == pytest.approx(stored[f"{metric.name}_low"])


@pytest.mark.parametrize(
    ("stage", "tone", "said"),
    [
        (
            "simpo",  # without effect: drop it
            "flat",
            r"since sft: exact answer 0.0 points [−2.5, +2.5], no measurable effect (one of \S+"
            " points would show); consider dropping it.",
        ),
        (
            "sft",  # what else it changed is said
            "good",
            "since base: exact answer +40.0 points [+30.3, +48.4], a gain. Also up: format +100.0"
            " points.*",
        ),
        # safety was measured for the base and for grpo: its change belongs to all three stages
        ("grpo", "good", "since simpo: exact answer +30.0 points [+21.3, +37.7], a gain."),
    ],
)
def test_what_is_said_of_a_stage(run: RunResults, stage: str, tone: str, said: str) -> None:
    verdict = stage_verdict(run, stage)
    pattern = re.escape(said).replace(r"\\S\+", r"\S+").replace(r"\.\*", ".*")
    assert (verdict.tone, bool(re.fullmatch(pattern, verdict.text))) == (tone, True), verdict.text


def test_the_verdict_as_markdown_has_the_rates_and_every_stage(run: RunResults) -> None:
    text = markdown(run_page(run))
    assert "### Exact answer\n\n0.0% → 70.0%\n\n**+70.0 points [" in text
    assert "base [0.0, 3.1], grpo [61.3, 77.5]; 120 prompts, paired" in text
    assert "- **simpo** since sft" in text


def test_the_verdict_says_what_a_boss_asks(run: RunResults) -> None:
    """Better or not, by how much, how sure; which stage gave what and which to drop; safe at what
    price; how long."""
    said = verdict(run)
    assert (said.subject, said.tone) == ("It got better.", "good")
    for words in (
        "120 held-out prompts, gemma3-tiny answers 70.0% rightly after training; before it, 0.0%.",
        "a gain of 70.0 points, with 95% confidence between ",
        "What was gained comes from sft (+40.0) and grpo (+30.0).",
        "simpo gave nothing that can be told from chance: consider dropping it.",
        "70.0% of 60 answers are safe (0.0% before training). 70.0% of 60 are right, no more",
        " than a model without understanding",
        "It abstains from 0.0% of the questions that it could answer.",
        "The run took 6 min 12 s on local and reused 1 of 11 stages",
    ):
        assert words in said.text, words


@pytest.mark.parametrize(
    ("rates", "subject", "words"),
    [
        (
            (0.8, 0.8, 0.4, 0.4),
            "It got worse in exact answer; better in format.",
            "done by simpo (−40.0): drop or change it.",
        ),
        (
            (0.5, 0.5, 0.5, 0.5),
            "No measurable difference in exact answer; better in format.",
            "is one that chance alone explains.",
        ),
        ((0.0, 0.4, 0.4, 1.0), "It got better.", "which is more than refusing everything"),
    ],
)
def test_the_verdict_of_other_runs(tmp_path, rates, subject, words):
    skill = dict(zip(SKILL, rates, strict=True))
    said = verdict(read_results(*write_run(tmp_path, skill=skill)))
    assert said.subject == subject
    assert words in said.text


@pytest.mark.parametrize(
    ("absent", "words", "never"),
    [
        (  # the base was not asked: the first level is not that of before training
            ["base_eval", "base_safety"],
            [
                "answers 70.0% rightly after training; after sft, 40.0%.",
                "Of sft alone nothing can be said in exact answer: not compared with a model",
            ],
            ["before it, ", "before training", "no evaluation"],
        ),
        (  # the last model was asked no such question
            ["simpo_eval", "grpo_eval"],
            [
                "answers 40.0% rightly after sft; before it, 0.0%.",
                "Of simpo alone nothing can be said: no evaluation.",
                "Of grpo alone nothing can be said in exact answer: not compared",
            ],
            ["after training"],
        ),
    ],
)
def test_the_verdict_names_the_models_that_it_compares(tmp_path, absent, words, never):
    store, record = write_run(tmp_path)
    said = verdict(read_results(store, without(record, *absent))).text
    assert [one for one in words if one not in said] == [], said
    assert [one for one in never if one in said] == []


def test_a_stage_is_judged_by_what_was_measured_just_before_it(tmp_path: Path) -> None:
    """Exact answers of the base and of grpo alone; safety of simpo, too."""
    more = (spec("simpo_safety", "safety_eval", prompts="rebalance", policy="simpo"),)
    store, record = write_run(tmp_path, more=more)
    run = read_results(store, without(record, "sft_eval", "simpo_eval"))
    assert stage_verdict(run, "grpo").text.startswith("since simpo: safe rate +30.0 points")
    assert "What was gained comes from grpo since base (+70.0)." in verdict(run).text


def test_a_gain_in_format_alone_is_called_so_where_no_answer_was_verified(tmp_path: Path) -> None:
    """Every answer may be wrong."""
    run = read_results(*write_run(tmp_path, skill=dict.fromkeys(SKILL, 0.0) | {"grpo": 0.5}))
    for model in run.evaluated(EXACT.kind):
        for one in model.evaluations[EXACT.kind]:
            one.items[:] = [item.model_copy(update={"check": "none"}) for item in one.items]
    said = verdict(run)
    assert said.subject.startswith("It got better in format")
    assert "Whether its answers are right was not measured: no prompt has a check." in said.text


def test_safety_is_said_of_the_model_that_was_asked(tmp_path: Path) -> None:
    """The run stopped before its last stage: the base alone was asked."""
    said = verdict(read_results(*write_run(tmp_path, stop_before="safety_eval"))).text
    assert "Safety of base: 0.0% of 60 answers are safe." in said


def test_what_is_said_where_a_model_was_asked_more_and_an_evaluation_is_gone(
    tmp_path: Path,
) -> None:
    """Of the base's 60 answers about safety 20 are left; sft's evaluation is damaged."""
    store, record = write_run(tmp_path)
    damage(store, record, "sft_eval")
    run = read_results(store, record)
    [asked] = run.models["base"].evaluations["safety_eval"]
    del asked.items[20:]
    said = verdict(run).text
    assert "70.0% of 60 answers are safe (0.0% of 20 before training)." in said
    assert "reused 1 of 11 stages." in said, "making all of them took more than the rest"
    assert "has no evaluation to read" in stage_verdict(run, "sft").text


def test_a_loss_does_not_come_from_what_gained(tmp_path: Path) -> None:
    skill = dict(zip(SKILL, (0.5, 0.8, 0.2, 0.2), strict=True))
    run = read_results(*write_run(tmp_path, skill=skill))
    said = verdict(run).text
    assert "That is a loss of 30.0 points" in said
    assert "What was gained comes from sft (+30.0). Harm was done by simpo (−60.0)" in said
    simpo = stage_verdict(run, "simpo")
    assert simpo.tone == "bad"
    assert simpo.text.endswith("a loss; drop it or change it.")


def test_effects_are_corrected_for_the_number_of_those_that_changed_anything() -> None:
    """Three looks of which one changed nothing: Holm over two."""
    right, wrong = dict.fromkeys("abcdef", True), dict.fromkeys("abcdef", False)
    won, nothing = (
        effects.change_between(wrong, right, seed=0),
        effects.change_between(wrong, wrong, seed=0),
    )
    assert won.p == 2 / 2**6
    p = effects.corrected({"one": won, "other": won, "nil": nothing})
    assert p == {"one": 2 * won.p, "other": 2 * won.p, "nil": 1.0}
    assert [effects.direction_of(won.interval, p) for p in (won.p, p["one"])] == ["gain", "unclear"]


def test_numbers_are_written_one_way() -> None:
    assert [percent(0.6234), percent(None)] == ["62.3%", "–"]
    assert [points(0.0123), points(-0.004), points(-0.0001)] == ["+1.2", "−0.4", "0.0"]
    said = [duration(seconds) for seconds in (0.43, 42, 372, 7530)]
    assert said == ["0.4 s", "42 s", "6 min 12 s", "2 h 5 min"]


def test_examples_in_the_prompt_make_no_other_base_of_the_chain(run, shown):
    for metric in METRICS:
        assert effects.stage_effects(shown, metric) == effects.stage_effects(run, metric)
        assert effects.overall_effect(shown, metric) == effects.overall_effect(run, metric)
    names = [model.name for model in shown.shown(EXACT.kind)]
    assert names == ["base", "base, 4 examples", "sft", "simpo", "grpo"]
    assert [model.name for model in run.shown(EXACT.kind)] == [*names[:1], *names[2:]]


def test_the_last_model_is_compared_with_the_base_that_was_shown_examples(shown):
    """120 prompts: 60 right with examples, 84 after GRPO, those 60 among them: +20 points."""
    effect = effects.stage_effects(shown, EXACT, "examples")["base, 4 examples"]
    assert (effect.stage, effect.since, effect.direction) == ("grpo", "base, 4 examples", "gain")
    assert effect.change.before.value == 0.5
    assert effect.change.delta == pytest.approx(0.2)
    tables = {metric.label: table for metric, table in heat_maps(shown)}
    assert "grpo since base, 4 examples" in tables[EXACT.label].columns
    assert all(len(row) == len(tables[EXACT.label].columns) for row in tables[EXACT.label].rows)
    said = verdict(shown)
    assert "untrained model reaches 50.0% where it is shown 4 examples: training gave" in said.text
