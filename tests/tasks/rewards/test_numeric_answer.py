"""The numeric-answer reward: the right number, and numbers close by."""

from typing import Any

import pytest

from schemas.base import InputError
from schemas.examples import Domain, Prompt
from tasks.contract.reward import Response
from tasks.reinforcement.rewarding import parse_rewards
from tasks.rewards import exact_answer, numeric_answer


def worth(
    answer: str, reference: str = "100", *, check: str = "numeric", **config: Any
) -> float | None:
    prompt = Prompt(
        id="0" * 16, prompt="How many?", domain=Domain.MATH, answer=reference, check=check
    )
    text = f"<reasoning>I count.</reasoning>\n<answer>{answer}</answer>" if answer else ""
    return numeric_answer.score(numeric_answer.Config.parse(config), [prompt], [Response(text)])[0]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("100", 1.0),
        ("$100.00", 1.0),
        ("110", 1 / 6),
        ("90", 1 / 6),
        ("110.01", 1 / 12),
        ("80", 1 / 12),
        ("120 apples", 1 / 12),
        ("120.5", 0.0),
        ("-100", 0.0),
        ("0", 0.0),
        ("100 or 110", 0.0),
        ("about a hundred", 0.0),
        ("1e999", 0.0),
        ("", 0.0),
    ],
)
def test_the_default_bands(answer: str, expected: float):
    assert worth(answer) == pytest.approx(expected)


def test_a_wrong_answer_may_cost():
    assert [worth(answer, wrong=-0.5) for answer in ("100", "105", "7", "", "many")] == [
        1.0,
        1 / 6,
        -0.5,
        -0.5,
        -0.5,
    ]


def test_without_bands_it_is_the_exact_answer():
    assert [worth(answer, near=[]) for answer in ("100", "101", "")] == [1.0, 0.0, 0.0]


def test_bands_follow_the_sign_and_have_no_zero():
    assert worth("-95", "-100") == pytest.approx(1 / 6)
    assert worth("95", "-100") == 0.0
    assert worth("0.01", "0") == 0.0


@pytest.mark.parametrize(
    ("reference", "check"),
    [
        ("Rome", "exact"),
        ("100", "exact"),
        ("5 kJ", "quantity"),
        (r"\sqrt{2}", "math"),
        ("", "none"),
    ],
)
def test_what_is_no_number_abstains(reference: str, check: str):
    assert worth("100", reference, check=check) is None


def test_the_right_number_is_right_for_both_rewards():
    prompt = Prompt(
        id="0" * 16, prompt="How many?", domain=Domain.MATH, answer="3.14", check="numeric"
    )
    responses = [
        Response(f"<reasoning>r</reasoning>\n<answer>{answer}</answer>")
        for answer in ("3.1416", "22/7", "3.13")
    ]
    exact = exact_answer.score(exact_answer.Config(), [prompt] * 3, responses)
    numeric = numeric_answer.score(numeric_answer.Config(), [prompt] * 3, responses)
    assert exact == [1.0, 1.0, 0.0]
    assert numeric == [1.0, 1.0, 1 / 6]


@pytest.mark.parametrize(
    ("near", "message"),
    [
        (
            [{"within": 0.2, "value": 0.1}, {"within": 0.1, "value": 0.2}],
            "near must go from narrow to wide",
        ),
        (
            [{"within": 0.1, "value": 0.1}, {"within": 0.2, "value": 0.1}],
            "each band worth less than the one before",
        ),
        ([{"within": 0.1, "value": 1.0}], r"near\.0\.value = 1\.0 is not valid"),
        ([{"within": 0.1, "worth": 0.5}], r"unknown key 'near\.0\.worth'"),
    ],
)
def test_bad_bands(near: list[dict[str, float]], message: str):
    with pytest.raises(InputError, match=message):
        parse_rewards([{"name": "numeric_answer", "near": near}], "rewards")
