"""The numeric-answer reward: the right number, and numbers close by."""

from typing import Any

import pytest

from tasks.rewards import numeric_answer
from tests.tasks.prompts import paid, prompt, trace


def worth(answer: str, reference: str = "100", *, check: str = "numeric", **config: Any) -> float:
    given = trace(answer) if answer else ""
    return paid(numeric_answer, given, asked=prompt(reference, check), **config)[0]


BANDS = {1.0: ["100", "$100.00"], 1 / 6: ["110", "90"], 1 / 12: ["110.01", "80", "120 apples"]}
WRONG = ["120.5", "-100", "0", "100 or 110", "about a hundred", "1e999", ""]


def test_the_default_bands():
    for expected, answers in {**BANDS, 0.0: WRONG}.items():
        assert [worth(answer) for answer in answers] == pytest.approx([expected] * len(answers))


def test_what_bands_and_a_wrong_answer_are_worth():
    found = [worth(answer, wrong=-0.5) for answer in ("100", "105", "7", "", "many")]
    assert found == [1.0, 1 / 6, -0.5, -0.5, -0.5]
    assert [worth(answer, near=[]) for answer in ("100", "101", "")] == [1.0, 0.0, 0.0]
    assert worth("-95", "-100") == pytest.approx(1 / 6)  # bands follow the sign
    assert worth("48%", "0.5") == worth("0.48", "0.5") == pytest.approx(1 / 6)
    assert worth("95", "-100") == worth("0.01", "0") == 0.0  # and there are none around zero


def test_a_calculation_of_the_question_is_not_close_to_its_own_result():
    asked = prompt("12", prompt="What is 144/12?")
    assert paid(numeric_answer, trace("144/12"), trace("12.5"), asked=asked) == [0.0, 1 / 6]


def test_what_is_no_number_abstains():
    other = (("100", "exact"), ("5 kJ", "quantity"), (r"\sqrt{2}", "math"), ("", "none"))
    assert [worth("100", reference, check=check) for reference, check in other] == [None] * 4


def test_the_right_number_is_what_the_check_says():
    assert [worth(answer, "3.14") for answer in ("3.1416", "22/7", "3.13")] == [1.0, 1.0, 1 / 6]
