"""Creative families with one right answer: acrostics, rhymes, sentences from word kinds, and
palindromes (reasoning-gym)."""

import random

from tasks.teaching.families import Problem
from tasks.teaching.families.reasoning_gym_problems import gym_problem
from tasks.teaching.families.words import CATEGORIES, NAMES, RHYMES

_ACROSTIC_KINDS = ("animal", "color", "place")


def acrostic(rng: random.Random, level: int) -> Problem:
    """A line whose words begin with given letters, from a bank that holds one word for each and one
    or two others."""
    letters, spare = ((2, 1), (2, 2), (3, 1), (3, 2), (4, 2))[level - 1]
    words: list[str] = []
    while len(words) < letters + spare:
        word = rng.choice(CATEGORIES[rng.choice(_ACROSTIC_KINDS)])
        if all(word[0] != other[0] for other in words):
            words.append(word)
    chosen = words[:letters]
    bank = rng.sample(words, len(words))
    steps = ", ".join(f"{word[0]} {word}" for word in chosen)
    initials = ", ".join(word[0] for word in chosen)
    prompt = f"Write an acrostic for {initials} with the words {', '.join(bank)}."
    return Problem(prompt, f"letters {steps}", " ".join(chosen))


def rhyme(rng: random.Random, level: int) -> Problem:
    """The one word of 3 to 5 that rhymes with a given word (1-3), or the rhymes of two words in
    turn (4, 5)."""
    targets, spare = ((1, 2), (1, 3), (1, 4), (2, 2), (2, 3))[level - 1]
    endings = rng.sample(sorted(RHYMES), targets + spare)
    pairs = [rng.sample(RHYMES[ending], 2) for ending in endings[:targets]]
    given, rhyming = zip(*pairs, strict=True)
    choices = [*rhyming, *(rng.choice(RHYMES[ending]) for ending in endings[targets:])]
    rng.shuffle(choices)
    steps = [" ".join(step) for step in zip(given, endings, rhyming, strict=False)]
    prompt = f"What rhymes with {' and then '.join(given)}: {', '.join(choices)}?"
    return Problem(prompt, f"endings {', '.join(steps)}", " ".join(rhyming))


_FRAMES = (
    "The {color} {animal} sleeps.",
    "The {animal} took the {fruit} to the {place}.",
    "The {color} {animal} ran to the {place}.",
    "The {color} {animal} left the {place} by {vehicle}.",
    "The {color} {animal} took the {tool} and the {fruit} to the {place}.",
)


def story_line(rng: random.Random, level: int) -> Problem:
    """A sentence with gaps for kinds of words, filled from a shuffled bank, which at levels 1, 3
    and 4 holds a word too many."""
    frame = _FRAMES[level - 1]
    kinds = [part.split("}")[0] for part in frame.split("{")[1:]]
    words = {kind: rng.choice(CATEGORIES[kind]) for kind in kinds}
    bank = list(words.values())
    if level in (1, 3, 4):
        spare = rng.choice([kind for kind in CATEGORIES if kind not in kinds])
        bank.append(rng.choice(CATEGORIES[spare]))
    rng.shuffle(bank)
    steps = [f"{kind} {word}" for kind, word in words.items()]
    gaps = frame.replace("{", "(").replace("}", ")")
    prompt = f"{rng.choice(NAMES)} writes: {gaps} Fill it with {', '.join(bank)}."
    return Problem(prompt, f"words {', '.join(steps)}", frame.format(**words))


def palindrome(rng: random.Random, level: int) -> Problem:
    """A palindrome completed from its first half, letter by letter. Palindromes: reasoning-gym
    `palindrome_generation`."""
    length = (3, 4, 5, 6, 7)[level - 1]
    drawn = gym_problem(rng, "palindrome_generation", min_length=length, max_length=length)
    whole, half = drawn["generated_palindrome"], (length + 1) // 2
    shown = " ".join([*whole[:half], *"_" * (length - half)])
    steps = f"front {' '.join(whole[:half])}, back {' '.join(whole[half:])}"
    return Problem(f"Complete the palindrome {shown}", steps, " ".join(whole))
