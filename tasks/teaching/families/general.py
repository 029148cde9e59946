"""General families: days of the week, odd one out, members of a kind, and chained definitions."""

import random
from itertools import pairwise

from tasks.teaching.families import Problem
from tasks.teaching.families.words import CATEGORIES, DAYS, JOBS, KINDS, NAMES, walk


def weekday(rng: random.Random, level: int) -> Problem:
    """The day of the week some days ahead or back: a few days by counting down, many by taking
    whole weeks away first."""
    offset = rng.randint(*((1, 3), (2, 6), (7, 13), (14, 27), (28, 99))[level - 1])
    back, today, rest = rng.random() < 0.5, rng.randrange(7), offset % 7
    walk = [DAYS[(today + (-turn if back else turn)) % 7] for turn in range(rest + 1)]
    weeks = f"{offset}-{offset - rest}={rest}, " if offset >= 7 else ""
    steps = ", ".join(f"{rest - turn} {day}" for turn, day in enumerate(walk))
    ask = f"What day was it {offset} days ago?" if back else f"What day is it in {offset} days?"
    prompt = f"{rng.choice(NAMES)} says today is {DAYS[today]}. {ask}"
    return Problem(prompt, f"{weeks}days {steps}", walk[-1])


def odd_one_out(rng: random.Random, level: int) -> Problem:
    """The word of 3 to 5 that is of another kind than the rest, and at levels 4 and 5 the kind it
    is of."""
    count = (3, 4, 5, 4, 5)[level - 1]
    common, other = rng.sample(sorted(CATEGORIES), 2)
    odd = rng.choice(CATEGORIES[other])
    words = [*rng.sample(CATEGORIES[common], count - 1), odd]
    rng.shuffle(words)
    steps = ", ".join(
        f"{word} {KINDS[word]} {common} {'no' if word == odd else 'yes'}" for word in words
    )
    ask, answer = ("", odd) if level < 4 else (" and what is it", f"{odd} {other}")
    prompt = f"Which is the odd one out{ask}: {', '.join(words)}?"
    return Problem(prompt, f"mostly {common}: {steps}", answer)


def members(rng: random.Random, level: int) -> Problem:
    """The words of 3 to 6 that are of a given kind, in their order."""
    size, count = ((3, 1), (4, 1), (4, 2), (5, 2), (6, 3))[level - 1]
    kind = rng.choice(sorted(CATEGORIES))
    rest = [word for other, words in CATEGORIES.items() if other != kind for word in words]
    words = rng.sample(CATEGORIES[kind], count) + rng.sample(rest, size - count)
    rng.shuffle(words)
    steps, found = walk(((word, KINDS[word]) for word in words), kind)
    return Problem(f"Find the {kind} in: {', '.join(words)}.", steps, ", ".join(found))


def definition_chain(rng: random.Random, level: int) -> Problem:
    """'Every A is a B' statements, in order (1-3) or shuffled: what does a person, who is an A,
    turn out to be in the end?"""
    length = (2, 3, 4, 2, 3)[level - 1]
    name, kinds = rng.choice(NAMES), rng.sample(JOBS, length + 1)
    facts = [f"Every {a} is a {b}." for a, b in pairwise(kinds)]
    if level >= 4:
        rng.shuffle(facts)
    prompt = f"{' '.join(facts)} {name} is a {kinds[0]}. What is {name} in the end?"
    return Problem(prompt, f"is {', is '.join(kinds)}", kinds[-1])
