"""`lyceum run`: check everything, find a Prefect API, run the flow, and show it on the terminal
meanwhile. Where no API runs, none is started for a run of which every stage is cached."""

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from flows.ahead import begun, run_cached
from flows.cli.deadline import Deadline, observed
from flows.cli.interrupt import interruptible
from flows.cli.terminal import Terminal
from flows.preamble import Prepared, handed, prepare
from flows.recipe.explain import Outlook
from flows.runs.record import left
from flows.server.prefect_api import prefect_api, running_api, startup_seconds
from flows.trackers import followed
from infra.context import context
from schemas.base import InputError, StageFailed, Stopped
from schemas.reports import RunRecord
from tasks.running.watch import WATCH, Watch

START_SECONDS = 15.0
"""A run that has not begun waits so long for a Prefect API that was lost; for one of ours, as long
as its start may take."""

END_SECONDS = 20.0
"""How long after the loss of the API a run that ends waits for it, so that how it ended is
recorded."""


def launch(
    recipe: str,
    *,
    store: str,
    target: str,
    overrides: Sequence[str],
    data: Path | None,
    force: Sequence[str],
    code: Sequence[Path],
    hours: float | None = None,
) -> RunRecord:
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
    given: dict[str, Any] = {"store": store, "overrides": tuple(overrides), "force": tuple(force)}
    given["data"] = str(data or "")
    prepared = prepare(recipe, target=target, code=code, **given)
    try:
        return run_prepared(prepared, recipe, given, deadline)
    except Stopped:
        if deadline is None or time.monotonic() < deadline.stop:
            raise
        too_soon = "the deadline came before the run could begin; give it more time"
        raise InputError(f"--hours {hours:g}: {too_soon}.") from None


def run_prepared(
    prepared: Prepared, recipe: str, given: Mapping[str, Any], deadline: Deadline | None = None
) -> RunRecord:
    """Run what `prepare` gave to its end; the flow is called with `recipe` and `given`, for Prefect
    to show. Raises as `launch`."""
    _ = prepared.plan  # before Prefect is imported; raises what does not fit
    opened, target = context().store(prepared.store.uri), prepared.target

    stop, pause = threading.Event(), threading.Event()
    with (
        interruptible(stop),
        Terminal() as terminal,
        observed(deadline, pause, stop, terminal.say),
        ExitStack() as stack,
    ):
        watch = followed(Watch(stop, pause, terminal.progress, terminal.say_of, terminal.record))
        run = None
        if running_api() is None:
            outlooks = prepared.outlook()
            if run_cached(prepared, opened, outlooks, watch):
                assert terminal.latest is not None
                return terminal.latest
            _expect(prepared, terminal, outlooks)
            run = stack.enter_context(begun(prepared, opened, outlooks, watch))
            terminal.say("No Prefect API runs: starting one ...")
        else:
            _expect(prepared, terminal)
        with prefect_api(stop, terminal.say) as api:
            import httpx
            from prefect.exceptions import CancelledRun, FailedRun

            from flows.post_train import post_train
            from flows.server.prefect_view import prefect_view

            terminal.say(f"Prefect API: {api}  Store: {opened.uri}")
            WATCH.set(watch)
            start = startup_seconds(api) or START_SECONDS
            view = prefect_view(
                api.url, terminal.say, stop, start_seconds=start, end_seconds=END_SECONDS
            )
            # the record says it, and more
            with view, suppress(CancelledRun, FailedRun), handed(prepared, run):
                try:
                    post_train(recipe=recipe, target=target, **given)
                # before the flow began; after that nobody asks for an answer
                except httpx.TransportError as error:
                    why = StageFailed(f"{error}, so the run could not begin")
                    raise Stopped if stop.is_set() else why from error
    assert terminal.latest is not None, "the flow begins its record before it returns a state"
    return terminal.latest


def _expect(prepared: Prepared, terminal: Terminal, outlooks: list[Outlook] | None = None) -> None:
    """Say what will happen and how long it will take. That is a view: a store that does not answer
    now ends no run."""
    with suppress(OSError, InputError):
        terminal.expect(prepared.forecast(outlooks))


def exit_code(record: RunRecord) -> int:
    """The command line's exit code for a run that has ended."""
    if record.status in ("succeeded", "paused"):
        return 0
    if record.status == "cancelled":
        return 130
    failed = [stage.exit_code for stage in record.stages if stage.status == "failed"]
    return (failed[0] if failed else None) or 1


def run_json(record: RunRecord) -> dict[str, Any]:
    """What `lyceum run --json` prints; `left`, of a run whose deadline came, are the stages that
    the same command goes on with."""
    fields = ("run_id", "target", "store", "status", "report")
    stages = [stage.model_dump(mode="json", exclude={"usage"}) for stage in record.stages]
    for stage in stages:
        for name in ("cost_usd", "error", "exit_code", "repaired"):
            if stage[name] is None:
                del stage[name]
    said = record.model_dump(mode="json", include=set(fields))
    rest = {"left": left(record)} if record.status == "paused" else {}
    return {"recipe": record.recipe.name, **said, "stages": stages, **rest}
