r"""How hard a prompt looks, 1 to 5: a formula over its text, for when nobody has tried it.

    points = log2(1 + quantities) / 2 + log2(1 + words / 20) / 2 + terms         level = 1 + points, rounded, at most 5

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
    r"\b(?:prove|proof|derive|show"
    r" that|integral|derivative|differential|eigen\w+|theorem|polynomial|converge\w*|matrix|random"
    r" variable"
    r"|probability"
    r" density|hypothesis|optimi[sz]e|algorithm|complexity|concurren\w+|asynchronous|recursi\w+|dynamic"
    r" programming"
    r"|enthalpy|entropy|gibbs|adiabatic|isothermal|wave"
    r" ?function|quantum|operator|hamiltonian|lagrangian"
    r"|partition function|equilibrium constant"
    r"|spectr\w+|nmr|smiles|mechanism|critically|compare and"
    r" contrast|trade-?offs?|sonnet|villanelle|alliteration)\b"
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
