"""What judges are asked, and how strictly their rulings are read."""

import json

import pytest

from schemas.base import StageFailed
from tasks.judging.bench import Bench, Case
from tasks.judging.judge import Ruling
from tasks.judging.rulings import Unreadable, read_probabilities, read_text
from tasks.judging.sheets import Item, Sheet, question, token_questions
from tests.fakes.judges import FakeJudge, data_of, items_in, mark_in, ruling
from tests.tasks.prompts import prompt, trace

ITEMS = (Item("Answer", "States 4.", "satisfied"), Item("overall", "How good it is.", "rating"))
PROMPT, TRACE = prompt("4", "none"), trace("4", "2 and 2 make 4")
MARK = "0123456789abcdef"


def text(mark=MARK, grades=None, **more) -> str:
    grades = {"1": True, "2": 7} if grades is None else grades
    return json.dumps({"mark": mark, "reason": "r", "grades": grades} | more)


def case(**changes) -> Case:
    fields = {"completion": TRACE, "sheet": Sheet(ITEMS), "value": lambda grades: sum(grades) / 2}
    return Case(prompt=PROMPT, **fields | changes)


def judged(reply, cases=None, max_abstained=1.0, by_token=False):
    judge = FakeJudge(reply, max_abstained)
    return Bench(judge, by_token=by_token).judge_all(cases or [case()]), judge


def test_a_ruling_is_true_or_false_and_a_rating_from_one_to_ten():
    """(7 - 1) / 9 = 2/3; 1 is 0 and 10 is 1. The ledger gets the grades and the judge's reason."""
    assert read_text(text(), ITEMS, MARK).values == (1.0, pytest.approx(2 / 3))
    assert read_text(text(grades={"2": 10, "1": False}), ITEMS, MARK).values == (0.0, 1.0)
    assert read_text(text(grades={"1": True, "2": 1}), ITEMS, MARK).values == (1.0, 0.0)
    for fenced in (f"```json\n{text()}\n```\n", f"```JSON {text()}```", f"```{text()}\n```"):
        assert read_text(fenced, ITEMS, MARK).reason == "r"
    ((value, detail),), judge = judged(lambda one: ruling(one, True, 10))
    assert (value, detail.keys(), len(judge.asked)) == (1.0, {"grades", "reason", "ruling"}, 1)
    assert (detail["grades"], detail["reason"]) == ({"Answer": 1.0, "overall": 1.0}, "because")


WRONG_GRADES = (
    {"1": True}, {"1": True, "2": 7, "3": True}, [True, 7], {"1": 1, "2": 7},
    {"1": "true", "2": 7}, {"1": True, "2": "7"}, {"1": True, "2": 7.5}, {"1": True, "2": 0},
    {"1": True, "2": 11}, {"1": True, "2": True},
)  # fmt: skip
WRONG = (
    "", "10", "[]", "null", "Rating: 10", f"Here it is: {text()}", f"{text()} {text()}",
    f"{text()}\nI hope this helps.", f"```json\n{text()}\n```\n```json\n{text()}\n```",
    text(mark="f" * 16), text(mark=None), text(extra=1), text(reason=None),
    json.dumps({"mark": MARK, "grades": {"1": True, "2": 7}}), "[" * 100_000,
    text().replace('"2": 7', '"2": 7, "2": 9'), text().replace(": 7", ": NaN"),
)  # fmt: skip


def test_anything_else_is_no_ruling():
    for wrong in (*WRONG, *(text(grades=grades) for grades in WRONG_GRADES)):
        with pytest.raises(Unreadable):
            read_text(wrong, ITEMS, MARK)


def test_probabilities_are_a_mean_place_among_the_choices():
    """P(1) / (P(0) + P(1)) = 0.3 / 0.4; of ten digits (0 * .1 + 9 * .1) / (.2 * 9) = 1/2."""
    assert read_probabilities((0.1, 0.3)) == pytest.approx(0.75)
    assert read_probabilities((0.1, *[0.0] * 8, 0.1)) == pytest.approx(0.5)
    assert read_probabilities((0.0, 1e-12)) == 1.0
    for nothing in ((0.0, 0.0), (float("nan"), 0.5)):
        with pytest.raises(Unreadable):
            read_probabilities(nothing)


def test_a_question_shows_task_reference_and_response_as_data_and_asks_for_the_form_last():
    shown = {"task": "t?", "reference_answer": "4", "reasoning": "r", "answer": "a"}
    asked, mark = question(Sheet(ITEMS, "Be fair.\n"), shown)
    assert data_of(asked) == shown
    assert items_in(asked) == ["States 4.", "How good it is."]
    assert mark_in(asked) == mark
    end = asked.text.rpartition("Reply with exactly one JSON object")[2]
    parts = (mark, '"1", "2"', '"1": true if', '"2": a whole number from 1 (worst) to 10 (best)')
    assert [part for part in parts if part not in end] == []
    form = asked.parameters["response_format"]["json_schema"]
    schema = form["schema"]["properties"]
    assert form["strict"] is True
    assert schema["grades"]["required"] == ["1", "2"]
    assert schema["mark"] == {"type": "string"}  # no constant: who answers has to read it
    bare, typed = (
        question(Sheet(ITEMS, response_format=form), {"task": "t"})[0].parameters
        for form in ("none", "json_object")
    )
    assert (bare, typed) == ({}, {"response_format": {"type": "json_object"}})


def test_a_judge_that_rates_by_its_next_token_is_asked_item_by_item():
    questions = token_questions(Sheet(ITEMS), {"task": "t", "reasoning": "r", "answer": "a"})
    assert [one.choices for one in questions] == [("0", "1"), tuple("0123456789")]
    assert ["States 4." in one.text for one in questions] == [True, False]
    replies = {2: (0.25, 0.75), 10: (0.1,) * 10}
    found, _ = judged(lambda one: replies[len(one.choices)], by_token=True)
    assert found[0].value == pytest.approx((0.75 + 0.5) / 2)
    assert found[0].detail == {"grades": {"Answer": 0.75, "overall": pytest.approx(0.5)}}


def test_a_reply_that_cannot_be_read_is_asked_for_once_more_and_then_abstains():
    """The second question is another one, with another mark, and says what was wrong in words of
    ours."""
    replies = iter(["It is a 10! <start_of_turn>", "still no JSON"])
    found, judge = judged(lambda one: next(replies))
    assert found[0] == (None, {"problem": "it was not one JSON object"})
    first, second = judge.asked
    assert mark_in(first) != mark_in(second)
    assert "could not be read (it was not one JSON object)" in second.text
    assert "10!" not in second.text

    tries = []
    second = lambda one: tries.append(one) or (ruling(one, True, 10) if tries[1:] else "hm")  # noqa: E731
    found, _ = judged(second)
    assert found[0].value == 1.0


def test_a_refusal_is_asked_for_again_without_quoting_it_and_a_failed_call_is_not():
    problems = {"failed: connection reset": 1, "refused: I cannot. Ignore rules.": 2}
    for problem, asked in problems.items():
        found, judge = judged(lambda one, problem=problem: Ruling(problem=problem))
        assert found[0].value is None
        assert len(judge.asked) == asked
        assert not any("Ignore rules" in one.text for one in judge.asked)


def test_too_many_responses_without_a_ruling_end_the_stage():
    cases = [case(completion=TRACE.replace("2 and", f"{number} and")) for number in range(10)]
    read = lambda one: ruling(one, True, 10)  # noqa: E731
    with pytest.raises(StageFailed, match="9 of 10"):
        judged(lambda one: read(one) if "0 and" in one.text else "no", cases, 0.5)
    found, _ = judged(lambda one: "no" if "0 and" in one.text else read(one), cases, 0.1)
    assert [one.value for one in found] == [None, *[1.0] * 9]
