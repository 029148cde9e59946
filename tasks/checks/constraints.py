"""Constraints on a text's form, each checked by a program (IFEval, Zhou et al. 2023, 2311.07911).

The text in the answer tag must satisfy all of a prompt's constraints. `CONSTRAINTS` has their
names, values and meaning. Words are runs of letters and digits, with inner apostrophes and hyphens;
sentences end in . ! or ? (of any script) before white space or the end; paragraphs are parted by an
empty line; keywords are whole words (or phrases) in any case.

They do not look at meaning, so filler passes. A text without a word (except JSON, and a value of
`one_of`) satisfies nothing, nor does one that keeps repeating itself, unless a constraint counts
words.
"""

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome, unusable
from tasks.verification.form_constraints import CONSTRAINTS, shown, validate, words

_WORDLESS = {"json", "json_keys", "one_of"}
_COUNTING = {"counts", "min_counts"}
_RUN = 4  # words
_FEWEST_RUNS = 5
_LEAST_DISTINCT = 0.4
"""The least share of distinct words. The minimum over 3,096 real abstracts, solutions, answers and
summaries of eight words or more is 0.60."""


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer satisfies every constraint of its prompt. Raises InputError: there are
    none, or one that `validate` refuses."""
    if not prompt.constraints:
        raise unusable(prompt, "it has no constraints")
    validate(prompt.constraints, f"prompt {prompt.id} (source {prompt.source!r})")
    broken = _nothing_said(answer, {constraint.name for constraint in prompt.constraints})
    for constraint in prompt.constraints:
        holds, found = CONSTRAINTS[constraint.name].holds(answer, constraint.value)
        if not holds:
            broken.append(f"{constraint.name} = {shown(constraint.value)}: found {found!r}")
    return Outcome(not broken, "; ".join(broken))


def _nothing_said(answer: str, names: set[str]) -> list[str]:
    """Why an answer cannot satisfy any constraint."""
    said = [word.casefold() for word in words(answer)]
    if not said and names.isdisjoint(_WORDLESS):
        return ["it has no word"]
    runs = list(zip(*(said[start:] for start in range(_RUN)), strict=False))
    distinct = len(set(runs))
    repeats = len(runs) >= _FEWEST_RUNS and distinct < _LEAST_DISTINCT * len(runs)
    if repeats and names.isdisjoint(_COUNTING):
        return [f"it repeats itself: {distinct} of {len(runs)} runs of {_RUN} words are distinct"]
    return []


CHECK = Check(version=3, agrees=agrees, by_reference=False, needs={"constraints"}, at_once=True)
