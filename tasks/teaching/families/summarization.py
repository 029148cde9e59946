"""Summarization families: say what matters in a few short sentences."""

import random

from tasks.teaching.families import Problem
from tasks.teaching.families.words import (
    CATEGORIES,
    CITIES,
    DAYS,
    JOBS,
    NAMES,
    THINGS,
    joined,
    walk,
)

_VERBS = ("bought", "broke", "found", "lost", "made", "sold", "took", "washed")

_WEATHER = ("cloudy", "cold", "dry", "foggy", "rainy", "sunny", "warm", "windy")
_TOPICS = {
    "weather": ("The weather is {}.", _WEATHER),
    "door": ("The door is {}.", CATEGORIES["color"]),
    "guest": ("The guest is a {}.", JOBS),
    "party": ("The party is on {}.", DAYS),
    "pet": ("The pet is a {}.", CATEGORIES["animal"]),
    "shop": ("The shop sells {}.", CATEGORIES["fruit"]),
    "train": ("The train goes to {}.", CITIES),
}

Event = tuple[str, str, str]
"""Who did what, with which thing."""


def _events(rng: random.Random, count: int) -> list[Event]:
    """Events of different people with different things."""
    people, things = rng.sample(NAMES, count), rng.sample(THINGS, count)
    return [(who, rng.choice(_VERBS), thing) for who, thing in zip(people, things, strict=True)]


def _sentences(events: list[Event]) -> list[str]:
    return [f"{who} {verb} the {thing}." for who, verb, thing in events]


def _topics(rng: random.Random, count: int) -> dict[str, str]:
    """A sentence on each of `count` topics."""
    chosen = rng.sample(sorted(_TOPICS), count)
    return {name: _TOPICS[name][0].format(rng.choice(_TOPICS[name][1])) for name in chosen}


def topic(rng: random.Random, level: int) -> Problem:
    """Draw what a text of 2 to 5 sentences says about one topic (1-4), or about two (5)."""
    sentences = _topics(rng, (2, 3, 4, 5, 4)[level - 1])
    asked = rng.sample(list(sentences), 2 if level == 5 else 1)
    answer = " ".join(sentences[topic] for topic in asked)
    question = " and ".join(f"the {topic}" for topic in asked)
    prompt = f"Text: {' '.join(sentences.values())} Sum up {question}."
    return Problem(prompt, f"text says {answer}", answer)


def people(rng: random.Random, level: int) -> Problem:
    """Who appears in a text: 2 to 4 people between 1 to 3 sentences about other things."""
    count, others = ((2, 1), (2, 2), (3, 1), (3, 2), (4, 2))[level - 1]
    events = _events(rng, count)
    sentences = _sentences(events)
    for sentence in _topics(rng, others).values():
        sentences.insert(rng.randint(0, len(sentences)), sentence)
    names = [who for who, _, _ in events]
    prompt = f"Text: {' '.join(sentences)} Name the people."
    return Problem(prompt, f"people {', '.join(names)}", joined(names))


def merge(rng: random.Random, level: int) -> Problem:
    """One sentence for 2 to 4 people who did the same (1-3), at levels 4 and 5 among one or two who
    did something else."""
    count, spare = ((2, 0), (3, 0), (4, 0), (2, 1), (3, 2))[level - 1]
    events = _events(rng, count + spare)
    _, verb, thing = events[0]
    events[:count] = [(who, verb, thing) for who, _, _ in events[:count]]
    rng.shuffle(events)
    steps, names = walk(((who, its) for who, _, its in events), thing)
    prompt = f"Text: {' '.join(_sentences(events))} Who did the same? Use one sentence."
    did = f"{verb} the {thing}"
    return Problem(prompt, f"same {did}: {steps}", f"{joined(names)} {did}.")


def order(rng: random.Random, level: int) -> Problem:
    """The things in the order of 2 to 4 events (1-3), or the other way round (4, 5)."""
    events = _events(rng, (2, 3, 4, 2, 3)[level - 1])
    things = [thing for _, _, thing in events]
    if level >= 4:
        things.reverse()
    ask = "from first to last" if level < 4 else "from last to first"
    prompt = f"Text: {' '.join(_sentences(events))} List the things {ask}."
    return Problem(prompt, f"first {', then '.join(things)}", ", ".join(things))
