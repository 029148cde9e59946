"""Problem families of the procedural teacher: one public function per family, in the file of its
domain or of a subject (`robotics`).

A family is a public function `name(rng, level) -> Problem`. It draws everything from `rng`; `level`
1..5 sets how many steps the work takes or how large the numbers are. Adding a family is adding such
a function (and its recomputation in `tests/tasks/teaching/test_families.py`); there is no list to
edit.

What makes a family learnable by a model of half a million parameters: one phrasing, a prompt of at
most 40 words, few distinct words (they come from `words.py`), and a trace in which each step is a
copy, a look-up or an operation on a few digits.
"""

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from schemas.examples import Check, Constraint, Domain, Grounding

Family = Callable[..., "Problem"]
"""`(rng, level) -> Problem`; a grounded family also takes the grounding."""


@dataclass(frozen=True)
class Problem:
    """A generated question with its worked trace and its verified answer.

    `context` and `grounding` are set by grounded families only; the prompt then holds the context
    too. `proof` is their quotation from it, for formats that have a place for one.
    """

    prompt: str
    reasoning: str
    answer: str
    check: Check = "exact"
    context: str | None = None
    grounding: Grounding | None = None
    constraints: tuple[Constraint, ...] = ()
    proof: str = ""


def domain_of(module: str) -> Domain:
    """The domain of a module's problems: the one that it is named for, or a subject's `DOMAIN`.
    Raises ValueError for any other module."""
    if module in set(Domain):
        return Domain(module)
    subject = importlib.import_module(f"{__name__}.{module}") if _is_file(module) else None
    if (domain := getattr(subject, "DOMAIN", None)) is None:
        raise ValueError(f"no families are called {module!r}")
    return Domain(domain)


def drawn_domains() -> tuple[Domain, ...]:
    """The domains that have families."""
    return tuple(domain for domain in Domain if _is_file(domain.value))


def _is_file(module: str) -> bool:
    return module.isidentifier() and Path(__file__).with_name(f"{module}.py").exists()


def families(module: str) -> dict[str, Family]:
    """The families of `tasks/teaching/families/<module>.py`, by name, in file order; none where
    there is no such file.

    A module is a domain's name, a subject's, or `grounded`.
    """
    if not _is_file(module):
        return {}
    source = importlib.import_module(f"{__name__}.{module}")
    return {
        name: function
        for name, function in vars(source).items()
        if inspect.isfunction(function)
        and function.__module__ == source.__name__
        and not name.startswith("_")
    }
