"""Flexible answers: the place that counts, the sentences around an answer that are forgiven, and
those that are not."""

import pytest

from schemas.evaluation import EvalPrompt
from schemas.examples import Check, Domain, Trace
from tasks.evaluation.reasoning_verdicts import judge
from tasks.verification.choices import as_constraint
from tasks.verification.flexible import flexible_answer

DOUBLE = "assert double(2) == 4"


def prompt(check: Check, answer: str = "", tests: str | None = None) -> EvalPrompt:
    choices = as_constraint(("Paris", "Berlin", "Rome")) if check == "choice" else ()
    fields = {"answer": answer, "check": check, "constraints": choices, "tests": tests}
    return EvalPrompt(id="p", prompt="?", domain=Domain.MATH, **fields)


NUMBERS = (
    "<reasoning>9 * 2 = 18</reasoning>\n<answer>18</answer>", "<answer>18", "18", "1.8e1", "36/2",
    "So <answer>3</answer>, no: <answer>18</answer> and 5 more words",
    "<answer>She makes 18 dollars on every single day.</answer>", "9 eggs at $2.\n#### 18",
    "#### 18 dollars for 9 eggs", "Thus \\boxed{18} dollars for 9 eggs.", "Answer: **18**",
    "The answer is 18, because 9 * 2 = 18 and 16 - 7 = 9.",
    "The answer is 17. Wait: the final answer is $18.00.",
    "The answer is not 17 but 18.",
    "She has 16 - 3 - 4 = 9 eggs, so she makes 9 * 2 = $18 per day.",
)  # fmt: skip
OTHERS = (
    "", "eighteen", "18 or 19", "18 eggs in 2024", "The answer is 17, not 18", "\\boxed{17} 18",
    "#### 17\nThe answer is 18", "<answer>17</answer> 18",
    "<reasoning>18</reasoning>\n<answer>17</answer>",
)  # fmt: skip


def test_a_number_is_found_wherever_it_stands_and_no_other_number_is_judged() -> None:
    found = [judge(prompt("numeric", "18"), completion) for completion in (*NUMBERS, *OTHERS)]
    assert [one.flexible for one in found] == [True] * len(NUMBERS) + [False] * len(OTHERS)
    assert not any(one.exact for one in found[len(NUMBERS) :])


WRITTEN = {
    "3/4": ("\\boxed{\\frac{3}{4}}", "The answer is $\\frac{3}{4}$ of it.", "So ¾ of all."),
    "-3/4": ("\\boxed{-\\dfrac{3}{4}}", "#### −3/4 of what there was before this"),
    "3/2": (
        "The answer is 1 1/2 cups, half as much again.",
        "So \\(1\\frac{1}{2}\\).",
        "Say 1½ cups.",
    ),
    "1234": ("\\boxed{1{,}234}", "The answer is $1{,}234$ in all."),
    "0.18": ("The probability of it is therefore 18%.", "Hence it is 18\\% of all of them."),
    "1500000": (
        "So there are 1.5 million people in it.",
        "The answer is $1.5 million in all of it",
    ),
    "-5": ("The answer is –5 since he owes them now.", "#### −5 apples as he owes all of them"),
    "24": ("It is **12** 24 times over, or **24** in the end",),
    "12": ("The answer is:\n12", "The answer is: \n\n$$12$$", "From 2-12 it takes 10-12"),
}


def test_a_number_is_read_whole_and_with_its_sign_however_it_is_written() -> None:
    """A part of it, 3 of 3/4, is another number, and wrong where that is the reference."""
    read = [
        (judge(prompt("numeric", right), text), text)
        for right in WRITTEN
        for text in WRITTEN[right]
    ]
    assert [text for item, text in read if not item.flexible] == []
    parts = {
        "3": "\\boxed{\\frac{3}{4}}",
        "1": "So \\boxed{1{,}234}.",
        "5": "The answer is –5 as he owes it",
        "10": "The answer is 10^3.",
        "-3": "It must be 10^{-3} of it, then.",
        "2": "So it is 2**10 of them in the end",
        "16": "The answer is \\sqrt{16} of them",
        "7": "It is 7π, or about √7",
    }
    assert [
        one for one, text in parts.items() if judge(prompt("numeric", one), text).flexible
    ] == []
    root = "Hence the answer to all of this must be \\sqrt{16} in the end."
    assert judge(prompt("math", "4"), root).flexible
    code = "The answer is:\n```python\ndef double(x):\n    return 2 * x\n```"
    assert flexible_answer(prompt("tests", tests=DOUBLE), code) == code


def test_a_number_that_may_be_cut_off_is_none() -> None:
    for said in ("The answer is 18", "<answer>18", "9 * 2 = 18", "9 * 2 = 18."):
        found = [judge(prompt("numeric", "18"), said, truncated=cut) for cut in (False, True)]
        assert [one.flexible for one in found] == [True, False], said
    for said in ("The answer is 18 d", "<answer>18</answer>", "<answer>18</ans"):
        assert judge(prompt("numeric", "18"), said, truncated=True).flexible, said


def test_what_is_exact_is_flexible_and_knowledge_without_format_is_flexible_alone() -> None:
    exact = judge(prompt("numeric", "18"), Trace(reasoning="9 * 2", answer="18 dollars").render())
    known = judge(prompt("numeric", "18"), "It is 18.")
    assert (exact.format, exact.exact, exact.flexible) == (True, True, True)
    assert (known.format, known.exact, known.flexible) == (False, False, True)


LETTERS = (
    "B", "The answer is B because Paris is in France.", "The answer is Berlin.", "It must be **B**",
    "(A) is in France, (C) in Italy, so it is (B)", "Vitamin C. helps.\nB. Berlin",
    "A and then\nB\n", "It is B) Berlin, as A. is wrong.", "<answer>\\boxed{B}</answer>",
    "The answer is (A). No, the answer is (B).",
)  # fmt: skip
NO_LETTERS = (
    "Berlin or Rome", "I like A and B", "The answer is A.", "Because of vitamin B we know",
    "(B) no, (A)", "It is B) Rome", "<answer>B) Rome</answer>",
)  # fmt: skip


def test_a_letter_is_found_where_it_stands_by_itself() -> None:
    """Another choice, and letters in a sentence, are wrong."""
    found = [judge(prompt("choice", "B"), text).flexible for text in (*LETTERS, *NO_LETTERS)]
    assert found == [True] * len(LETTERS) + [False] * len(NO_LETTERS)


def test_each_check_finds_its_kind_of_answer_and_free_text_has_none() -> None:
    kinds = (
        (prompt("quantity", "50.7 atm"), "The pressure is therefore 50.7 atm."),
        (prompt("quantity", "50.7 atm"), "The answer is 5.137 MPa"),
        (prompt("exact", "Paris"), "I think of France.\nParis."),
        (prompt("exact", "Paris"), "The answer is Paris."),
        (prompt("math", "\\frac{1}{2}"), "Hence the probability of this must be 1/2 in the end."),
        (prompt("math", "\\sin(x)"), "So \\boxed{\\sin(x)}."),
        (prompt("tests", tests=DOUBLE), "So:\n```\ndef double(x):\n    return 2 * x\n```\nIt is."),
    )
    found = [judge(asked, completion) for asked, completion in kinds]
    assert [(item.flexible, item.exact) for item in found] == [(True, False)] * len(kinds)
    assert not judge(prompt("none", "a poem"), "a poem").flexible


def test_a_text_without_code_is_not_taken_to_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    untouched = "tasks.evaluation.reasoning_verdicts.agrees"
    monkeypatch.setattr(untouched, lambda *_: pytest.fail("it was"))
    assert not judge(prompt("tests", tests=DOUBLE), "I would double it.").flexible
