"""Coding families: say what a line of Python gives. Lists are drawn here or by reasoning-gym
(number_sorting, number_filtering)."""

import random

from tasks.teaching.families import Problem
from tasks.teaching.families.reasoning_gym_problems import gym_problem
from tasks.teaching.families.words import number_list


def list_item(rng: random.Random, level: int) -> Problem:
    """One item of a list by its index: from the front (1-3, 5) or from the back (4), counted item
    by item."""
    length, most = ((3, 9), (4, 9), (5, 9), (4, 9), (4, 99))[level - 1]
    values = rng.sample(range(most + 1), length)
    if level == 4:
        index = -rng.randint(1, length)
        steps = [f"{place} is {values[place]}" for place in range(-1, index - 1, -1)]
    else:
        index = rng.randrange(length)
        steps = [f"{place} is {values[place]}" for place in range(index + 1)]
    return Problem(
        f"What is [{number_list(values)}][{index}] in Python?",
        f"item {', '.join(steps)}",
        str(values[index]),
        "numeric",
    )


def sort_list(rng: random.Random, level: int) -> Problem:
    """`sorted` of 3 to 5 numbers of one digit (1, 2, 4) or two (3, 5), by repeated selection.
    Problems: reasoning-gym `number_sorting`."""
    length, low, high = ((3, 0, 9), (4, 0, 9), (3, 10, 99), (5, 0, 9), (4, 10, 99))[level - 1]
    drawn = gym_problem(
        rng,
        "number_sorting",
        min_numbers=length,
        max_numbers=length,
        min_decimals=0,
        max_decimals=0,
        min_value=low,
        max_value=high,
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
        drawn = gym_problem(
            rng,
            "number_filtering",
            min_numbers=length,
            max_numbers=length,
            min_decimals=0,
            max_decimals=0,
            min_value=0.0,
            max_value=float(high),
        )
        values = [int(value) for value in drawn["original_numbers"]]
        limit = round(float(drawn["filter_value"]))
        if limit not in values:  # "larger than" and ">" then agree with "smaller than" and "<"
            break
    above = drawn["operation"] in ("keep_larger", "remove_smaller")
    chosen = [value for value in values if (value > limit) == above]
    steps = [f"{value} {'yes' if (value > limit) == above else 'no'}" for value in values]
    code = f"[x for x in [{number_list(values)}] if x {'>' if above else '<'} {limit}]"
    return Problem(
        f"What is {code} in Python?", f"keep {', '.join(steps)}", f"[{number_list(chosen)}]"
    )


def loop(rng: random.Random, level: int) -> Problem:
    """A variable through a `for` loop, one value per turn: of one digit (1, 2), below 25 (3),
    falling (4), larger (5)."""
    turns = rng.randint(*((2, 3), (3, 4), (2, 3), (2, 3), (3, 4))[level - 1])
    step, variable = (
        rng.randint(1, (2, 2, 5, 5, 9)[level - 1]),
        rng.choice("abcdefghjkmnpqrstuvwxyz"),
    )
    start = rng.randint(
        *((0, 9 - turns * step), (0, 9 - turns * step), (0, 9), (turns * step, 30), (10, 60))[
            level - 1
        ]
    )
    sign, change = ("-", -step) if level == 4 else ("+", step)
    values = [start + turn * change for turn in range(turns + 1)]
    prompt = (
        f"{variable} = {start}; for i in range({turns}): {variable} {sign}= {step}. What is"
        f" {variable}?"
    )
    return Problem(
        prompt, f"{variable} is {', '.join(map(str, values))}", str(values[-1]), "numeric"
    )
