"""Robot planning families: stacking blocks with one arm, carrying things round obstacles, and
reaching a cell before the power runs out.

The answer is a list of actions, which `tasks.checks.plan` carries out; every list that reaches the
goal is right. The worked answer is a shortest one, and its trace shows what each action changes:
the stacks, or the number of the cell as a sum."""

import random
from collections import deque

from schemas.examples import Domain
from tasks.teaching.families import Problem
from tasks.teaching.families.words import CATEGORIES, THINGS, joined
from tasks.verification.worlds import Blocks, Grid, World, told

DOMAIN = Domain.GENERAL

_SIDE = 3
_CELLS = range(1, _SIDE * _SIDE + 1)
_HERE = f"On a {_SIDE} by {_SIDE} grid of cells 1 to {_SIDE * _SIDE} a robot is at"


def stack(rng: random.Random, level: int) -> Problem:
    """Blocks world: 3 to 5 blocks, one to four moves; at levels 3 to 5 something stands in the
    way."""
    count, moves = ((3, (1, 1)), (3, (2, 2)), (4, (2, 2)), (4, (3, 3)), (5, (3, 4)))[level - 1]
    while True:
        blocks = rng.sample(CATEGORIES["color"], count)
        start = Blocks(_stacked(rng, blocks))
        onto, block = rng.sample(blocks, 2)
        goal = {f"{block} on {onto}"}
        if level == 5 and rng.random() >= 0.5:
            goal.add(f"{onto} on table")
        found = _shortest(start, goal, moves[1])
        if found is not None and len(found) >= moves[0]:
            break
    states = [f"{action}: {_piles(state)}" for action, state in found]
    on = ", ".join(sorted(start.facts(), key=lambda fact: blocks.index(fact.split()[0])))
    aim = " and ".join(fact.replace(" on ", " is on ") for fact in sorted(goal))
    prompt = (
        f"A robot moves one top block at a time: {on}. Plan moves like {blocks[0]} to table until"
        f" {aim}."
    )
    return _problem(prompt, "; ".join([_piles(start), *states]), found, start, goal)


def deliver(rng: random.Random, level: int) -> Problem:
    """Pick and place on a grid: carry one thing (1-3), by a detour round two cells (4), or two
    things with one hand (5)."""
    low, high, count = ((3, 4, 1), (5, 5, 1), (6, 6, 1), (6, 8, 1), (8, 10, 2))[level - 1]
    while True:
        names, cells = rng.sample(THINGS, count), rng.sample(_CELLS, 3 + 2 * count)
        places, aims = cells[1 : 1 + count], cells[1 + count : 1 + 2 * count]
        blocked = frozenset(cells[-2:] if level == 4 else cells[-1:] if level == 3 else ())
        start = Grid(_SIDE, _SIDE, blocked, cells[0], tuple(zip(names, places, strict=True)))
        goal = {f"{name} at {aim}" for name, aim in zip(names, aims, strict=True)}
        found = _shortest(start, goal, high)
        if found is None or len(found) < low:
            continue
        free = Grid(_SIDE, _SIDE, frozenset(), start.robot, start.things)
        if level != 4 or len(_shortest(free, goal, high) or ()) < len(found):
            break
    where = joined([f"the {name} at {cell}" for name, cell in start.things])
    task = joined([f"the {name} to {aim}" for name, aim in zip(names, aims, strict=True)])
    wall = f" It cannot enter {joined([str(cell) for cell in sorted(blocked)])}." if blocked else ""
    hand = " It holds one." if count > 1 else ""
    prompt = (
        f"{_HERE} {start.robot}, {where}.{wall}{hand} Bring {task}. Use go {aims[0]}, take"
        f" {names[0]}, drop {names[0]}."
    )
    return _problem(prompt, ", ".join(_walk(start, found)), found, start, goal)


def recharge(rng: random.Random, level: int) -> Problem:
    """Reach a cell on a grid with little power: enough of it at level 1, else by way of the
    charger; with blocked cells from level 4."""
    low, high, walls = ((2, 3, 0), (3, 4, 0), (5, 5, 0), (5, 6, 1), (6, 8, 2))[level - 1]
    while True:
        robot, aim, charger, *others = rng.sample(_CELLS, 3 + walls)
        power, full = rng.randint(1, 4), rng.randint(2, 6)
        blocked = frozenset(others)
        start = Grid(_SIDE, _SIDE, blocked, robot, power=power, full=full, charger=charger)
        goal = {f"robot at {aim}"}
        found = _shortest(start, goal, high) if full > power else None
        if found is None or len(found) < low:
            continue
        if (level == 1) == all(action != "charge" for action, _ in found):
            break
    wall = f" It cannot enter {joined([str(cell) for cell in sorted(others)])}." if others else ""
    prompt = (
        f"{_HERE} {robot} with power {power}. A go costs 1, charge at {charger} makes it"
        f" {full}.{wall} Reach {aim}. Use go {aim}, charge."
    )
    return _problem(prompt, ", ".join(_walk(start, found)), found, start, goal)


def _problem(
    prompt: str, reasoning: str, found: list[tuple[str, World]], start: World, goal: set[str]
) -> Problem:
    answer = ", ".join(action for action, _ in found)
    return Problem(prompt, reasoning, answer, "plan", constraints=told(start, goal))


def _shortest(start: World, goal: set[str], most: int) -> list[tuple[str, World]] | None:
    """A plan with the fewest actions, not more than `most`, and the state after each; None: there
    is none. Breadth first."""
    seen, waiting = {start}, deque[tuple[World, list[tuple[str, World]]]]([(start, [])])
    while waiting:
        state, done = waiting.popleft()
        if goal <= state.facts():
            return done
        for action, after in state.steps() if len(done) < most else ():
            if after not in seen:
                seen.add(after)
                waiting.append((after, [*done, (action, after)]))
    return None


def _stacked(rng: random.Random, blocks: list[str]) -> tuple[tuple[str, ...], ...]:
    """The blocks, each on the table or on the one before it."""
    stacks: list[tuple[str, ...]] = []
    for block in blocks:
        if stacks and rng.random() < 0.5:
            stacks[-1] = (*stacks[-1], block)
        else:
            stacks.append((block,))
    return tuple(stacks)


def _piles(state: World) -> str:
    assert isinstance(state, Blocks)
    return ", ".join(" ".join(stack) for stack in state.stacks)


def _walk(start: Grid, found: list[tuple[str, World]]) -> list[str]:
    """`4+1=5` for a step to the right, with the power that is left after it; other actions as they
    are."""
    lines, here = [], start
    for action, state in found:
        assert isinstance(state, Grid)
        step = state.robot - here.robot
        power = "" if state.power is None else f" power {state.power}"
        lines.append(f"{here.robot}{step:+}={state.robot}{power}" if step else f"{action}{power}")
        here = state
    return lines
