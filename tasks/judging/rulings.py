"""Reading a ruling as numbers, strictly.

An endpoint's answer is one JSON object with the question's mark, a reason, and a grade of the right
type for every item; one Markdown fence around it is removed. Anything else is no ruling: other
text, another mark (a verdict inside the response), a key too many, too few or twice, 1 for true,
"7" for 7, 0 or 11 out of 10.

A judge that rates by its next token gives probabilities: P(1) / (P(0) + P(1)) of being satisfied,
and the mean digit over 9 as the rating (G-Eval, 2303.16634).
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tasks.judging.sheets import RATINGS, Item

_FENCED = re.compile(r"```(?:json|JSON)?(.*)```", re.DOTALL)
_LONGEST_REASON = 400


class Grades(NamedTuple):
    """A grade in [0, 1] for each item of a sheet, and the judge's reason."""

    values: tuple[float, ...]
    reason: str = ""


class Unreadable(Exception):
    """An answer that is no ruling. The message describes the problem without quoting the answer,
    which may quote the response."""


def read_text(text: str, items: Sequence[Item], mark: str) -> Grades:
    """The grades in an endpoint's answer: 1 or 0 for satisfied or not, (x - 1) / 9 for a rating.
    Raises Unreadable."""
    value = json_object(text)
    if value.keys() != {"mark", "reason", "grades"}:
        raise Unreadable("it did not have exactly the keys mark, reason and grades")
    if value["mark"] != mark:
        raise Unreadable("its mark was not this question's")
    if not isinstance(value["reason"], str):
        raise Unreadable("its reason was not a string")
    grades = value["grades"]
    keys = [str(number) for number in range(1, len(items) + 1)]
    if not isinstance(grades, dict) or sorted(grades) != sorted(keys):
        raise Unreadable("its grades did not have exactly the keys that were asked for")
    values = tuple(_grade(grades[key], item) for key, item in zip(keys, items, strict=True))
    return Grades(values, value["reason"].strip()[:_LONGEST_REASON])


def json_object(text: str) -> dict[str, Any]:
    """The JSON object that is the whole of an answer, except one Markdown fence around it. Raises
    Unreadable."""
    stripped = text.strip()
    fenced = _FENCED.fullmatch(stripped)
    try:
        whole = fenced[1] if fenced else stripped
        value = json.loads(whole, object_pairs_hook=_once, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Unreadable("it was not one JSON object") from error
    if not isinstance(value, dict):
        raise Unreadable("it was not one JSON object")
    return value


def _grade(value: Any, item: Item) -> float:
    if item.grade == "satisfied":
        if not isinstance(value, bool):
            raise Unreadable("a grade that is true or false was neither")
        return float(value)
    if not isinstance(value, int) or isinstance(value, bool) or value not in RATINGS:
        raise Unreadable("a rating was no whole number from 1 to 10")
    return (value - RATINGS[0]) / (RATINGS[-1] - RATINGS[0])


def read_probabilities(probabilities: Sequence[float]) -> float:
    """The grade from probabilities of the choices (worst first): the mean position, from 0 to 1.
    Raises Unreadable."""
    total = math.fsum(probabilities)
    if not math.isfinite(total) or total <= 0 or min(probabilities) < 0:
        raise Unreadable("the choices have no probability")
    places = math.fsum(place * one for place, one in enumerate(probabilities))
    return places / (total * (len(probabilities) - 1))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Unreadable("a key was there twice")
    return found


def _no_constant(_: str) -> float:
    raise Unreadable("it held NaN or Infinity, which JSON has not")
