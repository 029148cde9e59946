"""Runs of one process, with one Prefect API and one terminal: one alone, or several, one after
another or side by side. One that fails ends none of the others; what stops one stops all.

Where no API runs, none is started for a run of which every stage is cached.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from contextvars import copy_context
from dataclasses import asdict, dataclass
from importlib import import_module

from flows.ahead import begun, run_cached
from flows.cli.deadline import Deadline, observed
from flows.cli.interrupt import interruptible
from flows.cli.terminal import Terminal
from flows.preamble import Parameters, Prepared, handed
from flows.recipe.explain import Outlook
from flows.runs.forecast import Forecast
from flows.runs.record import RunLog
from flows.server.prefect_api import prefect_api, running_api, startup_seconds
from flows.trackers import followed
from infra.context import context
from infra.importing import importing
from infra.store.store import Store
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


@dataclass(frozen=True)
class Start:
    """A run that may begin.

    Attributes:
        given: what its flow is called with, for Prefect to show.
        label: what it is called on the terminal, beside others.
    """

    prepared: Prepared
    given: Parameters
    label: str = ""

    @property
    def store(self) -> Store:
        """The run's store, open for writing."""
        return context().store(self.prepared.store.uri)


Ended = RunRecord | InputError | StageFailed | OSError | None
"""The record of a run; why it could not begin or go on; None: all were stopped or paused before it
began."""
Foretold = Callable[[Sequence[Forecast]], list[str]]


def run_all(
    starts: Sequence[Start],
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
    for start in starts:  # before anything is said, and Prefect imported
        _ = start.prepared.plan, start.store  # raise what does not fit, or cannot be written
    stop, pause = threading.Event(), threading.Event()
    with (
        interruptible(stop),
        Terminal() as terminal,
        observed(deadline, pause, stop, terminal.say),
        ExitStack() as stack,
    ):
        lined = [_Lane(start, terminal.beside(start.label), stop, pause) for start in starts]
        cold = running_api() is None
        left = [one for one in lined if not (cold and one.is_cached())]
        if not left:
            return [one.ended for one in lined]
        with suppress(OSError, InputError):  # a view: a store that is away now ends no run
            for line in foretell([one.foretold() for one in left]):
                terminal.say(line)
        if cold:
            stack.enter_context(left[0].ahead())
            terminal.say("No Prefect API runs: starting one ...")
        with prefect_api(stop, terminal.say, meanwhile=_load_flow) as api:
            from flows.server.prefect_view import prefect_view

            terminal.say(f"Prefect API: {api}  Store: {left[0].start.store.uri}")
            seconds = startup_seconds(api) or START_SECONDS
            with prefect_view(
                api.url, terminal.say, stop, start_seconds=seconds, end_seconds=END_SECONDS
            ):
                _run_each(left, min(lanes, len(left)), terminal.say, alone=len(starts) == 1)
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
        self, start: Start, view: Terminal, stop: threading.Event, pause: threading.Event
    ) -> None:
        self.start, self._view, self._stop, self._pause = start, view, stop, pause
        self.ended: Ended = None
        self._watch = followed(Watch(stop, pause, view.progress, view.say_of, view.record))
        self._outlooks: list[Outlook] | None = None
        self._begun: RunLog | None = None

    def is_cached(self) -> bool:
        """Whether every stage was cached; the run is over then."""
        prepared = self.start.prepared
        self._outlooks = prepared.outlook()
        if not run_cached(prepared, self.start.store, self._outlooks, self._watch):
            return False
        self.ended = self._view.latest
        return True

    def foretold(self) -> Forecast:
        """Show what would happen; from now on progress says when the run will be over."""
        forecast = self.start.prepared.forecast(self._outlooks)
        self._view.expect(forecast)
        return forecast

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Inside, the first stage is under way while the API starts (`flows.ahead.begun`)."""
        outlooks = self._outlooks or []
        with begun(self.start.prepared, self.start.store, outlooks, self._watch) as self._begun:
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
        with suppress(CancelledRun, FailedRun), handed(self.start.prepared, self._begun):
            try:
                post_train(**asdict(self.start.given))
            # before the flow began; after that nobody asks for an answer
            except httpx.TransportError as error:
                why = StageFailed(f"{error}, so the run could not begin")
                raise Stopped if self._stop.is_set() else why from error
        assert self._view.latest is not None, "a flow begins its record before it returns a state"


def _run_each(
    left: Sequence[_Lane], lanes: int, say: Callable[[str], None], *, alone: bool
) -> None:
    """Run them one after another in this thread, or side by side in others."""
    if lanes == 1:
        for one in left:
            copy_context().run(one.run, alone, one is left[0])
        return
    with shared_backends(say), ThreadPoolExecutor(lanes, thread_name_prefix="run") as pool:
        # of each a context of its own, with Prefect's settings and client
        running = [pool.submit(copy_context().run, one.run, alone, one is left[0]) for one in left]
    for ended in running:
        ended.result()
