"""DAPO's soft overlong punishment (2503.14476, equation 13), in tokens:

    0                              |y| <= L - cache
    ((L - cache) - |y|) / cache    L - cache < |y| <= L
    -1                             L < |y|

L is the stage's fixed response length. A truncated response would have been longer: -1. The paper
has L = 20,480 and a cache of 4,096, a fifth, which is the default here. It adds the punishment to a
reward of +-1; here it is one component of a weighted mean.

Only the length counts, well-formed or not. The best value is 0, so a short response gains nothing.
(Tunix 0.1.7 measures characters, not tokens.)
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from pydantic import Field

from schemas.base import InputError
from schemas.examples import Prompt
from tasks.contract.reward import Resources, Response, Reward, RewardConfig, each


class Config(RewardConfig):
    """`cache`: the tokens before the response length over which the punishment grows; None: a fifth
    of that length."""

    name: Literal["overlong"] = "overlong"
    cache: int | None = Field(default=None, ge=1)


class Limits(NamedTuple):
    """The response length and the cache, in tokens."""

    length: int
    cache: int


def limits_of(config: Config, length: int) -> Limits:
    """Raises InputError: the cache is not shorter than the response length."""
    limits = Limits(length, max(1, length // 5) if config.cache is None else config.cache)
    if limits.cache >= length:
        raise InputError(
            f"reward 'overlong': cache = {limits.cache} tokens must be below response_length ="
            f" {length}; make it smaller."
        )
    return limits


def foresee(config: Config, inputs: Mapping[str, Any], response_length: int) -> None:
    """Raises InputError as `limits_of`."""
    limits_of(config, response_length)


def prepare(config: Config, resources: Resources) -> Limits:
    """Raises InputError as `limits_of`."""
    return limits_of(config, resources.response_length)


@each
def score(limits: Limits, prompt: Prompt, response: Response) -> float:
    """The formula above. Never abstains."""
    length = math.inf if response.truncated else response.tokens
    return max(-1.0, min(0.0, (limits.length - limits.cache - length) / limits.cache))


REWARD = Reward(version=1, config=Config, score=score, prepare=prepare, foresee=foresee)
