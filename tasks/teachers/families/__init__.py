"""Problem families of the procedural teacher: one file per domain, one public function per family.

A family is a public function `name(rng, level) -> Problem` in its domain's file. It draws everything from `rng`; `level` 1..5 sets how many
steps the work takes or how large the numbers are. Adding a family is adding such a function (and its recomputation in
`tests/test_procedural.py`); there is no list to edit.

What makes a family learnable by a model of half a million parameters: one phrasing, a prompt of at most 40 words, few distinct words (they
come from `words.py`), and a trace in which each step is a copy, a look-up or an operation on a few digits.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass

from schemas.examples import Check, Grounding

Family = Callable[..., "Problem"]
"""`(rng, level) -> Problem`; a grounded family also takes the grounding."""


@dataclass(frozen=True)
class Problem:
    """A generated question with its worked trace and its verified answer.

    `context` and `grounding` are set by grounded families only; the prompt then holds the context too.
    """

    prompt: str
    reasoning: str
    answer: str
    check: Check = "exact"
    context: str | None = None
    grounding: Grounding | None = None


def families(module: str) -> dict[str, Family]:
    """The families of `tasks/teachers/families/<module>.py`, by name, in file order.

    A module is a domain's name, or `grounded`.
    """
    source = importlib.import_module(f"{__name__}.{module}")
    return {
        name: function
        for name, function in vars(source).items()
        if inspect.isfunction(function) and function.__module__ == source.__name__ and not name.startswith("_")
    }
