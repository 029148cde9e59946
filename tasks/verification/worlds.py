"""Worlds of a robot: their states, the possible actions, and the facts that hold."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from schemas.examples import Constraint


@dataclass(frozen=True)
class Blocks:
    """Blocks in stacks, from the table up. The order of the stacks does not matter."""

    stacks: tuple[tuple[str, ...], ...]

    def __hash__(self) -> int:
        return hash(frozenset(self.stacks))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Blocks) and frozenset(self.stacks) == frozenset(other.stacks)

    def steps(self) -> Iterator[tuple[str, "Blocks"]]:
        """Every possible action, with the state after it."""
        for stack in self.stacks:
            rest = tuple(
                part for other in self.stacks if (part := other[:-1] if other == stack else other)
            )
            if len(stack) > 1:
                yield f"{stack[-1]} to table", Blocks((*rest, stack[-1:]))
            for onto in self.stacks:
                if onto != stack:
                    moved = ((*one, stack[-1]) if one == onto else one for one in rest)
                    yield f"{stack[-1]} to {onto[-1]}", Blocks(tuple(moved))

    def facts(self) -> set[str]:
        """`red on blue` and `blue on table`."""
        return {
            f"{block} on {below}"
            for stack in self.stacks
            for below, block in zip(("table", *stack), stack, strict=False)
        }


@dataclass(frozen=True)
class Grid:
    """A robot on a grid. `things` are (name, cell), 0 for the one that it holds; `power` is None
    where steps cost nothing."""

    width: int
    height: int
    blocked: frozenset[int]
    robot: int
    things: tuple[tuple[str, int], ...] = ()
    power: int | None = None
    full: int = 0
    charger: int = 0

    def steps(self) -> Iterator[tuple[str, "Grid"]]:
        """Every possible action, with the state after it."""
        if self.power != 0:
            for cell in self.beside(self.robot):
                power = None if self.power is None else self.power - 1
                yield f"go {cell}", replace(self, robot=cell, power=power)
        for index, (name, cell) in enumerate(self.things):
            if cell == self.robot and all(other for _, other in self.things):
                yield f"take {name}", self._with(index, 0)
            elif cell == 0:
                yield f"drop {name}", self._with(index, self.robot)
        if self.robot == self.charger:
            yield "charge", replace(self, power=self.full)

    def beside(self, cell: int) -> list[int]:
        """The neighbouring cells that the robot can enter."""
        row, column = divmod(cell - 1, self.width)
        around = [(row - 1, column), (row, column - 1), (row, column + 1), (row + 1, column)]
        inside = [(y, x) for y, x in around if 0 <= y < self.height and 0 <= x < self.width]
        cells = [y * self.width + x + 1 for y, x in inside]
        return [one for one in cells if one not in self.blocked]

    def _with(self, index: int, cell: int) -> "Grid":
        things = list(self.things)
        things[index] = (things[index][0], cell)
        return replace(self, things=tuple(things))

    def facts(self) -> set[str]:
        """`robot at 4`, and `key at 5` for each thing that it does not hold."""
        return {f"robot at {self.robot}"} | {
            f"{name} at {cell}" for name, cell in self.things if cell
        }


World = Blocks | Grid


def told(state: World, goal: set[str]) -> tuple[Constraint, ...]:
    """The constraints from which `world` reads this state."""
    if isinstance(state, Blocks):
        facts: dict[str, int | str | tuple[str, ...]] = {
            "stacks": tuple(" ".join(stack) for stack in state.stacks)
        }
    else:
        facts = {"grid": (f"{state.width} by {state.height}",), "robot": state.robot}
        if state.blocked:
            facts["blocked"] = tuple(map(str, sorted(state.blocked)))
        if state.things:
            facts["things"] = tuple(f"{name} at {cell}" for name, cell in state.things)
        if state.power is not None:
            facts |= {"power": state.power, "full": state.full, "charger": state.charger}
    facts["goal"] = tuple(sorted(goal))
    return tuple(Constraint(name=name, value=value) for name, value in facts.items())
