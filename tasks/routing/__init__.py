"""The task router: which of the six domains a prompt belongs to, and how hard it looks.

    route(prompts) -> [Route(domain, difficulty, by, probability), ...]

In this order: a *rule* where one holds (`rules.py`), a *classifier* trained on prompts of our own
(`classifier.py`, `training.py`, `prompts/`), and, where that is unsure and the caller gives one, a
*teacher* (`asking.py`). `difficulty.py` is a formula. `confusion.py` compares with what is known.
docs/measurements.md has how often it is right on labelled sets that it has never read.

What the domains mean here: math is pure mathematics and word problems, also of calculus and
statistics; science asks about nature, in words or in numbers with units, and biomedical questions;
coding is anything about programs; creative is writing that is to please or to move (stories, poems,
letters, emails, posts, speeches) and role play; summarization is a given text made shorter, or
facts taken out of it; general is the rest: knowledge, advice, planning, language exercises,
classification, puzzles, questions of safety.
"""

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Literal

from schemas.examples import Domain
from tasks.routing.classifier import probabilities
from tasks.routing.difficulty import difficulty
from tasks.routing.rules import rule

VERSION = 1

UNSURE = 0.5
"""A teacher, where there is one, is asked when the classifier's best domain is less probable."""

_AT_A_TIME = 1000


@dataclass(frozen=True)
class Route:
    """Where a prompt goes.

    Attributes:
        difficulty: 1 (easy) to 5 (hard).
        by: who said the domain.
        probability: of the domain, as the classifier sees it; 1.0 by rule.
    """

    domain: Domain
    difficulty: int
    by: Literal["rule", "classifier", "teacher"]
    probability: float


Ask = Callable[[Sequence[str]], Sequence[Domain | None]]
"""A teacher: the domain of each prompt, None where it gave no valid answer."""


def route(prompts: Sequence[str], ask: Ask | None = None) -> list[Route]:
    """Where each prompt goes, in order. A prompt's route depends on nothing but the prompt (and on
    the teacher's answer to it).

    Args:
        ask: a teacher, asked about prompts that the classifier is unsure of; where it has no
            answer, the classifier's stays.
    """
    starts = range(0, len(prompts), _AT_A_TIME)
    routes = [one for start in starts for one in _routed(prompts[start : start + _AT_A_TIME])]
    unsure = [place for place, one in enumerate(routes) if one.probability < UNSURE]
    if ask is not None and unsure:
        for place, domain in zip(unsure, ask([prompts[place] for place in unsure]), strict=True):
            if domain is not None:
                routes[place] = replace(routes[place], domain=domain, by="teacher")
    return routes


def dependencies() -> dict[str, str | int]:
    """What decides the routes beside the prompts, for a stage key."""
    return {"routing": VERSION, "package.scikit-learn": importlib.metadata.version("scikit-learn")}


def _routed(prompts: Sequence[str]) -> list[Route]:
    ruled = [rule(prompt) for prompt in prompts]
    open_ = [prompt for prompt, domain in zip(prompts, ruled, strict=True) if domain is None]
    rows = iter(probabilities(open_)) if open_ else iter(())
    routes = []
    for prompt, domain in zip(prompts, ruled, strict=True):
        if domain is not None:
            routes.append(Route(domain, difficulty(prompt), "rule", 1.0))
            continue
        likeliest, said = max(zip(Domain, next(rows).tolist(), strict=True), key=itemgetter(1))
        routes.append(Route(likeliest, difficulty(prompt), "classifier", said))
    return routes
