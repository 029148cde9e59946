"""`lyceum run`: check everything, find a Prefect API, run the flow, and show it on the terminal
meanwhile (`flows.cli.lanes`)."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flows.cli.deadline import Deadline
from flows.cli.lanes import Start, run_all
from flows.preamble import Parameters, prepare
from flows.runs.record import left
from schemas.base import InputError, Stopped
from schemas.reports import RunRecord


def launch(given: Parameters, code: Sequence[Path], hours: float | None = None) -> RunRecord:
    """Run a recipe to its end, or until its deadline.

    All input is checked before Prefect is even imported. `code`: the files that the recipe may run.
    `hours`: from now to the deadline; None for none.

    Returns:
        The record of the run, whether it succeeded, failed, paused or was stopped.

    Raises:
        InputError: bad input, or a deadline that came before the flow could begin; nothing was
            started.
        DoesNotFit: a program is too large for the target; nothing was started.
        StageFailed: a program does not compile for the target, or Prefect's API does not answer;
            nothing was started.
        Stopped: Ctrl-C before the flow began.
    """
    deadline = None if hours is None else Deadline.after(hours)
    prepared = prepare(given, code)
    with in_time(deadline, hours):
        return run_prepared(Start(prepared, given), deadline)


@contextmanager
def in_time(deadline: Deadline | None, hours: float | None) -> Iterator[None]:
    """Inside, a stop by the deadline is bad input: too little time was given. Another stop was a
    person's."""
    try:
        yield
    except Stopped:
        if deadline is None or hours is None or time.monotonic() < deadline.stop:
            raise
        too_soon = "the deadline came before the run could begin; give it more time"
        raise InputError(f"--hours {hours:g}: {too_soon}.") from None


def run_prepared(start: Start, deadline: Deadline | None = None) -> RunRecord:
    """Run what `prepare` gave to its end. Raises as `launch`."""
    [ended] = run_all([start], deadline)
    assert isinstance(ended, RunRecord), "whatever ends a run that is alone is raised"
    return ended


def exit_code(record: RunRecord) -> int:
    """The command line's exit code for a run that has ended."""
    if record.status in ("succeeded", "paused"):
        return 0
    if record.status == "cancelled":
        return 130
    failed = [stage.exit_code for stage in record.stages if stage.status == "failed"]
    return (failed[0] if failed else None) or 1


def run_json(record: RunRecord) -> dict[str, Any]:
    """The JSON of `lyceum run --json`; `left` of a run whose deadline came are the stages that the
    same command goes on with."""
    fields = ("run_id", "target", "store", "status", "report")
    stages = [stage.model_dump(mode="json", exclude={"usage"}) for stage in record.stages]
    for stage in stages:
        for name in ("cost_usd", "error", "exit_code", "repaired"):
            if stage[name] is None:
                del stage[name]
    said = record.model_dump(mode="json", include=set(fields))
    rest = {"left": left(record)} if record.status == "paused" else {}
    return {"recipe": record.recipe.name, **said, "stages": stages, **rest}
