"""Science families: unit conversion, formulas, states of matter, and the legs of animals
(reasoning-gym)."""

import random

from tasks.teaching.families import Problem
from tasks.teaching.families.reasoning_gym_problems import gym_problem
from tasks.teaching.families.words import MATERIALS, added

_DECIMAL_UNITS = (
    ("centimeter", "centimeters", "millimeters", 10),
    ("meter", "meters", "centimeters", 100),
    ("meter", "meters", "millimeters", 1000),
    ("kilogram", "kilograms", "grams", 1000),
    ("liter", "liters", "milliliters", 1000),
    ("decade", "decades", "years", 10),
)
_SMALL_UNITS = (
    ("yard", "yards", "feet", 3), ("gallon", "gallons", "quarts", 4), ("week", "weeks", "days", 7),
    ("gallon", "gallons", "pints", 8),
    ("year", "years", "months", 12), ("foot", "feet", "inches", 12), ("day", "days", "hours", 24),
    ("hour", "hours", "minutes", 60),
)  # fmt: skip

_FORMULAS = (
    ("speed", "distance", "m", "time", "s", "/"),
    ("density", "mass", "g", "volume", "ml", "/"),
    ("power", "energy", "J", "time", "s", "/"),
    ("force", "mass", "kg", "acceleration", "m/s2", "*"),
    ("voltage", "current", "A", "resistance", "ohm", "*"),
    ("charge", "current", "A", "time", "s", "*"),
)

_LEGS = {
    "snake": 0, "bird": 2, "duck": 2, "cat": 4, "cow": 4, "dog": 4, "horse": 4, "lion": 4, "ant": 6,
    "bee": 6, "spider": 8, "crab": 10,
}  # fmt: skip
"""Legs of the animals of reasoning-gym's list that we use; its own answer must agree (see the
test)."""


def unit_conversion(rng: random.Random, level: int) -> Problem:
    """An amount in a smaller unit, the factor given: powers of ten (1, 2), one digit and a rest (3,
    4), any factor and a rest (5)."""
    units = _DECIMAL_UNITS if level <= 2 else _SMALL_UNITS[:4] if level <= 4 else _SMALL_UNITS
    one, large, small, factor = rng.choice(units)
    amount = rng.randint(*((2, 99), (100, 999), (2, 5), (2, 9), (2, 9))[level - 1])
    rest = 0 if level <= 2 else rng.randint(1, 30)
    total = amount * factor
    steps, asked = [f"{amount}*{factor}={total}"], f"{amount} {large}"
    if rest:
        steps.append(added(total, rest))
        asked = f"{asked} and {rest} {small}"
    prompt = f"1 {one} is {factor} {small}. How many {small} are {asked}?"
    return Problem(prompt, ", ".join(steps), str(total + rest), "numeric")


def formula(rng: random.Random, level: int) -> Problem:
    """One quantity from two by a formula the model has to know: quotients (speed, density, power),
    products (force, voltage, charge)."""
    name, first, first_unit, second, second_unit, operator = rng.choice(_FORMULAS)
    most = (4, 5, 6, 7, 9)[level - 1]
    x, y = rng.randint(2, most), rng.randint(2, most)
    a, b, result = (x * y, y, x) if operator == "/" else (x, y, x * y)
    prompt = (
        f"The {rng.choice(MATERIALS)} part has {first} {a} {first_unit} and {second} {b}"
        f" {second_unit}. What is its {name}?"
    )
    steps = f"{name} is {first} {operator} {second}, {a}{operator}{b}={result}"
    return Problem(prompt, steps, str(result), "numeric")


def state_of_matter(rng: random.Random, level: int) -> Problem:
    """Solid, liquid or gas by the melting and the boiling point, at one temperature (1, 2) or two;
    nearer the boundary at higher levels."""
    melts = rng.randint(20, 45)
    boils = melts + rng.randint(20, 45)
    near = (10, 6, 10, 6, 3)[level - 1]
    thing, asked, states, steps = rng.choice(MATERIALS), [], [], []
    for _ in range(1 if level <= 2 else 2):
        state = rng.choice(("solid", "liquid", "gas"))
        gap = rng.randint(1, near)
        inside = rng.choice((melts + gap, boils - gap))
        now = {"solid": melts - gap, "liquid": inside, "gas": boils + gap}[state]
        asked.append(f"{now} C")
        states.append(state)
        steps.append(f"{_above(now, melts)}, {_above(now, boils)}: {state}")
    prompt = (
        f"The {thing} mix melts at {melts} C and boils at {boils} C. What is it at"
        f" {' and then '.join(asked)}?"
    )
    return Problem(prompt, ", ".join(steps), " then ".join(states))


def _above(a: int, b: int) -> str:
    """Whether a > b, of two digits each: by their tens, and where those are the same by their
    ones."""
    (tens, ones), (other_tens, other_ones) = divmod(a, 10), divmod(b, 10)
    verdict = "yes" if a > b else "no"
    if tens != other_tens:
        return f"{tens}>{other_tens} {verdict}"
    return f"{tens}>{other_tens} same {ones}>{other_ones} {verdict}"


def legs(rng: random.Random, level: int) -> Problem:
    """The legs of two or three kinds of animal; how many legs each has is known, not given.
    Problems: reasoning-gym `leg_counting`."""
    kinds, most = ((2, 2), (2, 3), (2, 5), (2, 9), (3, 3))[level - 1]
    while True:
        counts = {"min_animals": kinds, "max_animals": kinds, "max_instances": most}
        drawn = gym_problem(rng, "leg_counting", **counts, min_instances=1)
        if all(animal in _LEGS for animal in drawn["animals"]):
            break
    total, steps = 0, []
    for index, (animal, count) in enumerate(drawn["animals"].items()):
        product = count * _LEGS[animal]
        steps.append(f"{animal} {count}*{_LEGS[animal]}={product}")
        if index:
            # three kinds are few of each
            steps.append(
                added(total, product) if kinds == 2 else f"{total}+{product}={total + product}"
            )
        total += product
    shown = ", ".join(f"{count} x {animal}" for animal, count in drawn["animals"].items())
    work = f"legs {', '.join(steps)}"
    return Problem(f"Count the legs: {shown}.", work, drawn["answer"], "numeric")
