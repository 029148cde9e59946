"""Reasoning evaluation: worked metrics on hand-made items, refusals, and a run with the randomly
initialised tiny model."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from schemas.base import InputError
from schemas.evaluation import EvalItem, Opinion
from schemas.examples import Check, Domain, Example, Trace, prompt_id
from schemas.job import Progress
from tasks.contract.job import Job, read_jsonl, write_jsonl
from tasks.evaluation.evaluate import eval_prompts, read_baseline
from tasks.evaluation.reasoning_verdicts import count_markers, judge
from tasks.sampling.sampler import Completion
from tasks.sampling.slots import Request, SlotSampler
from tasks.stages import reasoning_eval, rebalance
from tasks.stages.reasoning_eval import Config, reasoning_metrics
from tasks.statistics.intervals import Interval, wilson
from tests.tasks.jobs import job_at

RIGHT = Trace(reasoning="First 2 + 2 = 4, so it is 4.", answer="4").render()
WRONG = Trace(reasoning="Five.", answer="5").render()
MALFORMED = "4"


def example(number, domain=Domain.MATH, check="exact", grounding=None) -> Example:
    prompt = f"Question {number}: 2 + 2?"
    about = {"grounding": grounding, "context": "Mia has 4 pens." if grounding else None}
    made = {"answer": "4", "reasoning": "2 + 2 = 4", "check": check, "source": "test"}
    return Example(id=prompt_id(prompt), prompt=prompt, domain=domain, **about, **made)


def items(*completions: str, domain=Domain.MATH, check: Check = "exact") -> list[EvalItem]:
    asked = [example(number, domain, check) for number in range(len(completions))]
    return [judge(one, text, tokens=10) for one, text in zip(asked, completions, strict=True)]


def job(
    tmp_path: Path, examples: list[Example], baseline=None, trained_on=(), **config: Any
) -> Job[Config]:
    prompts = tmp_path / "prompts"
    prompts.mkdir(exist_ok=True)
    write_jsonl(prompts / "heldout.jsonl", examples)
    write_jsonl(prompts / "prompts.jsonl", trained_on)
    sizes = {"batch_size": 8, "prompt_length": 48, "response_length": 8, "min_items": 1}
    settings = {"model": "gemma3-tiny", **sizes}
    inputs = {"prompts": prompts} | ({"baseline": baseline} if baseline else {})
    key = f"key{len(list(tmp_path.glob('out*')))}"
    return job_at(tmp_path, Config.parse(settings | config), inputs, key=key)


def test_rates_are_fractions_of_all_prompts_with_wilson_intervals() -> None:
    """Of 4: 2 right, 1 wrong but well formed, 1 right without its tags; 2 have markers."""
    metrics = reasoning_metrics(items(RIGHT, WRONG, MALFORMED, RIGHT))
    assert metrics["n"] == metrics["n_verifiable"] == 4
    expected = {"exact_answer": 0.5, "format_rate": 0.75, "marker_rate": 0.5}
    expected |= {"truncated_rate": 0, "mean_tokens": 10, "flexible_answer": 0.75}
    assert {name: metrics[name] for name in expected} == expected
    assert Interval(metrics["exact_answer_low"], metrics["exact_answer_high"]) == wilson(2, 4)
    assert metrics["flexible_answer_low"] == wilson(3, 4).low
    assert not [name for name in metrics if name.startswith("delta")], "there is no baseline"


def test_domains_are_measured_apart_and_absent_ones_are_absent() -> None:
    coding = items(WRONG, RIGHT, MALFORMED, domain=Domain.CODING)
    metrics = reasoning_metrics(items(RIGHT, RIGHT) + coding)
    assert list(metrics["domains"]) == ["math", "coding"]
    assert metrics["domains"]["math"]["exact_answer"] == 1
    assert metrics["domains"]["coding"]["exact_answer"] == pytest.approx(1 / 3)
    assert metrics["domains"]["coding"]["n"] == 3
    assert metrics["exact_answer"] == pytest.approx(3 / 5)


def test_suites_are_measured_apart_by_the_same_names() -> None:
    ours = items(RIGHT, RIGHT, WRONG)
    theirs = [item.model_copy(update={"suite": "gsm8k"}) for item in items(WRONG, MALFORMED)]
    metrics = reasoning_metrics(ours + theirs, [*ours, *theirs])
    assert list(metrics["suites"]) == ["heldout", "gsm8k"]
    alone = reasoning_metrics(ours, ours).items()
    known = {name: value for name, value in alone if name not in ("domains", "suites")}
    assert metrics["suites"]["heldout"] == known
    assert metrics["suites"]["gsm8k"]["exact_answer"] == 0
    assert metrics["suites"]["gsm8k"]["delta_exact_answer"] == 0


def test_prompts_unlike_all_that_was_trained_on_are_measured_apart(tmp_path: Path) -> None:
    asked = {
        "Mia has 3 red pens. How many?": True,
        "Zoë hat 12,5 red pens. How many?": False,
        "Zoë has 12,5 red pens. How many?": True,
        "Mia has 3 blue pens. How many?": False,
        "Mia has 3 red pens and 4. How many?": False,
    }
    told = {
        "answer": "4",
        "reasoning": "r",
        "check": "exact",
        "source": "test",
        "domain": Domain.MATH,
    }
    rows = [Example(id=prompt_id(one), prompt=one, **told) for one in asked]
    seen = [rows[0].model_copy(update={"prompt": "Ben has 44 red pens. How many?"})]
    prompts = eval_prompts(job(tmp_path, rows, trained_on=seen), grounded=False)
    assert {one.prompt: one.familiar for one in prompts} == asked
    answers = [RIGHT, RIGHT, WRONG, MALFORMED, RIGHT]
    judged = [judge(one, text, tokens=9) for one, text in zip(prompts, answers, strict=True)]
    metrics = reasoning_metrics(judged, judged)
    assert (metrics["n_novel"], metrics["exact_answer"]) == (3, 0.6)
    assert (metrics["novel_exact_answer"], metrics["delta_novel_exact_answer"]) == (2 / 3, 0)
    assert reasoning_metrics(items(RIGHT))["novel_exact_answer"] is None, "nothing is known of it"


def test_the_length_of_reasoning_is_a_mean_over_traces_alone() -> None:
    lengths = [10, None, 20]
    answers = [
        item.model_copy(update={"reasoning_tokens": length})
        for item, length in zip(items(RIGHT, MALFORMED, WRONG), lengths, strict=True)
    ]
    assert reasoning_metrics(answers)["mean_reasoning_tokens"] == 15
    assert reasoning_metrics(items(MALFORMED))["mean_reasoning_tokens"] is None


def test_ratings_of_free_text_have_a_mean_and_a_paired_difference() -> None:
    def rated(*ratings: float | None) -> list[EvalItem]:
        written = items(*[RIGHT] * len(ratings), check="none")
        return [
            item.model_copy(update={"opinion": Opinion(rating=rating)})
            for item, rating in zip(written, ratings, strict=True)
        ]

    metrics = reasoning_metrics(rated(0.9, 0.5, 0.4, None), rated(0.5, 0.5, None, 1.0))
    assert metrics["rating"] == pytest.approx(0.6)
    assert metrics["delta_rating"] == pytest.approx(0.2)
    assert metrics["delta_rating_low"] <= 0.2 <= metrics["delta_rating_high"]
    assert "rating" not in reasoning_metrics(items(RIGHT))
    alike = reasoning_metrics(rated(*[1.0] * 8))  # eight good texts do not prove that all are
    assert 0.5 < alike["rating_low"] < 1 == alike["rating"] == alike["rating_high"]


def test_free_text_counts_for_format_and_not_for_exact_answers() -> None:
    free = items(RIGHT, MALFORMED, domain=Domain.CREATIVE, check="none")
    metrics = reasoning_metrics(items(RIGHT, WRONG) + free)
    expected = {"n": 4, "n_verifiable": 2, "exact_answer": 0.5, "format_rate": 0.75}
    assert {name: metrics[name] for name in expected} == expected
    nothing = {"n_verifiable": 0, "exact_answer": None, "exact_answer_low": None}
    creative = metrics["domains"]["creative"]
    assert {name: creative[name] for name in nothing} == nothing
    assert creative["format_rate"] == 0.5
    same = reasoning_metrics(free, free)
    assert (same["delta_exact_answer"], same["delta_format_rate"]) == (None, 0)


def test_differences_are_paired_with_the_baseline_prompt_by_prompt() -> None:
    """12 prompts: 6 won, 1 lost, 5 unchanged: delta 5/12; exact McNemar p = 2 (1 + 7) / 2^7 =
    0.125."""
    before = items(*[WRONG] * 6, RIGHT, *[RIGHT] * 5)
    after = items(*[RIGHT] * 6, WRONG, *[RIGHT] * 5)
    metrics = reasoning_metrics(after, before, seed=3)
    assert metrics["delta_exact_answer"] == pytest.approx(5 / 12)
    assert metrics["delta_exact_answer_low"] < 5 / 12 < metrics["delta_exact_answer_high"]
    assert metrics["delta_exact_answer_p"] == pytest.approx(0.125)
    assert metrics["delta_format_rate"] == 0
    assert metrics["domains"]["math"]["delta_exact_answer"] == metrics["delta_exact_answer"]
    assert metrics == reasoning_metrics(after, before, seed=3)


def test_markers_are_whole_words_before_the_answer() -> None:
    counted = {
        "<reasoning>First add, then halve. So x = 3.</reasoning>\n<answer>3</answer>": 4,
        "<reasoning>Three.</reasoning>\n<answer>because so = then</answer>": 0,
        "STEP 1: two\nStep 2: three": 2,
        "sofa, thence, stepped, firsthand": 0,
        "": 0,
    }
    assert {text: count_markers(text, "trace") for text in counted} == counted
    quoted = "<think>So be it.</think>\n<proof>because, hence</proof>\n<answer>thus</answer>"
    assert count_markers(quoted, "xml") == 1


def test_too_few_held_out_prompts_are_refused_with_their_number(tmp_path: Path) -> None:
    """By a plan, too, before anything is trained."""
    refused = job(tmp_path, [example(0), example(1, grounding="answerable")], min_items=2)
    quotas = {
        "quotas": {"math": {"heldout": 1}},
        "grounding_quotas": {"answerable": {"heldout": 1}},
    }
    upstream, model = {"prompts": rebalance.Config.parse(quotas)}, cast(Any, None)
    said = (
        r"1 prompts to ask \(1 ungrounded ones of the held-out split\), fewer than min_items ="
        r" 2.*lower min_items"
    )
    with pytest.raises(InputError, match=said):
        reasoning_eval.KIND.run(refused)
    with pytest.raises(InputError, match=said):
        reasoning_eval.KIND.programs(refused.config, model, upstream)


def test_a_baseline_over_other_prompts_is_refused(tmp_path: Path) -> None:
    baseline = tmp_path / "baseline"
    baseline.mkdir()
    write_jsonl(baseline / "items.jsonl", items(RIGHT, RIGHT))
    with pytest.raises(
        InputError,
        match=r"answered 2 prompts and this one asks 3; 2 are the same.*one rebalance stage",
    ):
        reasoning_eval.KIND.run(
            job(tmp_path, [example(number) for number in range(3)], baseline=baseline)
        )
    # the same number in a suite is not the same prompt
    other = [one.model_copy(update={"prompt": "Another?"}) for one in items(RIGHT, RIGHT)]
    with pytest.raises(InputError, match="answered 2 prompts and this one asks 2; 0 are the same"):
        read_baseline({"baseline": baseline}, other)
    assert read_baseline({"baseline": baseline}, items(RIGHT, RIGHT)) == items(RIGHT, RIGHT)


def test_prompts_that_do_not_fit_are_refused_with_the_length_they_need(tmp_path: Path) -> None:
    long = example(1).model_copy(update={"prompt": "word " * 60, "id": "longest"})
    with pytest.raises(
        InputError,
        match=r"1 of 2 prompts have more than prompt_length = 48 tokens.*id longest.*at least \d+",
    ):
        reasoning_eval.KIND.run(job(tmp_path, [example(0), long]))


@pytest.mark.usefixtures("one_layer")
def test_a_run_answers_every_ungrounded_held_out_prompt_in_order(tmp_path: Path) -> None:
    """12 rows in two batches, the last one filled up, and a second run paired with the first: no
    difference; measured by a function of its own."""
    rows = [example(number) for number in range(12)]
    first = job(tmp_path, [rows[0], example(99, grounding="answerable"), *rows[1:]])
    reported: list[Progress] = []
    metrics = reasoning_eval.KIND.run(
        Job(first.config, first.inputs, first.out, first.work, report=reported.append)
    )
    written = read_jsonl(first.out / "items.jsonl", EvalItem)
    assert [item.id for item in written] == [row.id for row in rows]
    assert (metrics["n"], metrics["exact_answer"], metrics["format_rate"]) == (12, 0, 0)
    assert all(0 < item.tokens <= 8 and item.truncated == (item.tokens == 8) for item in written)
    told = [(progress.done, progress.total, progress.unit) for progress in reported]
    assert told == [(8, 12, "prompts"), (12, 12, "prompts")]
    assert json.loads(json.dumps(metrics, allow_nan=False)) == reasoning_metrics(written)

    source = "def length(completions, id, **_): return [len(one) for one in completions]"
    function = {"name": "function", "path": "mine.py:length", "source": source}
    second = job(tmp_path, rows, baseline=first.out, metrics=[function])
    compared = reasoning_eval.KIND.run(second)
    again = read_jsonl(second.out / "items.jsonl", EvalItem)
    assert [item.model_copy(update={"measured": {}}) for item in again] == written
    assert compared["functions"]["length"]["n"] == compared["domains"]["math"]["n"] == 12
    assert compared["functions"]["length"]["mean"] == sum(len(one.completion) for one in again) / 12
    assert (compared["delta_exact_answer"], compared["delta_exact_answer_p"]) == (0, 1)


def test_worked_examples_stand_before_each_prompt_and_are_told_of(tmp_path, monkeypatch):
    """Two training rows before each of three prompts; every answer is right."""
    asked: list[Request] = []

    def generate(_: SlotSampler, requests: list[Request], **__: Any) -> list[Completion]:
        asked.extend(requests)
        return [Completion([1, 2], RIGHT, True, np.zeros(0, np.float32)) for _ in requests]

    monkeypatch.setattr(SlotSampler, "generate", generate)
    run = job(tmp_path, [example(number) for number in range(3)], shots=2, prompt_length=300)
    train = [example(number) for number in range(100, 105)]
    write_jsonl(run.inputs["prompts"] / "train.jsonl", train)
    metrics = reasoning_eval.KIND.run(run)
    assert (metrics["shots"], metrics["n"], metrics["exact_answer"]) == (2, 3, 1)
    assert [one.prompt for one in asked] == [f"Question {number}: 2 + 2?" for number in range(3)]
    known = {(one.prompt, one.response()) for one in train}
    assert all(len(set(one.turns)) == 2 and set(one.turns) <= known for one in asked)
    again = job(tmp_path, [example(number) for number in range(3)])
    metrics = reasoning_eval.KIND.run(again)
    assert "shots" not in metrics
    assert {one.turns for one in asked[3:]} == {()}


def test_a_suite_is_asked_without_a_held_out_split_and_samples_are_kept(tmp_path: Path) -> None:
    """Metrics are those that items.jsonl and samples.jsonl give again."""
    rows = [{"question": f"{number} + 1?", "answer": f"#### {number + 1}"} for number in range(6)]
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    suites = [{"name": "gsm8k", "path": "test.jsonl", "first": 5}]
    whole = job(tmp_path, [], suites=suites, sampling={"samples": 2}, response_length=8)
    metrics = reasoning_eval.KIND.run(Job(whole.config, {}, whole.out, whole.work, tmp_path))
    greedy = read_jsonl(whole.out / "items.jsonl", EvalItem)
    sampled = read_jsonl(whole.out / "samples.jsonl", EvalItem)
    names = [f"gsm8k/{number}" for number in range(5)]
    assert [item.id for item in greedy] == names
    asked = [(item.sample, item.id) for item in sampled]
    assert asked == [(sample, name) for sample in range(2) for name in names]
    assert metrics["suites"]["gsm8k"]["n"] == metrics["pass_at_k"]["2"]["n"] == 5
    assert metrics["noise"]["exact_answer"]["seeds"] == 2
    again = reasoning_metrics(greedy, samples=sampled)
    assert json.loads(json.dumps(metrics, allow_nan=False)) == again
