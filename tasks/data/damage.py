"""Damaged traces: a verified trace with one step made wrong and the answer left right, so that only
the reasoning tells the two apart.

A step that has a number gets another number of as many digits in its place. Where no step has one,
a step of another trace of the same domain takes the place of one: a non sequitur. Neither makes
traces longer or shorter on average. Which step is wrong is known, which no pair of sampled
responses tells: a reward model's step scores can be compared with it.
"""

import random
import re
from collections.abc import Sequence
from typing import NamedTuple

from schemas.examples import Example
from tasks.data.steps import split_steps

_NUMBER = re.compile(r"\d+")
_LIST_NUMBER = re.compile(r"\s*\d+[.)]\s")


class Damage(NamedTuple):
    """A reasoning with one wrong step: its index, from 0."""

    reasoning: str
    step: int


def damaged(example: Example, others: Sequence[Example], seed: int) -> Damage | None:
    """Damage the reasoning of an example, as a function of (example, others, seed).

    Args:
        others: examples of the same domain; `example` may be one of them.

    Returns:
        None where what was drawn is the step itself, or reads as other steps than it should.
    """
    rng = random.Random(f"{seed}/damage/{example.id}")
    steps = split_steps(example.reasoning)
    numbered = [index for index, step in enumerate(steps) if _numbers(step)]
    if numbered:
        index = rng.choice(numbered)
        start, end = rng.choice(_numbers(steps[index]))
        changed = (
            steps[index][:start] + _other_number(steps[index][start:end], rng) + steps[index][end:]
        )
    else:
        index = rng.randrange(len(steps))
        other = rng.choice(split_steps(rng.choice(others).reasoning)).strip()
        changed = other + steps[index][len(steps[index].rstrip()) :]
    wrong = [*steps[:index], changed, *steps[index + 1 :]]
    reasoning = "".join(wrong)
    return Damage(reasoning, index) if wrong != steps and split_steps(reasoning) == wrong else None


def _numbers(step: str) -> list[tuple[int, int]]:
    """Where a step's numbers are; the number of a list item is none."""
    item = _LIST_NUMBER.match(step)
    return [found.span() for found in _NUMBER.finditer(step, item.end() if item else 0)]


def _other_number(number: str, rng: random.Random) -> str:
    """Another number of as many digits."""
    low = 10 ** (len(number) - 1) if len(number) > 1 else 0
    other = rng.randrange(low, 10 ** len(number) - 1)
    return str(other if other < int(number) else other + 1)
