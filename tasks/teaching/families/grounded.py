"""Grounded question answering: a short context of 2 to 4 facts, and a question that it answers,
that it leaves open, or that is about something else.

Unanswerable questions ask about a person or place of the context for a fact that is missing, or
that the context states only about the other one (levels 4, 5). Out-of-domain questions are general
knowledge; a model that knows the answer must still refuse. The one right answer to both is
`GROUNDED_REFUSAL`.

A trace asks whether each fact is about the person or place in question and, if so, whether it
states what is asked; it quotes the fact that does. The two words of each comparison stand side by
side: a model learns in hundreds of steps whether neighbours are the same, and for distant words not
in thousands (docs/measurements.md, 2026-11-24).
"""

import random
from dataclasses import dataclass
from itertools import product

from schemas.examples import GROUNDED_REFUSAL, Grounding
from tasks.teaching.families import Problem
from tasks.teaching.families.trivia import TRIVIA
from tasks.teaching.families.words import CATEGORIES, CITIES, DAYS, JOBS, NAMES, THINGS


@dataclass(frozen=True)
class _Attribute:
    """One kind of fact: its name, how a context states it and how a question asks for it."""

    name: str
    fact: str
    question: str
    values: tuple[str, ...]


_PEOPLE = (
    _Attribute("city", "{who} lives in {value}.", "Where does {who} live?", CITIES),
    _Attribute("job", "{who} works as a {value}.", "What is the job of {who}?", JOBS),
    _Attribute(
        "color", "{who} likes {value}.", "Which color does {who} like?", CATEGORIES["color"]
    ),
    _Attribute("fruit", "{who} eats {value}.", "Which fruit does {who} eat?", CATEGORIES["fruit"]),
    _Attribute(
        "pet", "{who} has a pet {value}.", "Which pet does {who} have?", CATEGORIES["animal"]
    ),
)
_PLACES = (
    _Attribute("day", "The {who} opens on {value}.", "When does the {who} open?", DAYS),
    _Attribute("color", "The {who} is {value}.", "Which color is the {who}?", CATEGORIES["color"]),
    _Attribute("thing", "The {who} has a {value}.", "What does the {who} have?", THINGS),
    _Attribute("name", "The {who} is run by {value}.", "Who runs the {who}?", NAMES),
    _Attribute("city", "The {who} is in {value}.", "Where is the {who}?", CITIES),
)


def people(rng: random.Random, level: int, grounding: Grounding) -> Problem:
    """Facts about people: home, job, color, fruit, pet."""
    return _grounded(rng, level, grounding, NAMES, _PEOPLE)


def places(rng: random.Random, level: int, grounding: Grounding) -> Problem:
    """Facts about places: opening day, color, a thing there, who runs it, city."""
    return _grounded(rng, level, grounding, CATEGORIES["place"], _PLACES)


def _grounded(
    rng: random.Random,
    level: int,
    grounding: Grounding,
    subjects: tuple[str, ...],
    attributes: tuple[_Attribute, ...],
) -> Problem:
    """A context of 2 (level 1), 3 (2, 3) or 4 facts (4, 5) about two subjects, and a question of
    the given grounding.

    At levels 4 and 5 the unanswerable question asks about one subject what the context states about
    the other.
    """
    size = (2, 3, 3, 4, 4)[level - 1]
    pair = rng.sample(subjects, 2)
    # (subject, attribute, value), in the order of the context
    known: list[tuple[str, _Attribute, str]] = []
    shared, answer = level >= 4, GROUNDED_REFUSAL
    for index in range(size):
        who = pair[index % 2]
        taken = [attribute for other, attribute, _ in known if other == who or not shared]
        attribute = rng.choice([option for option in attributes if option not in taken])
        value = rng.choice([value for value in attribute.values if value not in pair])
        known.append((who, attribute, value))
    facts = [attribute.fact.format(who=who, value=value) for who, attribute, value in known]
    if grounding == "out_of_domain":
        question = rng.choice(TRIVIA)
        reasoning = f"The context is about {pair[0]} and {pair[1]}, the question is not."
    elif grounding == "answerable":
        who, attribute, answer = rng.choice(known)
        question = attribute.question.format(who=who)
    else:
        told = {(who, attribute) for who, attribute, _ in known}
        missing = [one for one in product(pair, attributes) if one not in told]
        mentioned = {attribute for _, attribute in told}
        of_other = [one for one in missing if one[1] in mentioned]
        who, attribute = rng.choice(of_other if shared and of_other else missing)
        question = attribute.question.format(who=who)
    proof = ""
    if grounding != "out_of_domain":
        steps = [
            f"{other} {who} yes, {one.name} {attribute.name} {'yes' if one is attribute else 'no'}."
            if other == who
            else f"{other} {who} no."
            for other, one, _ in known
        ]
        if grounding == "answerable":
            found = known.index((who, attribute, answer))
            steps = [*steps[: found + 1], f"Context says: {facts[found]}"]
            proof = f'"{facts[found]}"'
        reasoning = f"Asked {attribute.name} {who}. {' '.join(steps)}"
    context = " ".join(facts)
    prompt = f"Context: {context}\nQuestion: {question}"
    return Problem(prompt, reasoning, answer, "exact", context, grounding, proof=proof)
