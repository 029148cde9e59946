"""Tables and lines for a terminal. Standard output: what was asked for; it is never mixed with logs."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from schemas.reports import RunRecord

KEY_METRICS = (
    "exact_answer",
    "safe_rate",
    "correct_rate",
    "format_rate",
    "reward_last",
    "accuracy_last",
    "margin_last",
    "loss_first",
    "loss_last",
)
HEADLINE_METRICS = 3
PLAIN_WIDTH = 160
"""Columns when standard output is no terminal; rich would assume 80 and cut."""


def console() -> Console:
    """Standard output as it is now (tests and pipes replace it)."""
    return Console(file=sys.stdout, width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def headline(metrics: dict[str, Any]) -> str:
    """The few numbers of a stage that people look for first; of a stage that has none of those, its first few."""
    numbers = dict(_numbers(metrics))
    shown = [name for name in KEY_METRICS if name in numbers] or list(numbers)
    return ", ".join(f"{name} {_number(numbers[name])}" for name in shown[:HEADLINE_METRICS])


def _number(value: float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _numbers(metrics: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield prefix + name, value


def show_run(record: RunRecord) -> None:
    """The summary at the end of a run."""
    rows = [(stage.name, stage.kind, stage.status, f"{stage.seconds:.1f}", headline(stage.metrics)) for stage in record.stages]
    seconds = (record.finished or time.time()) - record.started
    table(f"{record.run_id}: {record.status} in {seconds:.1f} s", ("stage", "kind", "status", "seconds", "metrics"), rows)
    for stage in record.stages:
        if stage.error:
            line(f"{stage.name}: {stage.error}")
    if record.report:
        line(f"Report: {record.report}")


def show_plan(plan: dict[str, Any]) -> None:
    """What a run would do."""
    rows = [
        (stage["name"], stage["kind"], "cached" if stage["cached"] else "would run", _seconds(stage["seconds"]), stage["reason"])
        for stage in plan["stages"]
    ]
    table(f"{plan['recipe']} on {plan['target']}", ("stage", "kind", "", "seconds", "because"), rows)
    line(f"Expected: {_seconds(plan['seconds'])} s (from earlier runs; ? where there was none)")


def show_why(why: dict[str, Any]) -> None:
    """Why one stage is cached or not."""
    line(f"{why['stage']} is {'cached' if why['cached'] else 'not cached'}: {why['reason']}.")
    line(f"key: {why['key'] or 'not known until its inputs are there'}")
    near = why["nearest"]
    if why["cached"]:
        return
    if near is None:
        line(f"The store has no artifact of kind {why['kind']} to compare with.")
    elif not why["differences"]:
        line(f"Nothing in its identity differs from artifact {near['kind']}/{near['key']}.")
    else:
        rows = [(one["field"], _short(one["here"]), _short(one["there"])) for one in why["differences"]]
        table(f"against the nearest artifact, {near['kind']}/{near['key'][:12]}", ("field", "here", "there"), rows)


def show_runs(runs: dict[str, Any]) -> None:
    """All runs of a store, the newest last."""
    rows = []
    for run in runs["runs"]:
        started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run["started"]))
        rows.append((run["run_id"], run["recipe"], run["target"], run["status"], f"{run['stages_done']}/{run['stages']}", started))
    table("runs", ("run", "recipe", "target", "status", "stages", "started"), rows)


def show_recipes(recipes: dict[str, Any]) -> None:
    """The shipped recipes."""
    rows = [(recipe["name"], recipe["model"], " -> ".join(recipe["stages"])) for recipe in recipes["recipes"]]
    table("recipes", ("name", "model", "stages"), rows)


def show_checks(doctor: dict[str, Any]) -> None:
    """The doctor's findings: whether each is well, and the details."""
    rows = [("ok" if check["well"] else "!!", check["name"], check["found"]) for check in doctor["checks"]]
    table("doctor", ("", "check", "found"), rows)


def line(text: str) -> None:
    """One line of text."""
    console().print(_plain(text), soft_wrap=True)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    line(title)
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_plain(cell) for cell in row))
    console().print(table)


def _plain(text: str) -> str:
    """Brackets as they are: rich would read `[x]` as markup."""
    return text.replace("[", r"\[")


def _seconds(value: float | None) -> str:
    return "?" if value is None else f"{value:.1f}"


def _short(value: Any) -> str:
    text = "-" if value is None else str(value)
    return text if len(text) <= 64 else f"{text[:61]}..."
