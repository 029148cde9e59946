"""Operators: command lines of `lyceum` as people type them, at any moment."""

import io
import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest.mock import patch

from flows.cli.main import main
from flows.promotion.champion import protected
from flows.runs.record import read_runs, run_status
from infra.context import context
from schemas.base import InputError
from tests.simulation.actors import recipe_name
from tests.simulation.world import Process, World

if TYPE_CHECKING:
    from tests.simulation.history import History


class Terminal(io.TextIOBase):
    """Standard output, or standard error, of all processes of a history."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._said: dict[Process, list[str]] = {}

    def write(self, text: str) -> int:
        if self._world.inside():
            self._said.setdefault(self._world.thread_now.process, []).append(text)
        return len(text)

    def taken(self, process: Process) -> str:
        """What a process has said until now, once."""
        return "".join(self._said.pop(process, ()))


@contextmanager
def terminals(world: World) -> Iterator[tuple[Terminal, Terminal]]:
    """Inside, what processes print goes to these two."""
    out, err = Terminal(world), Terminal(world)
    with patch.object(sys, "stdout", out), patch.object(sys, "stderr", err):
        yield out, err


def operate(history: "History", what: str) -> int:
    """What an operator types, one command after the other. Returns the exit code of the last, and 1
    where what is there cannot be seen."""
    code = 0
    try:
        for line in _lines(history, what):
            code = _type(history, line)
    except (InputError, OSError) as error:
        history.world.say(f"nobody can tell what to type: {error}")
        return 1
    return code


def _lines(history: "History", what: str) -> Iterator[list[str]]:
    """`gc` is for the machines of the target, too; to `drop` are all runs that have ended."""
    chance, target = history.world.random, history.plan.target
    remote = ["--target", target] if target != "local" else []
    if what == "promote":
        store = context().store(write=False)
        runs = [one.run_id for one in read_runs(store) if run_status(one) == "succeeded"]
        if runs:
            yield ["promote", chance.choice(runs), "--why", "by hand"]
    elif what == "rollback":
        yield ["promote", "--rollback", "simulated", "--why", "by hand"]
    elif what == "look":
        yield _question(history, chance, remote)
    else:
        drop = _dropped() if what == "gc and drop" else ()
        yield ["gc", "--delete", *(word for run in drop for word in ("--drop-run", run))]
        if remote:
            yield ["gc", "--delete", *remote]


def _dropped() -> list[str]:
    store = context().store(write=False)
    runs, kept = read_runs(store), protected(store)
    ended = [one.run_id for one in runs if not run_status(one).startswith("running")]
    return [one for one in ended if one not in kept]


def _question(history: "History", chance: random.Random, remote: list[str]) -> list[str]:
    """A command that looks, of which some write the report."""
    runs = context().store(write=False).list_runs() or ["no-run"]
    recipe = recipe_name(history.plan.stages, chance.choice((0, 0, 1)))
    name = chance.choice(("distill", "rebalance", "sft", "beside"))
    return chance.choice(
        (
            ["runs"],
            ["report", chance.choice(runs)],
            ["report", runs[-1]],
            ["compare", chance.choice(runs), chance.choice(runs)],
            ["why", recipe, name],
            ["plan", recipe],
            ["promote", "--history", "simulated"],
            ["promote", "--history", "another"],
            ["gate", runs[-1]],
            ["report", "no-run"],
            ["gc"],
            ["gc", *remote],
        )
    )


def _type(history: "History", line: list[str]) -> int:
    """Type one command line, for people or for programs."""
    world, process = history.world, history.world.check().process
    if as_json := world.random.random() < 0.3:
        line = [*line, "--json"]
    world.say(f"{process.name} types: lyceum {' '.join(line)}")
    code = main(line)
    out, err = (terminal.taken(process) for terminal in history.terminals)
    for text in [*err.splitlines(), *out.splitlines()[:12]]:
        world.say(f"{process.name} is told: {history.rootless(text)[:200]}")
    break_ = history.laws.break_
    if code not in (0, 1, 2):
        break_("commands answer", f"{process.name}: exit code {code}")
    if as_json and (out or not code):
        try:
            json.loads(out)
        except ValueError:
            break_("commands answer", f"{process.name}: no JSON: {out[:200]}")
    return code
