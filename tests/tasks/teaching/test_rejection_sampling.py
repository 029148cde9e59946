"""Rejection sampling: what k samples of a prompt become (`tasks.teaching.rejection_sampling`)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from infra.store.answers import Answers
from infra.store.store import open_store
from schemas.base import InputError
from schemas.examples import GROUNDED_REFUSAL, Domain, Example, PreferencePair, Prompt
from tasks.chat.reply import Reply
from tasks.data.dropped import Dropped
from tasks.teaching.lesson import Cell, Lesson
from tasks.teaching.rejection_sampling import Answering, difficulty_of, prompts_to_ask, rows
from tasks.verification.choices import as_constraint
from tests.tasks import prompts
from tests.tasks.prompts import trace

LENDER = {"name": "procedural", "rows": {"math": 10, "coding": 10}, "grounded": {}}


class Config(Answering):
    name: Literal["any"] = "any"


@pytest.fixture
def lesson(tmp_path: Path) -> Lesson:
    return Lesson(seed=0, data=None, answers=Answers(open_store(tmp_path / "store")))


def config(**changes: Any) -> Config:
    return Config.parse({"prompts": [LENDER], "samples": 4, **changes})


def prompt(**changes: Any) -> Prompt:
    return prompts.prompt(**{"answer": "5", "prompt": "What is 2+3?", **changes})


def of_kind(found: Sequence[Any], kind: type) -> list[Any]:
    return [row for row in found if type(row) is kind]


def test_prompts_of_a_format_that_no_teacher_is_asked_for_are_refused():
    source = {"path": "a.jsonl", "domain": "math", "prompt": "q", "channels": "xml"}
    lenders = (
        {"name": "dataset", "sources": [{**source, "channels": "trace"}, source]},
        {"name": "procedural", "channels": "xml"},
    )
    for lender in lenders:
        with pytest.raises(InputError, match=r"prompts\.1: channels = 'xml', and a teacher that"):
            config(prompts=[LENDER, lender])


def test_the_first_verified_sample_is_the_example_and_the_pass_rate_is_its_difficulty(lesson):
    """2 of 4 verify: pass rate 0.5, difficulty 1 + 2 * 5 // 4 = 3. The reference stays the answer,
    however the sample wrote it."""
    texts = (trace("6"), trace("$5", "so five"), trace("5", "also"), "five")
    found = list(rows(config(pairs_per_prompt=9), [(prompt(), [*map(Reply, texts)])], lesson))
    (example,) = of_kind(found, Example)
    assert (example.reasoning, example.answer) == ("so five", "5")
    assert (example.pass_rate, example.difficulty) == (0.5, 3)
    outcomes = {"samples.verified": 2, "samples.wrong": 1, "samples.malformed": 1}
    assert dict(lesson.tally) == outcomes


def test_the_letter_stays_the_answer_of_multiple_choice_however_a_sample_wrote_it(lesson):
    asked = prompt(answer="B", check="choice", constraints=as_constraint(("four", "five")))
    found = list(rows(config(), [(asked, [Reply(trace("(b) five"))] * 4)], lesson))
    (example,) = of_kind(found, Example)
    assert (example.answer, example.constraints) == ("B", asked.constraints)


def test_pairs_say_which_sample_failed_which_check(lesson: Lesson) -> None:
    refused = Reply("no", problem="refused")
    good = [Reply(trace("5")), Reply(trace("5", "again"))]
    samples = [Reply(trace("6")), good[0], refused, good[1]]
    found = list(rows(config(pairs_per_prompt=2), [(prompt(), samples)], lesson))
    pairs = of_kind(found, PreferencePair)
    assert [(one.chosen_sample, one.rejected_sample) for one in pairs] == [(1, 0), (3, 2)]
    causes = [(one.rejected_because, one.failed_check) for one in pairs]
    assert causes == [("wrong", "numeric"), ("refused", None)]
    assert "6" in pairs[0].detail


def test_words_of_its_own_that_abstain_are_right_where_the_context_has_no_answer(lesson):
    """The example has the one wording, and no pair rejects what a grounded evaluation accepts."""
    about = {"grounding": "unanswerable", "context": "Rain.", "answer": GROUNDED_REFUSAL}
    said = [Reply(trace(one)) for one in ("The context does not say.", "Tuesday")]
    found = list(rows(config(), [(prompt(check="exact", **about), said)], lesson))
    example, pair = found
    assert (example.answer, example.pass_rate) == (GROUNDED_REFUSAL, 0.5)
    assert (pair.chosen_sample, pair.rejected_sample) == (0, 1)
    assert "is given where the context holds no answer" in pair.detail


def test_what_was_cut_off_stays_open_and_what_has_no_text_is_in_no_pair(lesson: Lesson) -> None:
    """One ran out of tokens in its thoughts, the next in its answer, 50 perhaps: closed, that would
    be right. Of the third a filter left nothing."""
    cut = [Reply(text, "2 and 3", problem="truncated") for text in ("", "<answer>5")]
    samples = [*cut, Reply("", problem="refused"), Reply(trace("5"))]
    found = list(rows(config(pairs_per_prompt=1), [(prompt(), samples)], lesson))
    (pair,) = of_kind(found, PreferencePair)
    assert pair.rejected == "<reasoning>2 and 3</reasoning>\n<answer>5"
    assert (pair.rejected_because, pair.rejected_sample) == ("truncated", 1)


def test_a_prompt_that_no_sample_solved_stays_a_prompt_and_is_traceable(lesson: Lesson) -> None:
    samples = [Reply(trace("6")), Reply(trace("7"), problem="truncated")]
    samples += [Reply("", problem="failed", detail="HTTP 500"), Reply("", problem="unasked")]
    asked = prompt(family="f", source="s", line=3)
    dropped, unsolved = rows(config(), [(asked, samples)], lesson)
    assert (type(unsolved), unsolved.pass_rate, unsolved.difficulty) == (Prompt, 0.0, 5)
    assert (dropped.cause, dropped.id) == ("unsolved", unsolved.id)
    assert (dropped.source, dropped.file, dropped.line) == ("f", "s", 3)
    for outcome in ("1 wrong", "1 truncated", "1 failed", "1 unasked", "6"):
        assert outcome in dropped.detail


def test_a_prompt_that_was_never_answered_is_no_unsolved_prompt(lesson):
    for problems, cause in ((["unasked"] * 4, "unasked"), (["unasked", "failed"], "failed")):
        samples = [Reply("", problem=problem) for problem in problems]
        (dropped,) = rows(config(), [(prompt(), samples)], lesson)
        assert (type(dropped), dropped.cause) == (Dropped, cause)


def test_free_text_needs_a_trace_only_and_reasoning_that_came_apart_is_one(lesson: Lesson) -> None:
    free = prompt(check="none", answer="", domain=Domain.CREATIVE)
    (example,) = rows(config(), [(free, [Reply("prose"), Reply(trace("a poem"))])], lesson)
    assert (example.answer, example.pass_rate) == ("a poem", None)
    assert example.difficulty == free.difficulty
    for text in ("5", "<answer>5</answer>"):
        apart = Reply(text, reasoning="2 and 3 is 5")
        (example,) = rows(config(samples=1), [(prompt(), [apart])], lesson)
        assert example.reasoning == "2 and 3 is 5"


def test_a_response_in_another_language_is_rejected(lesson: Lesson) -> None:
    german = trace("5", "Zwei und drei sind zusammen fünf, denn wir zählen von zwei drei weiter.")
    found = list(rows(config(languages=["en"], samples=1), [(prompt(), [Reply(german)])], lesson))
    assert lesson.tally["samples.language"] == 1
    assert not of_kind(found, Example)


def test_difficulty_of_pass_rates() -> None:
    known = {(4, 4): 1, (3, 4): 2, (2, 4): 3, (1, 4): 4, (0, 4): 5}
    known |= {(10, 10): 1, (8, 10): 2, (1, 64): 5}
    assert {rate: difficulty_of(*rate) for rate in known} == known


def test_first_asks_so_many_of_each_domain_and_a_top_up_asks_others(lesson: Lesson) -> None:
    first = config(first={"math": 3})
    asked = of_kind(list(prompts_to_ask(first, lesson)), Prompt)
    assert [row.domain for row in asked] == [Domain.MATH] * 3
    known = frozenset(row.id for row in asked)
    more = replace(lesson, wanted={Cell(Domain.MATH): 2}, known=known)
    again = of_kind(list(prompts_to_ask(first, more)), Prompt)
    assert len(again) == 2
    assert not {row.id for row in again} & {row.id for row in asked}


def test_teachers_that_lend_no_prompts_and_equal_samples_are_refused() -> None:
    with pytest.raises(InputError, match=r"'gemma' has no prompts\. Valid: dataset, procedural"):
        Config.parse({"prompts": [{"name": "gemma", "model": "gemma3-tiny"}]})
    with pytest.raises(ValueError, match="raise the temperature"):
        Config.parse({"prompts": [LENDER], "samples": 2, "temperature": 0})
