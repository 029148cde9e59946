"""`lyceum run`: check everything, find a Prefect API, run the flow, and show it on the terminal
meanwhile.

Several runs have one Prefect API and one terminal, one after another or side by side. One that
fails ends none of the others; what stops one stops all. Where no API runs, none is started for a
run of which every stage is cached.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from flows.ahead import begun, run_cached
from flows.cli.deadline import Deadline, observed
from flows.cli.interrupt import interruptible
from flows.cli.terminal import Terminal
from flows.preamble import Parameters, Prepared, handed, prepare
from flows.recipe.explain import Outlook
from flows.runs.forecast import Forecast
from flows.runs.record import RunLog, left
from flows.server.key import proves
from flows.server.prefect_api import STARTUP_SECONDS, prefect_api, running_api
from flows.trackers import followed
from infra.importing import importing
from schemas.base import InputError, StageFailed, Stopped
from schemas.reports import RunRecord
from tasks.running.backends import shared_backends
from tasks.running.watch import WATCH, Watch

START_SECONDS = 60.0
"""A run that has not begun waits so long for a Prefect API that was lost; for one of ours, as long
as its start may take."""

END_SECONDS = 20.0
"""How long after the loss of the API a run that ends waits for it, so that how it ended is
recorded."""


Ended = RunRecord | InputError | StageFailed | OSError | None
"""The record of a run; why it could not begin or go on; None: all were stopped or paused before it
began."""
Foretold = Callable[[Sequence[Forecast]], list[str]]


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
        return run_alone(prepared, deadline)


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


def exit_code(record: RunRecord) -> int:
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


def run_alone(prepared: Prepared, deadline: Deadline | None = None) -> RunRecord:
    """Run it to its end. Raises as `launch`."""
    [ended] = run_all([prepared], deadline)
    assert isinstance(ended, RunRecord), "whatever ends a run that is alone is raised"
    return ended


def run_all(
    runs: Sequence[Prepared],
    deadline: Deadline | None = None,
    lanes: int = 1,
    foretell: Foretold = lambda forecasts: [],
) -> list[Ended]:
    """Run each to its end, in this order.

    Args:
        lanes: how many go on side by side.
        foretell: what is said of all before they begin, given what is known of those that have to
            run; one without a label says it of itself.

    Raises:
        DoesNotFit, InputError, StageFailed, Stopped: what concerns all of them; nothing was begun.
    """
    for one in runs:  # before anything is said, and Prefect imported
        _ = one.plan, one.opened  # raise what does not fit, or cannot be written
    stop, pause = threading.Event(), threading.Event()
    with (
        interruptible(stop),
        Terminal() as terminal,
        observed(deadline, pause, stop, terminal.say),
        ExitStack() as stack,
    ):
        lined = [_Lane(one, Terminal(above=terminal, label=one.label), stop, pause) for one in runs]
        cold = running_api() is None
        waiting = [one for one in lined if not (cold and one.is_cached())]
        if not waiting:
            return [one.ended for one in lined]
        with suppress(OSError, InputError):  # a view: a store that is away now ends no run
            for line in foretell([one.foretold() for one in waiting]):
                terminal.say(line)
        if cold:
            stack.enter_context(waiting[0].ahead())
            terminal.say("No Prefect API runs: starting one ...")
        with prefect_api(stop, terminal.say, meanwhile=_load_flow) as api:
            from flows.server.prefect_view import prefect_view

            terminal.say(f"Prefect API: {api}  Store: {waiting[0].prepared.store.uri}")
            seconds = STARTUP_SECONDS if proves(api) else START_SECONDS
            with prefect_view(
                api.url, terminal.say, stop, start_seconds=seconds, end_seconds=END_SECONDS
            ):
                _run_each(waiting, min(lanes, len(waiting)), terminal.say, alone=len(runs) == 1)
    return [one.ended for one in lined]


def _load_flow() -> None:
    """Import what a run needs from its flow to its report's plots: one to two seconds."""
    with importing():
        import_module("flows.post_train")
        import_module("flows.server.prefect_view")
        import_module("matplotlib.backends.backend_svg")


class _Lane:
    """One of the runs, and how it ended."""

    def __init__(
        self, prepared: Prepared, view: Terminal, stop: threading.Event, pause: threading.Event
    ) -> None:
        self.prepared, self._view, self._stop, self._pause = prepared, view, stop, pause
        self.ended: Ended = None
        self._watch = followed(Watch(stop, pause, view.progress, view.say_of, view.record))
        self._outlooks: list[Outlook] | None = None
        self._begun: RunLog | None = None

    def is_cached(self) -> bool:
        """Whether every stage was cached; the run is over then."""
        self._outlooks = self.prepared.outlook()
        if not run_cached(self.prepared, self._outlooks, self._watch):
            return False
        self.ended = self._view.latest
        return True

    def foretold(self) -> Forecast:
        """Show what would happen; from now on progress says when the run will be over."""
        forecast = self.prepared.forecast(self._outlooks)
        self._view.expect(forecast)
        return forecast

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Inside, the first stages are under way while the API starts (`flows.ahead.begun`)."""
        with begun(self.prepared, self._outlooks or [], self._watch) as self._begun:
            yield

    def run(self, alone: bool, first: bool) -> None:
        """Call the flow. What ends it is noted; of a run that is alone it is raised."""
        if not first and (self._stop.is_set() or self._pause.is_set()):
            return
        try:
            self._call()
            self.ended = self._view.latest
        except (InputError, StageFailed, OSError, Stopped) as error:
            if alone:
                raise
            self.ended = None if isinstance(error, Stopped) else error

    def _call(self) -> None:
        import httpx
        from prefect.exceptions import CancelledRun, FailedRun

        from flows.post_train import post_train

        WATCH.set(self._watch)
        # the record says it, and more
        with suppress(CancelledRun, FailedRun), handed(self.prepared, self._begun):
            try:
                post_train(**asdict(self.prepared.given))
            # before the flow began; after that nobody asks for an answer
            except httpx.TransportError as error:
                why = StageFailed(f"{error}, so the run could not begin")
                raise Stopped if self._stop.is_set() else why from error
        assert self._view.latest is not None, "a flow begins its record before it returns a state"


def _run_each(
    waiting: Sequence[_Lane], lanes: int, say: Callable[[str], None], *, alone: bool
) -> None:
    """Run them one after another in this thread, or side by side in others."""
    if lanes == 1:
        for one in waiting:
            copy_context().run(one.run, alone, one is waiting[0])
        return
    with shared_backends(say), ThreadPoolExecutor(lanes, thread_name_prefix="run") as pool:
        # of each a context of its own, with Prefect's settings and client
        running = [
            pool.submit(copy_context().run, one.run, alone, one is waiting[0]) for one in waiting
        ]
    for ended in running:
        ended.result()
