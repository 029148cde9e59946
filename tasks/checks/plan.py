"""Plans of a robot: the answer's actions are carried out one after the other, and the goal must
hold at the end. Any such plan is right.

The world stands in `Prompt.constraints`, in facts like those of the prompt's text, besides the
`goal`:

`stacks`       ("red blue", "green"): blocks from the table up. Actions: `blue to green`, `blue to
               table`, of blocks with nothing on them, onto blocks with nothing on them.
`grid`         ("3 by 3",) with cells numbered by rows from 1. `robot` is where it is; `blocked`
               cells cannot be entered; `things` are ("key at 5",). Actions: `go 4` to a cell
               beside, above or below; `take key`, of what is where the robot is, while it holds
               nothing; `drop key`.
`power`        with it each `go` costs 1, and at 0 there is none; `charge` at the cell `charger`
               makes it `full`.

Actions are separated by commas, semicolons, lines or "then"; numbers of a list do not count. More
than 100 are no plan.
"""

import re

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome, unusable
from tasks.verification.worlds import Blocks, Grid, World

_MOST_ACTIONS = 100
_SEPARATORS = re.compile(r"[,;\n]|\.\s|\bthen\b")
_NUMBERING = re.compile(r"^[ \t]*(?:\d+[.):][ \t]*|[-*](?:[ \t]+|$))", re.MULTILINE)


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer's plan reaches the goal. Raises InputError: the prompt's constraints
    describe no world and goal."""
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
            raise unusable(
                prompt, f"its constraint {name!r} is {value!r}; it takes a list of texts"
            )
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
    cells = all(cell.isdecimal() for cell in texts("blocked"))
    if size is None or not all(things) or not number("robot") or not cells:
        raise unusable(
            prompt,
            "its grid needs a size like '3 by 3', a robot, things like 'key at 5', and cells in"
            " 'blocked'",
        )
    grid = Grid(
        width=int(size[1]),
        height=int(size[2]),
        blocked=frozenset(int(cell) for cell in texts("blocked")),
        robot=number("robot"),
        things=tuple((thing[1], int(thing[2])) for thing in things if thing),
        power=number("power") if "power" in told else None,
        full=number("full"),
        charger=number("charger"),
    )
    return grid, set(texts("goal"))


CHECK = Check(version=1, agrees=agrees, by_reference=False, needs={"constraints"})
