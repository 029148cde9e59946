"""Plans of a robot: the answer's actions are carried out one after the other, and the goal must hold at the end. Any such plan is right.

The world stands in `Prompt.constraints`, in facts like those of the prompt's text, besides the `goal`:

`stacks`       ("red blue", "green"): blocks from the table up. Actions: `blue to green`, `blue to table`, of blocks with nothing on them,
               onto blocks with nothing on them.
`grid`         ("3 by 3",) with cells numbered by rows from 1. `robot` is where it is; `blocked` cells cannot be entered; `things` are
               ("key at 5",). Actions: `go 4` to a cell beside, above or below; `take key`, of what is where the robot is, while it holds
               nothing; `drop key`.
`power`        with it each `go` costs 1, and at 0 there is none; `charge` at the cell `charger` makes it `full`.

Actions are separated by commas, semicolons, lines or "then"; numbers of a list do not count. More than 100 are no plan.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from schemas.examples import Constraint, Prompt
from tasks.contract.check import Check, Outcome, unusable

_MOST_ACTIONS = 100
_SEPARATORS = re.compile(r"[,;\n]|\.\s|\bthen\b")
_NUMBERING = re.compile(r"^[ \t]*(?:\d+[.):][ \t]*|[-*](?:[ \t]+|$))", re.MULTILINE)


@dataclass(frozen=True)
class Blocks:
    """Blocks in stacks, from the table up. The order of the stacks says nothing."""

    stacks: tuple[tuple[str, ...], ...]

    def __hash__(self) -> int:
        return hash(frozenset(self.stacks))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocks) and frozenset(self.stacks) == frozenset(other.stacks)

    def steps(self) -> Iterator[tuple[str, "Blocks"]]:
        """Every action that can be done, and what comes of it."""
        for stack in self.stacks:
            rest = tuple(part for other in self.stacks if (part := other[:-1] if other == stack else other))
            if len(stack) > 1:
                yield f"{stack[-1]} to table", Blocks((*rest, stack[-1:]))
            for onto in self.stacks:
                if onto != stack:
                    yield (
                        f"{stack[-1]} to {onto[-1]}",
                        Blocks(tuple((*other, stack[-1]) if other == onto else other for other in rest)),
                    )

    def facts(self) -> set[str]:
        """`red on blue` and `blue on table`."""
        return {f"{block} on {below}" for stack in self.stacks for below, block in zip(("table", *stack), stack, strict=False)}


@dataclass(frozen=True)
class Grid:
    """A robot on a grid. `things` are (name, cell), 0 for the one that it holds; `power` is None where steps cost nothing."""

    width: int
    height: int
    blocked: frozenset[int]
    robot: int
    things: tuple[tuple[str, int], ...] = ()
    power: int | None = None
    full: int = 0
    charger: int = 0

    def steps(self) -> Iterator[tuple[str, "Grid"]]:
        """Every action that can be done, and what comes of it."""
        if self.power != 0:
            for cell in self.beside(self.robot):
                yield f"go {cell}", replace(self, robot=cell, power=None if self.power is None else self.power - 1)
        for index, (name, cell) in enumerate(self.things):
            if cell == self.robot and all(other for _, other in self.things):
                yield f"take {name}", self._with(index, 0)
            elif cell == 0:
                yield f"drop {name}", self._with(index, self.robot)
        if self.robot == self.charger:
            yield "charge", replace(self, power=self.full)

    def beside(self, cell: int) -> list[int]:
        """The cells that can be entered from one."""
        row, column = divmod(cell - 1, self.width)
        around = [(row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column)]
        cells = [one * self.width + other + 1 for one, other in around if 0 <= one < self.height and 0 <= other < self.width]
        return [one for one in cells if one not in self.blocked]

    def _with(self, index: int, cell: int) -> "Grid":
        return replace(self, things=(*self.things[:index], (self.things[index][0], cell), *self.things[index + 1 :]))

    def facts(self) -> set[str]:
        """`robot at 4`, and `key at 5` for each thing that it does not hold."""
        return {f"robot at {self.robot}"} | {f"{name} at {cell}" for name, cell in self.things if cell}


World = Blocks | Grid


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer's plan reaches the goal. Raises InputError: the prompt's constraints describe no world and goal."""
    state: World
    state, goal = world(prompt)
    actions = plan(answer)
    if len(actions) > _MOST_ACTIONS:
        return Outcome(False, f"{len(actions)} actions, more than {_MOST_ACTIONS}")
    for number, action in enumerate(actions, 1):
        after = dict[str, World](state.steps()).get(action)
        if after is None:
            return Outcome(False, f"action {number}, {action[:100]!r}, cannot be done")
        state = after
    missing = sorted(goal - state.facts())
    return Outcome(not missing, f"at the end not {', not '.join(missing)}" if missing else "")


def plan(answer: str) -> list[str]:
    """The actions of an answer, in lower case."""
    parts = [part.strip(" .\t") for part in _SEPARATORS.split(_NUMBERING.sub("", answer.lower()))]
    return [" ".join(part.split()) for part in parts if part]


def world(prompt: Prompt) -> tuple[World, set[str]]:
    """The state that a prompt begins with, and the facts of its goal. Raises InputError."""
    told = {constraint.name: constraint.value for constraint in prompt.constraints}

    def texts(name: str) -> tuple[str, ...]:
        value = told.get(name, ())
        if not isinstance(value, tuple):
            raise unusable(prompt, f"its constraint {name!r} is {value!r}; it takes a list of texts")
        return value

    def number(name: str) -> int:
        value = told.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int):
            raise unusable(prompt, f"its constraint {name!r} is {value!r}; it takes a whole number")
        return value

    if not texts("goal") or ("stacks" in told) == ("grid" in told):
        raise unusable(prompt, "its constraints need a goal, and either stacks or a grid")
    if "stacks" in told:
        return Blocks(tuple(tuple(stack.split()) for stack in texts("stacks"))), set(texts("goal"))
    size = re.fullmatch(r"(\d+) by (\d+)", " ".join(texts("grid")))
    things = [re.fullmatch(r"(\w+) at (\d+)", thing) for thing in texts("things")]
    if size is None or not all(things) or not number("robot") or not all(cell.isdecimal() for cell in texts("blocked")):
        raise unusable(prompt, "its grid needs a size like '3 by 3', a robot, things like 'key at 5', and cells in 'blocked'")
    return (
        Grid(
            width=int(size[1]),
            height=int(size[2]),
            blocked=frozenset(int(cell) for cell in texts("blocked")),
            robot=number("robot"),
            things=tuple((thing[1], int(thing[2])) for thing in things if thing),
            power=number("power") if "power" in told else None,
            full=number("full"),
            charger=number("charger"),
        ),
        set(texts("goal")),
    )


def told(state: World, goal: set[str]) -> tuple[Constraint, ...]:
    """The constraints that `world` reads this from."""
    if isinstance(state, Blocks):
        facts: dict[str, int | str | tuple[str, ...]] = {"stacks": tuple(" ".join(stack) for stack in state.stacks)}
    else:
        facts = {"grid": (f"{state.width} by {state.height}",), "robot": state.robot}
        facts |= {"blocked": tuple(map(str, sorted(state.blocked)))} if state.blocked else {}
        facts |= {"things": tuple(f"{name} at {cell}" for name, cell in state.things)} if state.things else {}
        facts |= {"power": state.power, "full": state.full, "charger": state.charger} if state.power is not None else {}
    return tuple(Constraint(name=name, value=value) for name, value in {**facts, "goal": tuple(sorted(goal))}.items())


CHECK = Check(version=1, agrees=agrees, by_reference=False, needs={"constraints"})
