"""The steps of a trace, and the token at which each ends, where a reward model gives its scores.

A step ends

- at a line break;
- after `.`, `!`, `?` or `;`, with closing quotes or brackets, before white space (not at a decimal
  point);
- after a comma before white space, when the step has an equation in it: `3+4=7, 7+2=9` is two
  steps, `red, white and blue` is one;

and it has a letter or an equals sign: the number of a list item (`1. Add`) belongs to what follows
it. PRM800K (Let's Verify Step by Step, 2305.20050) and Math-Shepherd (2312.08935) use lines, which
their generators were told to write; our traces have many authors.

`damaged` makes one step of a verified trace wrong and leaves the answer right, so that only the
reasoning tells the two apart. A number in a step is replaced by another of as many digits. Where no
step has one, a step of another trace of the same domain replaces one: a non sequitur. Neither
changes a trace's length on average. The wrong step is known, unlike in pairs of sampled responses,
so a reward model's step scores can be compared with it.
"""

import random
import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from schemas.examples import ELEMENTS, Example, Trace
from tasks.data.tokens import Tokenizer, pad_right, prompt_tokens, response_tokens

VERSION = 1
"""Raise it when the same text would be split elsewhere: it is part of the keys of stages that
split."""

_BOUNDARY = re.compile(r"(?P<mark>[.!?;][\"'”’)\]]*|,)?(?P<space>\s+)")
_NUMBER = re.compile(r"\d{1,4000}")  # Python reads no number of more than 4,300 digits
_LIST_NUMBER = re.compile(r"\s*\d+[.)]\s")
_SUBSTANCE = re.compile(r"[^\W\d_]|=")


class StepTokens(NamedTuple):
    """A trace as tokens, the terminator last, and for each step the index of its last token; the
    last one is the answer's, which is the terminator. Steps that end in one token share its
    index."""

    tokens: list[int]
    ends: list[int]


class TraceRow(NamedTuple):
    """A prompt and a trace as tokens."""

    prompt: list[int]
    response: StepTokens

    def fits(self, prompt_length: int, response_length: int) -> bool:
        """Whether both fit these lengths."""
        return len(self.prompt) <= prompt_length and len(self.response.tokens) <= response_length


def split_steps(reasoning: str) -> list[str]:
    """The steps of a reasoning, with the white space after them: joined, they are the reasoning."""
    steps, start = [], 0
    for found in _BOUNDARY.finditer(reasoning):
        step, mark = reasoning[start : found.end()], found["mark"]
        ends = "\n" in found["space"] or (mark is not None and (mark != "," or "=" in step))
        if ends and _SUBSTANCE.search(step):
            steps.append(step)
            start = found.end()
    return [*steps, reasoning[start:]] if start < len(reasoning) else steps


def step_tokens(tokenizer: Tokenizer, trace: Trace) -> StepTokens:
    """A trace as a response. A step ends at the token with its last character."""
    text, place = trace.render(), len(ELEMENTS[trace.channels]["reasoning"][0])
    ends: list[int] = []
    found = tokenizer.ends(text)
    for step in split_steps(trace.reasoning):
        ends.append(bisect_left(found, place + len(step.rstrip())))
        place += len(step)
    tokens = response_tokens(tokenizer, text)
    return StepTokens(tokens, [*ends, len(tokens) - 1])


def trace_row(tokenizer: Tokenizer, prompt: str, trace: Trace) -> TraceRow:
    """A trace in answer to a prompt, as tokens."""
    return TraceRow(prompt_tokens(tokenizer, prompt), step_tokens(tokenizer, trace))


def response_arrays(
    responses: Sequence[StepTokens], length: int, pad_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """(N, length) ids, padded on the right, and (N, length) bool: the ends of steps and of the
    answer."""
    ends = np.zeros((len(responses), length), bool)
    for index, response in enumerate(responses):
        ends[index, response.ends] = True
    return pad_right([response.tokens for response in responses], length, pad_id), ends


class Damage(NamedTuple):
    """A reasoning with one wrong step: its index, from 0."""

    reasoning: str
    step: int


def damaged(example: Example, others: Sequence[Example], seed: int) -> Damage | None:
    """Damage the reasoning of an example, as a function of (example, others, seed).

    Args:
        others: examples of the same domain; `example` may be one of them.

    Returns:
        None where the drawn step equals the original, or would be split into other steps.
    """
    rng = random.Random(f"{seed}/damage/{example.id}")
    steps = split_steps(example.reasoning)
    numbered = [index for index, step in enumerate(steps) if _numbers(step)]
    if numbered:
        index = rng.choice(numbered)
        start, end = rng.choice(_numbers(steps[index]))
        step = steps[index]
        changed = step[:start] + _other_number(step[start:end], rng) + step[end:]
    else:
        index = rng.randrange(len(steps))
        other = rng.choice(split_steps(rng.choice(others).reasoning)).strip()
        changed = other + steps[index][len(steps[index].rstrip()) :]
    wrong = [*steps[:index], changed, *steps[index + 1 :]]
    reasoning = "".join(wrong)
    return Damage(reasoning, index) if wrong != steps and split_steps(reasoning) == wrong else None


def _numbers(step: str) -> list[tuple[int, int]]:
    """The positions of a step's numbers, without that of a list item."""
    item = _LIST_NUMBER.match(step)
    return [found.span() for found in _NUMBER.finditer(step, item.end() if item else 0)]


def _other_number(number: str, rng: random.Random) -> str:
    """Another number of as many digits."""
    low = 10 ** (len(number) - 1) if len(number) > 1 else 0
    other = rng.randrange(low, 10 ** len(number) - 1)
    return str(other if other < int(number) else other + 1)
