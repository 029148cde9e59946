"""Coding families: say what a line of Python gives. Lists are drawn here or by reasoning-gym
(number_sorting, number_filtering)."""

import random
from itertools import pairwise

from tasks.teaching.families import Problem
from tasks.teaching.families.reasoning_gym_problems import gym_problem
from tasks.teaching.families.words import number_list


def _whole_numbers(count: int) -> dict[str, int]:
    """reasoning-gym's settings for so many of them."""
    return {"min_numbers": count, "max_numbers": count, "min_decimals": 0, "max_decimals": 0}


def list_item(rng: random.Random, level: int) -> Problem:
    """One item of a list by its index: from the front (1-3, 5) or from the back (4), counted item
    by item."""
    length, most = ((3, 9), (4, 9), (5, 9), (4, 9), (4, 99))[level - 1]
    values = rng.sample(range(most + 1), length)
    index = -rng.randint(1, length) if level == 4 else rng.randrange(length)
    counted = range(-1, index - 1, -1) if level == 4 else range(index + 1)
    steps = ", ".join(f"{place} is {values[place]}" for place in counted)
    code = f"[{number_list(values)}][{index}]"
    return Problem(f"What is {code} in Python?", f"item {steps}", str(values[index]), "numeric")


def sort_list(rng: random.Random, level: int) -> Problem:
    """`sorted` of 3 to 5 numbers of one digit (1, 2, 4) or two (3, 5), by repeated selection.
    Problems: reasoning-gym `number_sorting`."""
    length, low, high = ((3, 0, 9), (4, 0, 9), (3, 10, 99), (5, 0, 9), (4, 10, 99))[level - 1]
    drawn = gym_problem(
        rng, "number_sorting", **_whole_numbers(length), min_value=low, max_value=high
    )
    values = [round(float(value)) for value in drawn["original_numbers"]]
    falling = drawn["direction"] == "descending"
    ordered = sorted(values, reverse=falling)
    code = f"sorted([{number_list(values)}]{', reverse=True' if falling else ''})"
    word = "largest" if falling else "smallest"
    return Problem(
        f"What is {code} in Python?",
        f"{word} first {', then '.join(map(str, ordered))}",
        f"[{number_list(ordered)}]",
    )


def filter_list(rng: random.Random, level: int) -> Problem:
    """A list comprehension with a condition, decided item by item. Problems: reasoning-gym
    `number_filtering`."""
    length, high = ((3, 9), (4, 9), (5, 9), (3, 99), (4, 99))[level - 1]
    while True:
        bounds = {"min_value": 0.0, "max_value": float(high)}
        drawn = gym_problem(rng, "number_filtering", **_whole_numbers(length), **bounds)
        values = [int(value) for value in drawn["original_numbers"]]
        limit = round(float(drawn["filter_value"]))
        if limit not in values:  # "larger than" and ">" then agree with "smaller than" and "<"
            break
    above = drawn["operation"] in ("keep_larger", "remove_smaller")
    chosen = [value for value in values if (value > limit) == above]
    sign = ">" if above else "<"
    steps = [
        f"{value}{sign}{limit} {'yes' if (value > limit) == above else 'no'}" for value in values
    ]
    code = f"[x for x in [{number_list(values)}] if x {sign} {limit}]"
    return Problem(
        f"What is {code} in Python?", f"keep {', '.join(steps)}", f"[{number_list(chosen)}]"
    )


def loop(rng: random.Random, level: int) -> Problem:
    """A variable through a `for` loop, one value per turn: of one digit (1, 2), below 25 (3),
    falling (4), larger (5)."""
    turns = rng.randint(*((2, 3), (3, 4), (2, 3), (2, 3), (3, 4))[level - 1])
    step = rng.randint(1, (2, 2, 5, 5, 9)[level - 1])
    variable = rng.choice("abcdefghjkmnpqrstuvwxyz")
    small, far = (0, 9 - turns * step), turns * step
    start = rng.randint(*(small, small, (0, 9), (far, 30), (10, 60))[level - 1])
    sign, change = ("-", -step) if level == 4 else ("+", step)
    values = [start + turn * change for turn in range(turns + 1)]
    code = f"{variable} = {start}; for i in range({turns}): {variable} {sign}= {step}"
    sums = [f"{turn} {a}{sign}{step}={b}" for turn, (a, b) in enumerate(pairwise(values), 1)]
    return Problem(f"{code}. What is {variable}?", ", ".join(sums), str(values[-1]), "numeric")
