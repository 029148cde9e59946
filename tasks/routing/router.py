"""The task router: which of the six domains a prompt belongs to, and how hard it looks.

    route(prompts) -> [Route(domain, difficulty, by, probability), ...]

In this order: a *rule*, where one applies, a *classifier* trained on prompts of our own
(`classifier.py`, `prompts/`), and, where that is unsure and the caller gives one, a *teacher*
(`asking.py`). docs/measurements.md says how often the router is right on labelled sets that nobody
trained it on.

math is pure mathematics and word problems, calculus and statistics included; science is questions
about nature, in words or in numbers with units, and biomedical ones; coding is anything about
programs; creative is writing that is to please or to move (stories, poems, letters, emails, posts,
speeches) and role play; summarization is a given text made shorter, or facts taken out of it;
general is the rest: knowledge, advice, planning, language exercises, classification, puzzles,
questions of safety.
"""

import importlib.metadata
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal

from schemas.examples import Domain
from tasks.routing.classifier import probabilities

VERSION = 1

UNSURE = 0.5
"""A teacher, where there is one, is asked when the classifier's best domain is less probable."""


@dataclass(frozen=True)
class Route:
    """The route of a prompt.

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
    """Route each prompt, in order. A prompt's route depends on nothing but the prompt (and on the
    teacher's answer to it).

    Args:
        ask: a teacher, asked about prompts that the classifier is unsure of; where it has no
            answer, the classifier's stays.
    """
    ruled = [rule(prompt) for prompt in prompts]
    rows = probabilities([one for one, domain in zip(prompts, ruled, strict=True) if not domain])
    routes = []
    for prompt, domain in zip(prompts, ruled, strict=True):
        if domain:
            routes.append(Route(domain, difficulty(prompt), "rule", 1.0))
        else:
            likeliest, said = max(zip(Domain, next(rows), strict=True), key=itemgetter(1))
            routes.append(Route(likeliest, difficulty(prompt), "classifier", said))
    unsure = [place for place, one in enumerate(routes) if one.probability < UNSURE]
    if ask is not None and unsure:
        for place, domain in zip(unsure, ask([prompts[place] for place in unsure]), strict=True):
            if domain is not None:
                routes[place] = replace(routes[place], domain=domain, by="teacher")
    return routes


def dependencies() -> dict[str, str | int]:
    """The versions that decide the routes beside the prompts, for a stage key."""
    return {"routing": VERSION, "package.scikit-learn": importlib.metadata.version("scikit-learn")}


_CODE = re.compile(
    r"```"
    r"|^[ \t]*(?:async )?def \w+\([^)\n]*\).*:[ \t]*$"
    r"|^[ \t]*class \w+(?:\(.*\))?:[ \t]*$"
    r"|^#include\s*[<\"]"
    r"|^(?:from [\w.]+ import [\w, *]++|import [\w.]+(?: as \w+)?)[ \t]*$"
    r"|^[ \t]*(?:public|private|protected) (?:static )?\w+(?:<\w+>)? \w+\(",
    re.MULTILINE,
)
_ASKS_FOR_SUMMARY = re.compile(
    r"(?i)(?:please |can you |could you )?(?:briefly )?(?:summari[sz]e|sum up|tl;?dr)\b"
)
_ENDS_IN_SUMMARY = re.compile(
    r"(?i)(?:\bsummari[sz]e(?: (?:it|this|the"
    r" (?:above|text|article|passage)))?|\btl;?dr|^summary)\s*[.:]?\s*\Z",
    re.MULTILINE,
)
_ROLE_PLAY = re.compile(
    r"(?i)(?:please |now |let(?:'|’)s )*"
    r"(?:pretend (?:to be|(?:that )?you(?:'re|’re| are)|yourself)|role-?play\b"
    r"|(?:take|play|assume|adopt|embody|step into)\b[^.\n]{0,30}\b(?:role|persona|character)\b)"
    r"|.*\bstay(?:ing)? in character\b"
)
_CHEMISTRY = re.compile(r"\bSMILES\b|\b(?:1|13)[HC] NMR\b|\bIUPAC\b")


def rule(prompt: str) -> Domain | None:
    """The domain that a rule gives to a prompt, or None. There are few rules, and each is nearly
    always right when it applies.

    coding: it holds a fenced block, or a line that is program text. summarization: it begins or
    ends by asking for a summary. creative: it begins by giving out a role to play. science: it
    speaks of SMILES, NMR spectra or IUPAC names.
    """
    if _CODE.search(prompt):
        return Domain.CODING
    if _ASKS_FOR_SUMMARY.match(prompt) or _ENDS_IN_SUMMARY.search(prompt[-200:]):
        return Domain.SUMMARIZATION
    if _ROLE_PLAY.match(prompt):
        return Domain.CREATIVE
    if _CHEMISTRY.search(prompt):
        return Domain.SCIENCE
    return None


_QUANTITY = re.compile(
    r"\d+(?:[.,]\d+)*|\b(?:two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|hundred|thousand|million|half|twice|double|triple"
    r"|third|quarter|percent)\b",
    re.IGNORECASE,
)
_TERM = re.compile(
    r"\b(?:prove|proof|derive|show that|integral|derivative|differential|eigen\w+|theorem"
    r"|polynomial|converge\w*|matrix|random variable|probability density|hypothesis|optimi[sz]e"
    r"|algorithm|complexity|concurren\w+|asynchronous|recursi\w+|dynamic programming"
    r"|enthalpy|entropy|gibbs|adiabatic|isothermal|wave ?function|quantum|operator|hamiltonian"
    r"|lagrangian|partition function|equilibrium constant|spectr\w+|nmr|smiles|mechanism|critically"
    r"|compare and contrast|trade-?offs?|sonnet|villanelle|alliteration)\b"
    r"|\\(?:int|sum|frac|partial|nabla|lim|hat|mathbf)\b",
    re.IGNORECASE,
)
_MOST_WORDS = 200


def difficulty(prompt: str) -> int:
    """How hard a prompt looks, 1 (easy) to 5 (hard): a formula over its text.

        points = log2(1 + quantities) / 2 + log2(1 + words / 20) / 2 + terms
        level = 1 + points, rounded, at most 5

    `quantities` counts its numbers, in figures or in words (each is a step to take or a fact to
    keep), `words` its length (at most 200 count), `terms` is 1 for a word of advanced work (derive,
    eigenvalue, enthalpy, concurrency ...) and 2 for three or more of them. It orders prompts
    roughly. Where a teacher has sampled a prompt, its pass rate replaces this level.
    """
    quantities = len(_QUANTITY.findall(prompt))
    words = min(len(prompt.split()), _MOST_WORDS)
    found = len({term.lower() for term in _TERM.findall(prompt)})
    terms = 0 if not found else 1 if found < 3 else 2
    points = math.log2(1 + quantities) / 2 + math.log2(1 + words / 20) / 2 + terms
    return max(1, min(5, round(1 + points)))


def confusion(counts: Counter[tuple[Domain, Domain]]) -> dict[str, Any]:
    """Compare the domains that sources state of their prompts with the router's, given how many
    prompts have each (stated, routed).

    Returns:
        `matrix[stated][routed]` counts; `accuracy`, a fraction, None without prompts; by domain
        `recall` (of its prompts, how many are found) and `precision` (of those that are taken for
        it, how many are its own), None where there are none; `n`.
    """
    names = [domain.value for domain in Domain]
    matrix = {one.value: {other.value: counts[one, other] for other in Domain} for one in Domain}
    right = {name: matrix[name][name] for name in names}
    taken = {name: sum(row[name] for row in matrix.values()) for name in names}
    return {
        "n": counts.total(),
        "accuracy": _fraction(sum(right.values()), counts.total()),
        "recall": {name: _fraction(right[name], sum(matrix[name].values())) for name in names},
        "precision": {name: _fraction(right[name], taken[name]) for name in names},
        "matrix": matrix,
    }


def _fraction(part: int, whole: int) -> float | None:
    return part / whole if whole else None
