"""Check `choice`: the usual forms of an answer to a multiple-choice question, and what chooses
nothing."""

import pytest

from schemas.examples import Prompt
from tasks.checks.choice import agrees
from tasks.data.conversion import NotAnExample, example_of, prompt_of
from tasks.data.sources import PromptMapping, Source
from tasks.verification.choices import as_constraint, asked, chosen
from tasks.verification.verify import verify
from tests.effort import takes_at_most
from tests.tasks.prompts import prompt

CITIES = ("Paris", "Berlin", "Rome", "Paris, France")


def question(answer: str = "B", choices: tuple[str, ...] = CITIES) -> Prompt:
    return prompt(answer, "choice", constraints=as_constraint(choices))


FORMS = (
    "B", "b", "(B)", "B.", "[b]", "**B**", "$\\boxed{B}$", "B) Berlin", "B: berlin.",
    "**B.** Berlin", "B - Berlin", "(b) because of its wall", "B. And I am sure",
    "Berlin", " BERLIN. ", "Option B", "（Ｂ）", "【B】",
    "Berlin (B)", "B (Berlin).", "B is the correct answer.", "B, A and C are wrong",
    "B) Berlin. A) Paris is wrong.", "B. Berlin, and a wall", "B, not C", "B. A is in France.",
    "Answer: (B)", "The correct answer is B.", "the answer is **Berlin**",
)  # fmt: skip


def test_the_letter_in_any_usual_form_and_the_whole_text_are_right() -> None:
    assert [answer for answer in FORMS if not agrees(question(), answer).ok] == []


OTHERS = {"A": "A", "Rome": "C", "Paris, France": "D"}
NONE = (
    "B) Rome", "A, B", "A or B", "(B) or (C)", "B. and C.", "(b)/(c)", "B), or A", "E",
    "B, C and D", "A, B or C", "B, and C", "B) Berlin and C) Rome", "B) Berlin, C) Rome",
    "B. Berlin. C. Rome", "B. Berlin. C. Rome. D. Paris, France", "B. Berlin or C. Rome",
    "b) berlin and c) rome", "B is wrong", "Rome (B)", "B (Rome)", "B (C)", "not B",
    "Better not", "Berlin or Rome", "A) Paris, France", "**",
)  # fmt: skip


def test_another_choice_two_choices_and_none_are_wrong() -> None:
    for answer, chooses in {**OTHERS, **dict.fromkeys(NONE, ""), "the answer is": ""}.items():
        assert chosen(answer, CITIES) == chooses
        outcome = agrees(question(), answer)
        assert not outcome.ok
        assert f"chooses {chooses or 'nothing'}, not B" in outcome.detail


def test_a_second_choice_is_seen_behind_a_text_that_folding_makes_longer_or_shorter() -> None:
    for text in ("Cafe\u0301", "Caf\u00e9", "\u00df\u00df", "\u2026\u2026", "e\u0301" * 9):
        assert chosen(f"A. {text}, as I know", (text, "Rome")) == "A"
        for second in (" and B. Rome", ", B)", "; B. Rome"):
            assert chosen(f"A. {text}{second}", (text, "Rome")) == "", (text, second)


def test_endless_choices_are_read_to_their_end() -> None:
    endless = "B. Berlin. " + "C. Rome. " * 1100
    assert takes_at_most(1, lambda: chosen(endless, CITIES))
    assert chosen(endless, CITIES) == ""


def test_a_letter_counts_before_a_text_that_is_a_letter() -> None:
    blood = ("A", "AB", "B", "0")
    assert [chosen(one, blood) for one in ("B", "AB", "C")] == ["B", "B", "C"]
    assert chosen("Vitamin (A)", ("Vitamin (C)", "Vitamin (A)")) == "B"
    # choices of one text are all chosen by it, and signs alone are texts
    assert chosen("4", ("3", "4", "4")) == "BC"
    assert [chosen(one, ("{}", "[]")) for one in ("[]", "{}")] == ["B", "A"]


def test_the_prompt_lists_the_choices_with_their_letters() -> None:
    assert asked("Which?", ("x", "y")).startswith("Which?\n\nA. x\nB. y\n\n")


MAPPING = {"domain": "general", "prompt": "q", "choices": "options", "answer": "a"}
MAPPING["check"] = "choice"


def test_a_source_with_choices_teaches_the_letter() -> None:
    table = {**MAPPING, "path": "a.jsonl", "reasoning": "why"}
    row = {"q": "The wall?", "options": ["Paris", "Berlin"], "why": "It fell there.", "a": "Berlin"}
    example = example_of(Source.parse(table), row, "a.jsonl", 1, "a")
    assert example.prompt == asked("The wall?", ("Paris", "Berlin"))
    assert example.response() == "<reasoning>It fell there.</reasoning>\n<answer>B</answer>"
    assert verify(example, example.response()).exact


def test_a_row_whose_choices_or_answer_cannot_be_read_makes_no_example():
    for row, detail in (
        ({"options": "Paris, Berlin", "a": "Berlin"}, "is no list of 2 to 26 texts"),
        ({"options": ["Paris", ""], "a": 0}, "is no list of 2 to 26 texts"),
        ({"options": ["x"] * 27, "a": 0}, "is no list of 2 to 26 texts"),
        ({"options": ["Paris", "Berlin"], "a": "Rome"}, "answer 'Rome' is no letter of AB"),
        ({"options": ["4", "4"], "a": "4"}, "not just one choice"),
        ({"options": ["Paris", "Berlin"], "a": True}, "answer 'true'"),
        ({"options": ["Paris", "Berlin"], "a": -1}, "no place from 0 to 1"),
    ):
        with pytest.raises(NotAnExample, match=detail) as error:
            prompt_of(PromptMapping.parse(MAPPING), {"q": "The wall?", **row}, "a.jsonl", 1, "a")
        assert error.value.cause == "bad_choices"
