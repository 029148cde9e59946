"""Robot planning: the families' plans, carried out by a second simulator that knows only the
English of the prompt; and check `plan`."""

import re
from collections import Counter
from functools import cache

import pytest

from schemas.base import InputError
from schemas.examples import Domain, Example, Prompt, prompt_id
from tasks.contract.teacher import TEACHERS
from tasks.teachers import procedural
from tasks.teaching.families import domain_of, families
from tasks.verification.verify import Verdict, verify
from tests.tasks import prompts
from tests.tasks.prompts import told, trace

ROWS = 300


def config(**values) -> procedural.Config:
    return TEACHERS.parse({"name": "procedural", "grounded": {}, **values}, "test")


@cache
def taught() -> tuple[Example, ...]:
    return tuple(procedural.rows(config(rows={"general": ROWS}, families=["robotics"]), 7))


def judged(prompt: Prompt, answer: str) -> Verdict:
    return verify(prompt, trace(answer))


# A simulator of its own: states are dicts, what it knows it reads in the prompt.


def carried_out(prompt: str, actions: list[str]) -> bool:
    """Whether the actions can be done in this order and reach the goal."""
    return (_blocks if "block" in prompt else _grid)(prompt, actions)


def _blocks(prompt: str, actions: list[str]) -> bool:
    told, aim = re.fullmatch(
        r"A robot moves one top block at a time: (.*)\. Plan moves like .* until (.*)\.", prompt
    ).groups()
    under = dict(re.findall(r"(\w+) on (\w+)", told))
    for action in actions:
        block, onto = action.split(" to ")
        clear = {one for one in under if one not in under.values()}
        if block not in clear or onto not in (clear | {"table"}) - {block, under[block]}:
            return False
        under[block] = onto
    return all(under[block] == onto for block, onto in re.findall(r"(\w+) is on (\w+)", aim))


def _grid(prompt: str, actions: list[str]) -> bool:
    at = int(re.search(r"a robot is at (\d)", prompt)[1])
    entered = re.search(r"cannot enter ([^.]*)", prompt) or [""]
    walls = {int(cell) for cell in re.findall(r"\d", entered[0])}
    where = {name: int(cell) for name, cell in re.findall(r"the (\w+) at (\d)", prompt)}
    goal = {name: int(cell) for name, cell in re.findall(r"the (\w+) to (\d)", prompt)}
    battery = re.search(r"with power (\d)\. A go costs 1, charge at (\d) makes it (\d)", prompt)
    power, charger, full = map(int, battery.groups()) if battery else (99, 0, 0)
    holds = None
    for action in actions:
        verb, _, what = action.partition(" ")
        if verb == "go":
            to = int(what)
            (x, y), (u, v) = divmod(at - 1, 3), divmod(to - 1, 3)
            if abs(x - u) + abs(y - v) != 1 or to in walls or not 1 <= to <= 9 or power == 0:
                return False
            at, power = to, power - 1
        elif verb == "take" and holds is None and where.get(what) == at:
            holds, where[what] = what, 0
        elif verb == "drop" and holds == what:
            holds, where[what] = None, at
        elif action == "charge" and at == charger:
            power = full
        else:
            return False
    reach = re.search(r"Reach (\d)", prompt)
    return (
        all(where[name] == cell for name, cell in goal.items())
        and (reach is None or at == int(reach[1]))
        and bool(goal or reach)
    )


def test_every_worked_plan_reaches_the_goal_that_the_prompt_tells_of() -> None:
    assert Counter((row.family, row.difficulty) for row in taught()) == {
        (f"robotics.{name}", level): ROWS // 15
        for name in ("stack", "deliver", "recharge")
        for level in range(1, 6)
    }
    for row in taught():
        assert row.answer, row
        assert carried_out(row.prompt, row.answer.split(", ")), row
        assert verify(row, row.response()).exact, row


def test_a_plan_with_an_action_less_or_two_swapped_is_judged_as_the_second_simulator_does() -> None:
    """Most are wrong; where the order of two moves does not matter both say so."""
    wrong = 0
    for row in taught():
        actions = row.answer.split(", ")
        swapped = [*actions[1:2], actions[0], *actions[2:]]
        others = [actions[:-1], actions[1:], [*actions, actions[0]], actions[::-1], swapped]
        for other in others:
            right = carried_out(row.prompt, other)
            assert judged(row, ", ".join(other) or "-").exact == right, (row, other)
            wrong += not right
    assert wrong > 4 * ROWS * 0.8


def test_another_plan_than_the_worked_one_is_right_too() -> None:
    """A detour there and back, before the plan begins."""
    longer = 0
    for row in taught():
        world = {constraint.name: constraint.value for constraint in row.constraints}
        if "grid" not in world or "power" in world:
            continue
        plans = [f"go {cell}, go {world['robot']}, {row.answer}" for cell in range(1, 10)]
        for plan in plans:
            if carried_out(row.prompt, plan.split(", ")):
                assert judged(row, plan).exact
                longer += 1
    assert longer > 100


def test_every_sum_of_a_trace_is_true_and_its_cells_are_the_answers() -> None:
    for row in taught():
        sums = re.findall(r"(\d[+-]\d)=(\d)", row.reasoning)
        assert all(eval(left) == int(right) for left, right in sums)
        assert [right for _, right in sums] == re.findall(r"go (\d)", row.answer)


def test_there_are_obstacles_and_too_little_power_at_the_levels_that_have_them() -> None:
    for row in taught():
        world = {constraint.name: constraint.value for constraint in row.constraints}
        if row.family == "robotics.recharge":
            assert ("charge" in row.answer.split(", ")) == (row.difficulty > 1)
            assert world["power"] < world["full"]
        if row.family == "robotics.deliver":
            assert len(world.get("blocked", ())) == {3: 1, 4: 2}.get(row.difficulty, 0)


def test_prompts_are_unique_short_and_of_few_tokens() -> None:
    from tasks.data.tokens import prompt_tokens, response_tokens
    from tasks.models.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    assert len({row.id for row in taught()}) == ROWS
    for row in taught():
        assert row.id == prompt_id(row.prompt)
        assert len(row.prompt.split()) <= 48
        assert len(prompt_tokens(tokenizer, row.prompt)) <= 96
        assert len(response_tokens(tokenizer, row.response())) <= 120


# Choosing families


def test_families_are_chosen_by_module_or_by_name_and_count_for_their_domain() -> None:
    assert list(families("robotics")) == ["stack", "deliver", "recharge"]
    assert domain_of("robotics") == Domain.GENERAL
    chosen = config(rows={"general": 12, "math": 4}, families=["robotics.stack", "math"])
    assert Counter(row.family for row in procedural.rows(chosen, 0)) == {
        "robotics.stack": 12,
        **{f"math.{name}": 1 for name in families("math")},
    }


def test_a_domains_own_families_are_what_is_drawn_without_a_choice() -> None:
    rows = {"math": 40, "general": 40}
    own = list(procedural.rows(config(rows=rows), 3))
    assert own == list(procedural.rows(config(rows=rows, families=["general", "math"]), 3))
    assert not any(row.family.startswith("robotics") for row in own)


def test_a_wrong_choice_is_an_error_that_lists_what_there_is() -> None:
    with pytest.raises(InputError, match="no family 'fly'; it has stack, deliver, recharge"):
        config(families=["robotics.fly"])
    for unknown in ("cooking", "words", "os/path", "grounded"):
        with pytest.raises(InputError, match=f"no families are called '{unknown}'"):
            config(families=[unknown])
    with pytest.raises(InputError, match="rows has 5 rows of math, but families has none"):
        list(procedural.rows(config(rows={"general": 5, "math": 5}, families=["robotics"]), 0))


# The check


def asked(**world) -> Prompt:
    return prompts.prompt("", "plan", constraints=told(world))


BLOCKS = {"stacks": ("red blue", "green"), "goal": ("green on red",)}
GRID = {"grid": ("3 by 3",), "robot": 1, "things": ("key at 2",), "blocked": ("5",)}
GRID |= {"goal": ("key at 3",)}
POWER = {"grid": ("4 by 1",), "robot": 1, "power": 1, "full": 2, "charger": 2}
POWER |= {"goal": ("robot at 4",)}
TWO = {"things": ("key at 1", "cup at 1"), "goal": ("key at 2", "cup at 2")}
TWO |= {"grid": ("2 by 1",), "robot": 1}


@pytest.mark.parametrize(
    ("world", "answer", "detail"),
    [
        (BLOCKS, "blue to table, green to red", ""),
        (BLOCKS, "1. Blue to green\n2. blue  to table.\n3. green to red.", ""),
        (BLOCKS, "blue to table, then green to red", ""),
        (BLOCKS, "green to red", "action 1, 'green to red', cannot be done"),
        (BLOCKS, "red to table, green to red", "action 1, 'red to table', cannot be done"),
        (BLOCKS, "green to table", "action 1, 'green to table', cannot be done"),  # it is there
        (BLOCKS, "green to green", "action 1, 'green to green', cannot be done"),
        (BLOCKS, "pink to red", "action 1, 'pink to red', cannot be done"),
        (BLOCKS, "blue to table", "at the end not green on red"),
        (BLOCKS, "I move blue away", "action 1, 'i move blue away', cannot be done"),
        (BLOCKS, "...", "at the end not green on red"),
        (BLOCKS, "blue to table, blue to green, " * 60, "120 actions, more than 100"),
        (GRID, "go 2, take key, go 3, drop key", ""),
        (GRID, "- go 2\n- take key\n- go 3\n- drop key", ""),
        (GRID, "go 2; take key; go 3", "at the end not key at 3"),  # still in its hand
        (GRID, "take key", "action 1, 'take key', cannot be done"),
        (GRID, "go 2, drop key", "action 2, 'drop key', cannot be done"),
        (GRID, "go 2, go 5", "action 2, 'go 5', cannot be done"),  # blocked
        (GRID, "go 3", "action 1, 'go 3', cannot be done"),  # two cells away
        (GRID, "go 2, go 3, go 4", "action 3, 'go 4', cannot be done"),  # in the next row
        (GRID, "charge", "action 1, 'charge', cannot be done"),
        (POWER, "go 2, charge, go 3, go 4", ""),
        (POWER, "go 2, go 3, go 4", "action 2, 'go 3', cannot be done"),
        (TWO, "take key, go 2, drop key, go 1, take cup, go 2, drop cup", ""),
        (TWO, "take key, take cup", "action 2, 'take cup', cannot be done"),
    ],
)
def test_a_plan_is_carried_out(world: dict, answer: str, detail: str) -> None:
    verdict = judged(asked(**world), answer)
    assert (verdict.exact, verdict.detail) == (detail == "", detail)


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({}, "need a goal, and either stacks or a grid"),
        ({"stacks": ("red",)}, "need a goal"),
        ({**BLOCKS, "grid": ("3 by 3",)}, "either stacks or a grid"),
        ({**GRID, "grid": ("big",)}, "needs a size like '3 by 3'"),
        ({**GRID, "things": ("key",)}, "things like 'key at 5'"),
        ({**GRID, "robot": "here"}, "constraint 'robot' is 'here'; it takes a whole number"),
        ({**GRID, "goal": "key at 3"}, "constraint 'goal' is 'key at 3'; it takes a list of texts"),
        ({**GRID, "blocked": ("wall",)}, "'blocked'"),
    ],
)
def test_a_world_that_cannot_be_read_is_an_error_that_names_the_prompt(world, message):
    with pytest.raises(InputError, match=r"prompt p1 .*check is 'plan' but its") as raised:
        judged(asked(**world), "go 2")
    assert message in str(raised.value)
