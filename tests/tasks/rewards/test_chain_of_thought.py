"""The chain-of-thought reward: steps that go somewhere, and texts that only look like it."""

import re

import pytest

from schemas.examples import Domain, Prompt
from tasks.contract.reward import Judged, Response
from tasks.rewards import chain_of_thought
from tasks.rewards.chain_of_thought import Config, holds
from tests.tasks.prompts import prompt, trace

TRAIN = prompt("180", prompt="A train goes 60 km in an hour. How far in 3 hours?")
SKY = prompt("Rayleigh scattering", "none", prompt="Why is the sky blue?", domain=Domain.SCIENCE)
GOOD = (
    "First, the speed stays the same, 60 km per hour. Then three hours give 60 * 3 = 180 km. So the"
    " distance is the product."
)
PROSE = (
    "Sunlight has all colors. Because air molecules are tiny, they scatter short waves more."
    " Therefore mostly blue light reaches us."
)


def judged(reasoning: str, prompt: Prompt = TRAIN, **config: int) -> Judged:
    response = Response(trace(prompt.answer, reasoning))
    return chain_of_thought.score(Config(**config), [prompt], [response])[0]


def worth(reasoning: str, prompt: Prompt = TRAIN, **config: int) -> float:
    return judged(reasoning, prompt, **config).value


def test_steps_that_are_linked_and_an_equation_that_holds_earn_everything():
    assert judged(GOOD) == Judged(
        1.0, {"steps": 3, "linked": 1.0, "equations": 1.0, "distinct": 1.0}
    )


def test_equations_are_asked_for_in_math_only():
    assert judged(PROSE, SKY) == Judged(
        1.0, {"steps": 3, "linked": 1.0, "equations": None, "distinct": 1.0}
    )
    assert worth(PROSE, TRAIN) == pytest.approx(2 / 3)


def test_every_step_that_is_missing_costs():
    sentences = re.split(r"(?<=[.]) ", PROSE)
    values = [worth(" ".join(sentences[:count]), SKY) for count in (1, 2, 3)]
    assert values == [pytest.approx(1 / 6), pytest.approx((2 / 3 + 1) / 2), 1.0]
    assert worth(PROSE, SKY, steps=6) == pytest.approx((3 / 6 + 1) / 2)


def test_steps_without_connectives_are_worth_half():
    bare = (
        PROSE.replace("Because a", "A").replace(" are tiny, they", "").replace("Therefore m", "M")
    )
    assert worth(bare, SKY) == 0.5


def test_false_arithmetic_earns_less_than_none():
    """An equation that fails is no step and no share; beside one that holds it halves that
    share."""
    none, wrong = (GOOD.replace("60 * 3 = 180", one) for one in ("some 180", "60 * 3 = 200"))
    both = GOOD + " And 60 + 60 = 130."
    assert worth(GOOD) > worth(both) > worth(wrong)
    assert worth(wrong) <= worth(none) < worth(GOOD)
    assert judged(both).detail["equations"] == 0.5


HOLLOW = (
    # markers alone
    "First, second, third, then, because, therefore, so, finally, thus, hence.",
    "First. Second. Third. Then. Because. Therefore. So. Finally.",
    "Step 1:\nStep 2:\nStep 3:\nTherefore:",
    "The answer is 180. So the answer is 180. Therefore it is 180.",  # the answer restated
    TRAIN.prompt,  # the question restated
    f"First, {TRAIN.prompt} Then, {TRAIN.prompt} Therefore, {TRAIN.prompt}",
    *("180", "...", "= = = 4 = . + = 7 ="),
)


def test_hollow_texts_earn_next_to_nothing():
    assert [hollow for hollow in HOLLOW if worth(hollow) > 0.12] == []


def test_saying_it_again_costs():
    """k times the same text has about 1/k distinct 4-grams."""
    for times in (2, 10, 50):
        assert worth(" ".join([GOOD] * times)) < 1.3 / times
    assert worth(GOOD + " wait, let me check that again" * 30) < 0.3  # a loop at the end


TRUE = """2 + 2 = 4 | 2 + 3 * 4 = 14 | 2 - 3 - 4 = -5 | 48/2 = 24 | 10 ÷ 4 × 2 − 1 = 4 | 5 - -3 = 8
0.2 x 50 = $10 | 1,200 * 3 = 3,600 | 10 / 3 = 3.33 | 200 * 15% = 30 | 1 / 4 = 25% | 1 / 3 = 33.3%"""
FALSE = "10 / 3 = 3.34 | 10 / 3 = 3 | 1 / 3 = 33.5% | 7 / 0 = 0 | 2 + 2 = 5"


def test_equations_hold_to_the_digits_they_are_written_with():
    for equations, true in ((TRUE, True), (FALSE, False)):
        for equation in re.split(r" \| |\n", equations):
            assert holds(*equation.split(" = ")) is true, equation


@pytest.mark.parametrize("sign", ["*", "×", "·", r"\times", r"\cdot"])
def test_signs_of_latex_are_signs(sign: str):
    """Wrong arithmetic is wrong in LaTeX, too, and right arithmetic is paid."""
    for result, share in ((180, 1.0), (181, 0.0)):
        told = judged(f"So it goes ${60} {sign} 3 = {result}$ km.").detail
        assert told["equations"] == share
    assert judged("So 8 – 3 = 5, as 10 \\div 2 = 5.").detail["equations"] == 1.0


def test_what_counts_as_an_equation():
    """The share of its equations that hold; without one it is 0."""
    shares = {
        "so 12/60 = $0.2 a minute": 1.0,
        "2 * 3 = 6 + 1 = 7": 1.0,  # what follows the right side belongs to it: 2 * 3 is not 6 + 1
        "x = 5, y=3+4": 0.0, "version 1.2.3 + 4 = 5": 0.0, "16 + 1 = 17": 1.0, "2+2=4.": 1.0,
        "2+2=45": 0.0, "1+1=2 and 1+1=3": 0.5,
    }  # fmt: skip
    assert {text: judged(text).detail["equations"] for text in shares} == shares
