"""How long a run will take: worked by hand, and nothing where nothing was measured."""

from typing import Any

import pytest
from rich.console import Console

from flows.cli.terminal import Terminal
from flows.recipe.explain import Difference, takes_as_long
from flows.runs.forecast import Forecast
from schemas.job import JobStatus, Progress
from schemas.recipe import Recipe, StageSpec
from schemas.reports import RunRecord, StageRecord
from tests.effort import Clock

RECIPE = Recipe(
    name="demo",
    model="gemma3-tiny",
    stages=(
        StageSpec(name="data", kind="distill"),
        StageSpec(name="base", kind="reasoning_eval", inputs={"prompts": "data"}),
        StageSpec(name="sft", kind="sft", inputs={"examples": "data"}),
        StageSpec(name="after", kind="reasoning_eval", inputs={"policy": "sft"}),
    ),
)


def forecast(slots: int = 1, clock: Clock | None = None, **seconds: float | None) -> Forecast:
    """Of `data` cached unless it has seconds, base 20 s, sft 60 s, after 30 s."""
    known = {"data": 0.0, "base": 20.0, "sft": 60.0, "after": 30.0, **seconds}
    stages = [
        {"name": name, "cached": not value and value is not None, "seconds": value, "cost_usd": 0.0}
        for name, value in known.items()
    ]
    return Forecast(RECIPE, stages, False, slots, clock or Clock())


def record(**status: str) -> RunRecord:
    stages: Any = [StageRecord(name=n, kind="sft", status=s) for n, s in status.items()]  # type: ignore[arg-type]
    where = {"target": "local", "store": "file:///s", "status": "running", "started": 0.0}
    return RunRecord(run_id="demo-1", recipe=RECIPE, stages=tuple(stages), **where)


@pytest.mark.parametrize(("slots", "said"), [(1, "1 min 50 s"), (2, "1 min 30 s")])
def test_first_lines_say_what_runs_and_how_long_it_takes(slots: int, said: str) -> None:
    """20 + 60 + 30; with two at a time base is done while sft runs: 60 + 30."""
    assert forecast(slots).lines() == [
        "4 stages, 1 cached: data. To run: base, sft and after.",
        f"About {said}, as in earlier runs.",
    ]


def test_nothing_is_estimated_where_nothing_was_measured() -> None:
    one = forecast(sft=None)
    assert one.lines()[1] == "No estimate yet: no earlier run has timed sft."
    assert one.remaining(record(data="cached")) is None
    assert one.remaining(record(data="cached", base="ran", sft="ran")) == 30.0


def test_of_a_plan_the_price_is_said_too() -> None:
    one = forecast()
    stages = [{**stage, "cost_usd": 0.5} for stage in one.stages]
    said = "About 1 min 50 s and 2.00 USD by list price, by the plan."
    assert Forecast(RECIPE, stages, True, 1).lines()[1] == said
    least = Forecast(RECIPE, [*stages[:-1], stages[-1] | {"at_least": {}}], True, 1)
    said = said.replace("About", "At least").replace("plan.", "plan, and what after will take.")
    assert least.lines()[1] == said


def test_what_is_left_falls_while_stages_run_and_never_below_what_comes_after() -> None:
    clock = Clock()
    one = forecast(clock=clock)
    running = record(data="cached", base="ran", sft="running")
    assert one.remaining(running) == 90.0
    clock.now = 45.0
    assert one.remaining(running) == 45.0
    clock.now = 400.0
    assert one.remaining(running) == 30.0
    assert one.remaining(record(data="cached", base="ran", sft="ran", after="ran")) == 0.0


@pytest.mark.parametrize(
    ("later", "more", "left"),
    [
        (0.0, {}, "about 1 min 50 s left"),
        (400.0, {"sft": 0.0, "after": 0.0}, "longer than estimated"),
        (400.0, {}, "longer than estimated"),  # what comes after is no estimate of what runs
    ],
)
def test_progress_lines_say_when_the_run_ends(later, more, left, capsys):
    clock = Clock()
    with Terminal() as terminal:
        terminal.expect(forecast(clock=clock, **more))
        terminal.record(record(data="cached", base="running"))
        terminal.forecast.remaining(terminal.latest)
        clock.now = later
        done = JobStatus(state="running", heartbeat=0.0, progress=Progress(done=3, total=9))
        terminal.progress("base", done)
    assert capsys.readouterr().err.splitlines()[-1] == f"  base: 3/9 steps; the run: {left}"


def test_a_terminal_has_a_bar_of_the_whole_run() -> None:
    console = Console(force_terminal=True, width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    with Terminal(console) as terminal:
        terminal.expect(forecast())
        terminal.record(record(data="cached", base="running"))
        terminal.progress("base", JobStatus(state="running", heartbeat=0.0))
        [whole] = [bar for bar in terminal._bars.tasks if bar.description == "whole run"]
    assert (whole.total, whole.fields["values"]) == (110, "about 1 min 50 s left")


@pytest.mark.parametrize(
    ("field", "here", "there", "alike"),
    [
        ("inputs.policy (stage sft)", "a", "b", True),
        ("config.seed", 1, 2, True),
        ("config.optimizer.learning_rate", 1e-3, 1e-4, True),
        ("config.steps", 50, 5000, False),
        ("config.epochs", 1.0, 3.0, False),
        ("config.model", "gemma3-tiny", "gemma3-1b-it", False),
        ("config.beta", 0.1, "(no such field)", False),
    ],
)
def test_only_what_takes_as_long_is_its_like(field, here, there, alike):
    assert takes_as_long([Difference(field, here, there)]) is alike
