"""Rewards on length in tokens: the band of `length`, and DAPO's soft overlong punishment."""

import pytest

from schemas.base import InputError
from tasks.contract.reward import Resources, Response
from tasks.rewards import length, overlong
from tests.tasks.prompts import paid, prompt, trace

TRACE = trace("4")


def worth(tokens: int, **config: int) -> float | None:
    return paid(length, Response(TRACE, tokens), **config)[0]


def test_outside_the_band_the_reward_falls_linearly():
    tokens = (1, 60, 99, 100, 150, 151, 175, 200, 5000)
    found = [worth(one, minimum=100, maximum=150, slope=50) for one in tokens]
    assert found == pytest.approx([0.0, 0.2, 0.98, 1.0, 1.0, 0.98, 0.5, 0.0, 0.0])


def test_a_maximum_alone_punishes_verbosity_and_a_minimum_alone_haste():
    assert [worth(tokens, maximum=150) for tokens in (1, 150, 182, 214)] == [1.0, 1.0, 0.5, 0.0]
    assert [worth(tokens, minimum=64) for tokens in (1000, 64, 32, 0)] == [1.0, 1.0, 0.5, 0.0]


def punishments(*responses: Response, cache: int | None = None, most: int = 20480) -> list[float]:
    limits = overlong.prepare(
        overlong.Config(cache=cache), Resources({}, answers=None, response_length=most)
    )
    return overlong.score(limits, [prompt()] * len(responses), responses)


def test_the_overlong_punishment_is_that_of_the_paper():
    """L = 20,480, cache 4,096, hence 16,384 expected: 0 up to it, half way -1/2, -1 from L on. The
    cache is a fifth of L unless it is given."""
    responses = [Response(TRACE, one) for one in (1, 16384, 16385, 18432, 20480, 20481)]
    expected = [0.0, 0.0, -1 / 4096, -0.5, -1.0, -1.0]
    assert punishments(*responses, cache=4096) == pytest.approx(expected)
    assert punishments(*responses) == pytest.approx(expected)


def test_tokens_count_and_a_response_that_was_cut_off_would_have_been_longer():
    responses = [Response("x" * 100_000, 50), Response("", 95), Response("", 10, truncated=True)]
    assert punishments(*responses, most=100) == [0.0, -0.75, -1.0]


def test_a_cache_as_long_as_the_response_is_refused():
    with pytest.raises(InputError, match="cache = 100 tokens must be below response_length = 100"):
        punishments(cache=100, most=100)
