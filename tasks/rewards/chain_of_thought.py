"""Chain-of-thought structure: is the reasoning made of steps that add something? In [0, 1]; 0 for a
malformed response.

    r = distinct * (steps + linked + equations) / 3     without equations, over 2

A segment (a sentence or a line) is a step when it adds something: at least two words or numbers
that are not in the prompt, the answer or an earlier segment and are no connectives; or a correct
equation that was not there before.

steps       steps found / `steps`, at most 1
linked      of these steps, the share after the first that has a connective (because, so, first,
            therefore ...) or an equation; half is enough for 1. With fewer than two steps 0.
equations   only for prompts of the domain math, or where the reasoning has any: of the equations
            `number op number ... = number`, the share that is correct; 0 where there is none
distinct    distinct 4-grams of words / all 4-grams: 1 for prose, 1/k for a text repeated k times

So connectives without content, a restated prompt or answer, a repeated sentence and wrong
arithmetic earn little or nothing. It cannot see whether the steps are true, or about the prompt:
four sums such as `1 + 1 = 2` earn 1 where GSM8K's own solutions earn 0.86. It is cheap and
deterministic, to be used beside rewards that verify. The seeds report "a marked increase in Chain
of Thought markers" but no formula; this one is ours. Time is linear in the length of the text.
"""

import re
from fractions import Fraction
from itertools import islice
from typing import Literal, NamedTuple

from pydantic import Field

from schemas.examples import Domain, Prompt, Trace, parse_trace
from tasks.contract.reward import Judged, Response, Reward, RewardConfig, each
from tasks.verification.text import plain_signs

_CONNECTIVE = (
    "also although another because but consequently finally first firstly from given hence however"
    " if implies instead last let means must next now otherwise second secondly since so step"
    " suppose then therefore third thus when whereas which while"
)
_CONNECTIVES = frozenset(_CONNECTIVE.split())
_FEWEST_NEW_WORDS = 2
_GRAM = 4
_SEGMENT = re.compile(r"(?<=[.!?;:])\s+|\n+")
_WORD = re.compile(r"[^\W_]+")
# Bounded on every side: a megabyte of digits is looked at once.
_NUMBER = r"-?\$?\d{1,12}(?:,\d{3}){0,3}(?:\.\d{1,12})?%?"
_EQUATION = re.compile(
    rf"(?<![\w.,+*/×÷·−-])(?P<left>{_NUMBER}(?: ?[-+*/×÷·−x] ?{_NUMBER}){{1,5}}) ?= ?"
    rf"(?P<right>{_NUMBER})(?![\w]|[.,]\d)(?! ?[-+*/×÷·−] ?\d)"
)
_TERM = re.compile(rf"(?P<number>{_NUMBER})(?: ?(?P<op>[-+*/×÷·−x]) ?)?")
_ROUNDING = Fraction(1, 2)
_MOST_EQUATIONS = 1000
"""Of a reasoning that are looked at."""


class Config(RewardConfig):
    """`steps`: how many earn the full share."""

    name: Literal["chain_of_thought"] = "chain_of_thought"
    steps: int = Field(default=3, ge=1)


class Structure(NamedTuple):
    """The counts of the module docstring. `equations`: None where none is expected and none is
    there."""

    steps: int
    linked: float
    equations: float | None
    distinct: float


@each
def score(config: Config, prompt: Prompt, response: Response) -> float | Judged:
    """The formula above, with its counts. Never abstains."""
    trace = parse_trace(response.text, prompt.channels)
    if trace is None:
        return 0.0
    found = structure(prompt, trace)
    shares = [min(1.0, found.steps / config.steps), found.linked]
    if found.equations is not None:
        shares.append(found.equations)
    value = found.distinct * sum(shares) / len(shares) if found.steps else 0.0
    return Judged(value, found._asdict())


def structure(prompt: Prompt, trace: Trace) -> Structure:
    """Count the steps of a trace's reasoning."""
    said = {
        word.casefold() for text in (prompt.prompt, trace.answer) for word in _WORD.findall(text)
    } | _CONNECTIVES
    steps, links = 0, 0
    equations: list[bool] = []
    words: list[str] = []
    solved: set[str] = set()
    for segment in _SEGMENT.split(plain_signs(trace.reasoning)):
        here = [word.casefold() for word in _WORD.findall(segment)]
        matches = islice(_EQUATION.finditer(segment), _MOST_EQUATIONS - len(equations))
        sides = [(match["left"], match["right"]) for match in matches]
        found = [("=".join(pair), holds(*pair)) for pair in sides]
        equations += [right for _, right in found]
        derived = {"".join(text.split()) for text, right in found if right} - solved
        new = set(here) - said
        if len(new) >= _FEWEST_NEW_WORDS or derived:
            steps += 1
            links += steps > 1 and bool(derived or _CONNECTIVES.intersection(here))
        said |= new
        solved |= derived
        words += here
    linked = min(1.0, links / (steps - 1) * 2) if steps > 1 else 0.0
    share = 0.0 if prompt.domain is Domain.MATH else None
    if equations:
        share = sum(equations) / len(equations)
    return Structure(steps=steps, linked=linked, equations=share, distinct=_distinct(words))


def holds(left: str, right: str) -> bool:
    """Whether `number op number ... = number` is correct to the digits of the result, with
    multiplication first."""
    terms, sign, op, pending = Fraction(0), 1, "", Fraction(0)
    for match in _TERM.finditer(left):
        number = _value(match["number"])
        if op in ("/", "÷") and number == 0:
            return False
        if op in ("*", "×", "·", "x"):
            pending *= number
        elif op in ("/", "÷"):
            pending /= number
        else:
            terms, pending = terms + sign * pending, number
            sign = -1 if op in ("-", "−") else 1
        op = match["op"] or ""
    decimals = len(right.rstrip("%").partition(".")[2])
    rounding = _ROUNDING / 10**decimals / (100 if right.endswith("%") else 1) if decimals else 0
    return abs(terms + sign * pending - _value(right)) <= rounding


def _value(number: str) -> Fraction:
    digits = Fraction(number.replace("$", "").replace(",", "").rstrip("%"))
    return digits / 100 if number.endswith("%") else digits


def _distinct(words: list[str]) -> float:
    grams = list(zip(*(words[start:] for start in range(_GRAM)), strict=False))
    return len(set(grams)) / len(grams) if grams else 1.0


REWARD = Reward(version=3, config=Config, score=score)
