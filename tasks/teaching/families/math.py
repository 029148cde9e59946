"""Math families: column addition, digit sums, equal groups, and running totals (reasoning-gym)."""

import random
import re
from itertools import accumulate

from tasks.teaching.families import Problem
from tasks.teaching.families.reasoning_gym_problems import gym_problem
from tasks.teaching.families.words import CATEGORIES, NAMES, added, column_addition


def addition(rng: random.Random, level: int) -> Problem:
    """Column addition of two numbers of 1 to 3 digits, with the carry written in each column;
    without any carry at levels 1 and 3."""
    first, second = ((2, 1), (2, 1), (2, 2), (2, 2), (3, 3))[level - 1]
    a, b = (rng.randrange(10 ** (digits - 1), 10**digits) for digits in (first, second))
    if level in (1, 3):  # each column stays below ten
        b = sum(rng.randint(0, 9 - a // 10**place % 10) * 10**place for place in range(second))
    return Problem(f"What is {a}+{b}?", column_addition(a, b), str(a + b), "numeric")


def digit_sum(rng: random.Random, level: int) -> Problem:
    """The sum of the digits of a number of 3 to 6 digits, added one by one; at level 1 it stays
    below ten."""
    count, most = ((rng.randint(3, 4), 9), (3, 27), (4, 36), (5, 45), (6, 54))[level - 1]
    while True:
        digits = [rng.randint(1, 9), *(rng.randint(0, 9) for _ in range(count - 1))]
        if sum(digits) <= most:
            break
    totals = list(accumulate(digits))
    sums = zip(totals, digits[1:], totals[1:], strict=False)
    steps = ", ".join(f"{before}+{digit}={after}" for before, digit, after in sums)
    prompt = f"What is the digit sum of {''.join(map(str, digits))}?"
    return Problem(prompt, steps, str(totals[-1]), "numeric")


def groups(rng: random.Random, level: int) -> Problem:
    """Equal groups and some more, as a word problem: one product from the times table, then one
    sum."""
    most, low, high = ((3, 1, 3), (5, 1, 5), (5, 1, 9), (9, 1, 9), (9, 10, 99))[level - 1]
    a, b, extra = rng.randint(2, most), rng.randint(2, most), rng.randint(low, high)
    name, fruit = rng.choice(NAMES), rng.choice(CATEGORIES["fruit"])
    prompt = f"{name} has {a} bags of {b} {fruit} slices and {extra} more slices. How many slices?"
    total = a * b + extra
    return Problem(prompt, f"{a}*{b}={a * b}, {added(a * b, extra)}", str(total), "numeric")


def running_total(rng: random.Random, level: int) -> Problem:
    """A chain of sums and differences of one-digit numbers, from left to right.

    Every total is one digit (3 terms at level 1, 4 at level 2), not negative (3), or anything (3
    terms at level 4, 5 at level 5). Problems: reasoning-gym `chain_sum`.
    """
    count = (3, 4, 3, 3, 5)[level - 1]
    low, high = ((0, 9), (0, 9), (0, 27), (-18, 27), (-36, 45))[level - 1]
    while True:
        drawn = gym_problem(
            rng, "chain_sum", min_terms=count, max_terms=count, min_digits=1, max_digits=1
        )
        first, *rest = re.split(r" ([+-]) ", drawn["expression"])
        totals, steps = [int(first)], []
        for operator, value in zip(rest[::2], rest[1::2], strict=True):
            totals.append(totals[-1] + int(f"{operator}{value}"))
            steps.append(f"{totals[-2]}{operator}{value}={totals[-1]}")
        if low <= min(totals) and max(totals) <= high:
            break
    prompt = f"Calculate {drawn['expression'].replace(' ', '')}."
    return Problem(prompt, ", ".join(steps), drawn["answer"], "numeric")
