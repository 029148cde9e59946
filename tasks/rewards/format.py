"""Format reward: 1 for exactly one well-formed trace of the prompt's format, partial credit for the
tags of a malformed one.

A malformed completion earns `partial_credit` times the fraction of the format's tags that it has in
place: in the order `<reasoning> </reasoning> <answer> </answer>`, or that of another format, a tag
is in place when it occurs exactly once and after those already in place. (The one tag that ends all
parts of the format `tags` does not count.) So a policy that never closes its answer has a slope to
climb. The credit stays below 1, so a whole trace always earns more than its parts, and a repeated
tag earns nothing. A completion truncated before it closed its answer is malformed.
"""

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from schemas.examples import ELEMENTS, Prompt, parse_trace
from tasks.contract.reward import Response, Reward, RewardConfig, each


class Config(RewardConfig):
    """`partial_credit`: the reward of a malformed completion with all tags in place; 0: reward
    whole traces only."""

    name: Literal["format"] = "format"
    partial_credit: float = Field(default=0.5, ge=0, lt=1)


@each
def score(config: Config, prompt: Prompt, response: Response) -> float:
    """1.0 for a well-formed trace, else `partial_credit` x the share of tags in place. Never
    abstains."""
    if parse_trace(response.text, prompt.channels):
        return 1.0
    every = [tag for pair in ELEMENTS[prompt.channels].values() for tag in pair]
    tags = [tag for tag in every if every.count(tag) == 1]
    return config.partial_credit / len(tags) * tags_in_place(response.text, tags)


def tags_in_place(text: str, tags: Sequence[str]) -> int:
    """How many of the tags occur exactly once and after those counted before."""
    found, end = 0, -1
    for tag in tags:
        start = text.find(tag)
        if start > end and text.count(tag) == 1:
            found, end = found + 1, start
    return found


REWARD = Reward(version=1, config=Config, score=score)
