"""Rewards on length in tokens: the band of `length`, and DAPO's soft overlong punishment."""

import pytest

from schemas.base import InputError
from schemas.examples import Domain, Prompt
from tasks.contract.reward import Resources, Response
from tasks.reinforcement.rewarding import parse_rewards
from tasks.rewards import length, overlong

PROMPT = Prompt(
    id="0" * 16, prompt="What is 2 + 2?", domain=Domain.MATH, answer="4", check="numeric"
)
TRACE = "<reasoning>2 + 2 = 4</reasoning>\n<answer>4</answer>"


def worth(tokens: int, text: str = TRACE, **config: int) -> float | None:
    return length.score(length.Config(**config), [PROMPT], [Response(text, tokens)])[0]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (100, 1.0),
        (150, 1.0),
        (151, 0.98),
        (175, 0.5),
        (200, 0.0),
        (5000, 0.0),
        (99, 0.98),
        (60, 0.2),
        (1, 0.0),
    ],
)
def test_outside_the_band_the_reward_falls_linearly(tokens: int, expected: float):
    assert worth(tokens, minimum=100, maximum=150, slope=50) == pytest.approx(expected)


def test_a_maximum_alone_punishes_verbosity_and_a_minimum_alone_haste():
    assert [worth(tokens, maximum=150) for tokens in (1, 150, 182, 214)] == [1.0, 1.0, 0.5, 0.0]
    assert [worth(tokens, minimum=64) for tokens in (1000, 64, 32, 0)] == [1.0, 1.0, 0.5, 0.0]


@pytest.mark.parametrize("text", ["", ":", "Thought process:", TRACE[:-1], TRACE + " and so on"])
def test_a_malformed_response_of_the_right_length_earns_nothing(text: str):
    assert worth(120, text, minimum=100, maximum=150) == 0.0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "there is no band: give a minimum or a maximum"),
        ({"minimum": 10, "maximum": 9}, "maximum 9 is below minimum 10"),
        ({"maximum": 150, "slope": 0}, "slope = 0 is not valid"),
    ],
)
def test_bands_that_are_none(table: dict[str, int], message: str):
    with pytest.raises(InputError, match=message):
        parse_rewards([{"name": "length", **table}], "rewards")


def punishments(
    *responses: Response, cache: int | None = None, response_length: int = 20480
) -> list[float | None]:
    limits = overlong.prepare(
        overlong.Config(cache=cache), Resources({}, answers=None, response_length=response_length)
    )
    return overlong.score(limits, [PROMPT] * len(responses), responses)


def test_the_overlong_punishment_is_that_of_the_paper():
    """L = 20,480, cache 4,096, hence 16,384 expected: 0 up to it, half way -1/2, -1 from L on."""
    tokens = (1, 16384, 16385, 18432, 20480, 20481)
    expected = [0.0, 0.0, -1 / 4096, -0.5, -1.0, -1.0]
    assert punishments(*(Response(TRACE, one) for one in tokens), cache=4096) == pytest.approx(
        expected
    )


def test_a_fifth_of_the_response_length_is_the_papers_cache():
    assert punishments(Response(TRACE, 18432)) == punishments(Response(TRACE, 18432), cache=4096)


def test_a_response_that_was_cut_off_would_have_been_longer():
    assert punishments(Response("", 10, truncated=True), response_length=100) == [-1.0]


def test_characters_do_not_matter():
    assert punishments(Response("x" * 100_000, 50), Response("", 95), response_length=100) == [
        0.0,
        -0.75,
    ]


@pytest.mark.parametrize("cache", [100, 101])
def test_a_cache_longer_than_the_response_is_refused(cache: int):
    with pytest.raises(
        InputError, match=f"cache = {cache} tokens must be below response_length = 100"
    ):
        punishments(cache=cache, response_length=100)
