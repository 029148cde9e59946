"""The level of a gate in the k-th night: all nights together, however many, promote a model by
mistake with a probability of at most 2.5 %.

A promotion is a mistake if one of the rules that it rests on is not true: the model is no better
than the champion where it had to win, or has lost the margin, or more, where it must not. Every
night has another candidate, so these are many hypotheses, tested one after the other, for years. A
test of 2.5 % each night is wrong in nearly every year. So the 2.5 % are spent (Foster and Stine
2008, "Alpha-investing"; Tian and Ramdas 2021, "Online control of the familywise error rate"): night
k has the level

    level(k) = 2.5 % (1 / log2(k + 1) - 1 / log2(k + 2))

The sum over all nights is 2.5 %, and what is left after k of them is 1 / log2(k + 2): a half after
2, a third after 6, a tenth after 1,022. Levels fall like 1 / (k log^2 k), nearly as slowly as a
convergent sum may; 1 / k(k+1) would ask for a seventh more prompts after a year.

Why it holds. A night that promotes rejects, at level(k), every hypothesis that would make it a
mistake: all must-not-lose rules and all must-win rules, or with `wins = "any"` one of them after
Holm's correction. If one of these is true, that happens with a probability of at most level(k)
(Berger 1982, intersection-union), given all that was before. By Boole's inequality the levels of
all nights add up, and nothing about how nights depend on one another is needed. Rates have exact
p-values, and so have metric functions of zeros and ones; of others the promise is as good as
Student's t.

*Given all that was before* is exact where a night asks prompts that no night asked before. Prompts
that stay the same have chosen the champion, and need another argument:

- A champion that beat the one before by far would be champion on any prompts, so these did not
  choose it, and the sum is exact.
- Otherwise luck on these prompts made it champion, and the same luck stands against the next
  candidate. Where models' answers to a prompt depend on each other through the prompt's difficulty
  alone, the probability of a mistake only falls: each right answer of the champion makes it
  likelier to be champion, and harder to pass against (Harris's inequality). Simulated:
  docs/measurements.md, 2026-11-25, "5 points better once". Without that assumption a night's level
  counts once for every model that might be champion by then.
- All of this assumes that nobody made a candidate by looking at the answers to these prompts.
  Lyceum never trains on held-out prompts. People who read reports and change a recipe do look;
  their remedy is new held-out prompts, not a smaller level (Dwork et al. 2015, "The reusable
  holdout").

Why no e-values (Ville's inequality; Ramdas et al. 2023, "Game-theoretic statistics and safe
anytime-valid inference"). They shine where one hypothesis is looked at again and again while data
come in. Here a candidate is looked at once, over all prompts that there are: its exact p-value at a
level fixed beforehand finds more than an e-value at 1 / level, and evidence for other nights'
candidates is none for tonight's.

The number of a night is taken in the store, `nights/<recipe>/<number>.json`, created once, like
champions: before a night promotes or says that it does not. So two nights at a time have two
numbers, and dropped runs give none back. A night that was killed or is retried has its number
again, if its rules and answers are those of the last one. A night without a comparison takes none.
"""

import math
from contextlib import suppress

from pydantic import Field, ValidationError

from flows.promotion.champion import entry_name, numbers
from flows.runs.wording import percent
from infra.store.store import Store
from schemas.base import StrictModel
from tasks.statistics.intervals import ALPHA

MISTAKES = ALPHA / 2
"""The largest probability that any night of a recipe promotes by mistake."""

TOP = "nights"
"""Where nights lie in a store."""


class Night(StrictModel):
    """`nights/<recipe>/<number>.json`: a night that judges a candidate, the number-th of its
    recipe.

    Attributes:
        level: the largest p-value that a rule may have.
        look: a digest of the rules and answers that are compared.
        run_id: the candidate.
    """

    number: int = Field(ge=1)
    level: float
    look: str
    run_id: str

    @property
    def text(self) -> str:
        return (
            f"night {self.number:,} asks for p of at most {self.level:.2g} by each rule, so that"
            f" all nights together promote by mistake with at most {percent(MISTAKES)}"
            f" ({percent(MISTAKES * left(self.number))} is left for those to come)"
        )


def left(nights: int) -> float:
    """The share of MISTAKES that is left after so many nights."""
    return 1 / math.log2(nights + 2)


def level(number: int) -> float:
    """The largest p-value that a rule may have in the number-th night, from 1."""
    return MISTAKES * (left(number - 1) - left(number))


def night_of(store: Store | None, recipe: str, run_id: str, look: str) -> Night:
    """The night that makes this comparison: the last one if it made the same, else the next one;
    without a store the first one. Reads only."""
    number = max(numbers(store, recipe, TOP), default=0) if store else 0
    if store is None or number == 0 or _look(store, recipe, number) != look:
        number += 1
    return Night(number=number, level=level(number), look=look, run_id=run_id)


def take(store: Store, recipe: str, night: Night) -> bool:
    """Take the night's number; False when another night has it: decide again."""
    taken = store.create_json(entry_name(recipe, night.number, TOP), night)
    return taken or _look(store, recipe, night.number) == night.look


def _look(store: Store, recipe: str, number: int) -> str | None:
    """The digest of what a night compared; None when it cannot be read."""
    with suppress(ValidationError):
        raw = store.read_bytes(entry_name(recipe, number, TOP))
        return Night.model_validate_json(raw or b"").look
    return None
