"""Quantities: a number with a unit, equal after conversion to the reference's unit (by pint) within
`Prompt.tolerance`, or 1 % without it.

SciBench (2307.10635), whose references these are made for, accepts 5 %: say `tolerance = 0.05` for
its comparison. Units may be written as words, symbols or SciBench's LaTeX: `5 kJ/mol`, `5
kilojoules per mole`, `5 $\\mathrm{~kJ} \\mathrm{~mol}^{-1}$`; a power of ten before the unit
belongs to the number (`2.5 $10^{-3} \\mathrm{~m}$`). What follows one slash is divided by as a
whole or one unit of it: `J/mol K` is read both ways.

- Another dimension is wrong, whatever the number. `27 °C` is 300.15 K, but inside a product
  (`J/°C`) a degree is a difference.
- A bare number has the reference's unit, since the question fixes the unit. If the reference has
  none, the answer's is ignored.
- Of a calculation (`P = nRT/V = 50.7 atm`) the last part counts, and each other part that is a
  quantity must agree with the reference too.
- Words that are no unit (`3 electrons`, `2 slices`) are ignored if the reference has them too, and
  wrong if it does not.
"""

import re

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome, unusable
from tasks.verification.copied import is_copied
from tasks.verification.quantities import LONGEST, Quantity, parse_quantity

_TOLERANCE = 0.01
_LISTED = re.compile(r"[,;]\s*\D")
_CHAIN = re.compile(r"=|\\(?:approx|simeq|sim)(?![A-Za-z])|≈")


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer is the reference's quantity. Raises InputError: the reference is no number
    with at most a unit."""
    references = parse_quantity(prompt.answer)
    if not references:
        problem = f"its answer {prompt.answer!r} is no number with a unit, e.g. '50.7 kJ/mol'"
        raise unusable(prompt, problem)
    if is_copied(prompt, answer):
        return Outcome(False, f"{answer!r} is the question's own calculation")
    *before, last = _CHAIN.split(answer) if len(answer) <= LONGEST else [answer]
    if not (found := parse_quantity(last)):
        return Outcome(False, f"{answer!r} is no number with a unit")

    def problems(readings: list[Quantity]) -> list[str]:
        """The differences of each reading from each of the reference; empty when two agree."""
        pairs = [(given, wanted) for wanted in references for given in readings]
        differences = [_difference(*pair, prompt.tolerance) for pair in pairs]
        return differences if all(differences) else []

    for part in before:
        read = [given for given in parse_quantity(part) if not given.things]
        if problems(read) and not _LISTED.search(part):
            return Outcome(False, f"{answer!r} says {part.strip()!r} too")
    if wrong := problems(found):
        return Outcome(False, f"{answer!r} is not {prompt.answer!r}: {wrong[0]}")
    return Outcome(True)


def _difference(given: Quantity, wanted: Quantity, tolerance: float | None) -> str:
    """The difference in words; empty: none."""
    value = given.number
    if not (given.bare or wanted.bare):
        if given.dimension != wanted.dimension:
            return f"{given.unit()} is not {wanted.unit()}"
        if strange := given.things - wanted.things:
            return f"{', '.join(sorted(strange))}: no unit that is known"
        value = (given.number * given.factor + given.offset - wanted.offset) / wanted.factor
    tolerance = _TOLERANCE if tolerance is None else tolerance
    rounding = 1e-9 * abs(wanted.offset / wanted.factor)  # 32 °F is 0 °C, and not -3e-13
    if abs(value - wanted.number) <= tolerance * abs(wanted.number) * (1 + 1e-9) + rounding:
        return ""
    return f"{value:.6g} is not {wanted.number:.6g} (within {100 * tolerance:g} %)"


def _vote(answer: str, choices: object) -> str | None:
    """The quantity in SI units, to three digits."""
    found = parse_quantity(answer)
    if not found:
        return None
    first = found[0]
    return f"{first.number * first.factor + first.offset:.3g} {'' if first.bare else first.unit()}"


CHECK = Check(
    version=5,
    agrees=agrees,
    takes={"tolerance"},
    reads=lambda text: bool(parse_quantity(text)),
    form="number with a unit",
    at_once=True,
    vote=_vote,
)
