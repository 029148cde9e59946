"""Format reward: 1 for exactly one well-formed trace, partial credit for the tags of a malformed
one.

A malformed completion earns `partial_credit` times the fraction of the four tags that it has in
place: in the order `<reasoning> </reasoning> <answer> </answer>`, a tag is in place when it occurs
exactly once and after those already in place. So a policy that never closes its answer has a slope
to climb. The credit stays below 1, so a whole trace always earns more than its parts, and a
repeated tag earns nothing. A completion truncated before it closed its answer is malformed.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from schemas.examples import TRACE_TAGS, Prompt, parse_trace
from tasks.contract.reward import Response, Reward, RewardConfig


class Config(RewardConfig):
    """`partial_credit`: the reward of a malformed completion with all four tags in place; 0: reward
    whole traces only."""

    name: Literal["format"] = "format"
    partial_credit: float = Field(default=0.5, ge=0, lt=1)


def score(
    config: Config, prompts: Sequence[Prompt], responses: Sequence[Response]
) -> list[float | None]:
    """1.0 for a well-formed trace, else `partial_credit` x tags in place / 4. Never abstains."""
    part = config.partial_credit / len(TRACE_TAGS)
    texts = [one.text for one in responses]
    return [1.0 if parse_trace(text) else part * tags_in_place(text) for text in texts]


def tags_in_place(text: str) -> int:
    """How many of the four tags (0 to 4) occur exactly once and after those counted before."""
    found, end = 0, -1
    for tag in TRACE_TAGS:
        start = text.find(tag)
        if start > end and text.count(tag) == 1:
            found, end = found + 1, start
    return found


REWARD = Reward(version=1, config=Config, score=score)
