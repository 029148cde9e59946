r"""How hard a prompt looks, 1 to 5: a formula over its text, for when nobody has tried it.

    points = log2(1 + quantities) / 2 + log2(1 + words / 20) / 2 + terms
    level = 1 + points, rounded, at most 5

`quantities` are the numbers in it, in figures or in words (each is a step to take or a fact to
keep), `words` its length (at most 200 count), `terms` is 1 for a word of advanced work (derive,
eigenvalue, enthalpy, concurrency ...) and 2 for three or more of them.

It orders prompts roughly, no more. Where a teacher has sampled a prompt, its pass rate is the
better difficulty, and replaces this one.
"""

import math
import re

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
    """1 (easy) to 5 (hard)."""
    quantities = len(_QUANTITY.findall(prompt))
    words = min(len(prompt.split()), _MOST_WORDS)
    found = len({term.lower() for term in _TERM.findall(prompt)})
    terms = 0 if not found else 1 if found < 3 else 2
    points = math.log2(1 + quantities) / 2 + math.log2(1 + words / 20) / 2 + terms
    return max(1, min(5, round(1 + points)))
