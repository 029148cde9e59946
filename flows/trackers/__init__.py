"""Trackers: services that receive a run's numbers while it goes on, if its environment names them.
A tracker is a file here that ends with `TRACKER = Tracker(...)`; its name is that of the package
that it uses.

A stage's reports on its steps are sent at once, the rest of its curves when the run has ended, to a
tracker that was lost meanwhile, too. A run that continues an interrupted one keeps the first one's
name and curves. A tracker's package is imported only if it is configured, stages never wait for it,
and its errors never fail a run.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, TextIO, cast

from flows.runs.record import read_runs, run_status
from flows.runs.results import RunResults
from flows.scores.evaluations import Point, curve, metric_points
from infra.context import context
from infra.secrets import mask
from infra.store.objects import Damaged
from schemas.base import InputError
from schemas.job import JobStatus
from schemas.reports import RunRecord
from tasks.contract.plugins import Family
from tasks.running.watch import Watch

END_SECONDS = 300.0
"""A run that has ended waits so long for its trackers: W&B waits for ever for a lost network."""


@dataclass(frozen=True)
class Session:
    """An open run of ours at a tracker, which lasts until ours has ended.

    Attributes:
        log: sends points of curves.
        end: ends the run, with the numbers of its stages' metrics (`metric_points`) unless it was
            stopped.
    """

    log: Callable[[Sequence[Point]], None]
    end: Callable[[RunRecord, Sequence[Point] | None], None]


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """A tracker.

    Attributes:
        variables: of the environment; any of them switches it on.
        install: the package to install.
        open: begins a run under a name, or goes on with the one that has this name, by the
            package's own Python interface, which reads the rest from the environment. That, and its
            session, raise whatever the package raises.
    """

    variables: tuple[str, ...]
    install: str
    open: Callable[[RunRecord, str], Session]

    @property
    def variable(self) -> str | None:
        """The variable that asks for it."""
        return next((one for one in self.variables if os.environ.get(one)), None)


TRACKERS: Family[Tracker] = Family("flows.trackers", Tracker)
THREAD = "trackers"
"""The name of the threads that send."""


def logged(why: str) -> None:
    """Log why a tracker failed in the flow run that goes on."""
    from prefect import get_run_logger

    get_run_logger().warning("trackers: %s", why)


def followed(watch: Watch, warn: Callable[[str], None] | None = None) -> Watch:
    """A watch that sends its run, while it goes on, to every configured tracker. `warn` is told why
    one fails, in the context of the run; None: the watch says it."""
    if not _configured():
        return watch
    current: list[_Live] = []

    def record(version: RunRecord) -> None:
        watch.record(version)
        if not current or current[0].run_id != version.run_id:  # a watch may see run after run
            current[:] = [_Live(version, warn or partial(watch.say, "trackers"))]
            _LIVE[version.run_id] = current[0]
        if version.status in ("cancelled", "paused"):
            stopped(version)

    def progress(stage: str, status: JobStatus) -> None:
        watch.progress(stage, status)
        if current and status.progress.values:
            current[0].put(Point(stage, status.progress.done, dict(status.progress.values)))

    return replace(watch, record=record, progress=progress)


def track(run: RunResults, warn: Callable[[str], None]) -> None:
    """Send the rest of a run that has ended to every configured tracker; `warn` is called, once for
    each, with the reason of a failure."""
    if _configured():
        live = _LIVE.pop(run.record.run_id, None) or _Live(run.record, warn)
        live.end(run.record, run)


def stopped(record: RunRecord) -> None:
    """End a run without sending more."""
    if (live := _LIVE.pop(record.run_id, None)) is not None:
        live.end(record, None)


def continued(record: RunRecord, known: Iterable[RunRecord]) -> tuple[str, set[str]]:
    """The id of the run that this one continues: the first of the same recipe and target since one
    succeeded or still runs here; its own if none was interrupted. And the stages whose whole curves
    were sent: those of runs that came to their end, and failed."""
    name, sent = record.run_id, set[str]()
    for one in sorted(known, key=lambda one: one.started, reverse=True):
        if one.started >= record.started or one.run_id == record.run_id:
            continue
        if (one.recipe, one.target) != (record.recipe, record.target):
            continue
        if run_status(one) in ("succeeded", "running"):
            break
        name = one.run_id
        if one.status == "failed":
            sent |= {stage.name for stage in one.stages if stage.status in ("ran", "cached")}
    return name, sent


def _configured() -> list[str]:
    return [name for name in TRACKERS.names() if TRACKERS[name].variable]


class _Live:
    """A run that a thread of its own sends, so that a stage never waits for a tracker."""

    def __init__(self, record: RunRecord, warn: Callable[[str], None]) -> None:
        self._record, self._warn, self.run_id = record, warn, record.run_id
        self._said: SimpleQueue[Point | tuple[RunRecord, RunResults | None]] = SimpleQueue()
        self._sent: dict[str, set[tuple[str, int, str]]] = {}
        self._sessions: dict[str, Session] = {}
        self._name, self._before, self._ending = self.run_id, set[str](), False
        if not isinstance(sys.stdout, _ForAnswers):
            sys.stdout = cast(TextIO, _ForAnswers(sys.stdout))
        within = copy_context()
        self._thread = threading.Thread(
            target=within.run, args=(self._follow,), name=THREAD, daemon=True
        )
        self._thread.start()

    def put(self, point: Point) -> None:
        self._said.put(point)

    def end(self, record: RunRecord, run: RunResults | None) -> None:
        """Send the rest, end, and return when that is done, or takes too long."""
        self._said.put((record, run))
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            names = ", ".join(self._sessions or _configured())
            self._warn(f"run {self.run_id}: {names} did not take it in {END_SECONDS:g} s")

    def _follow(self) -> None:
        with contextlib.suppress(OSError, InputError):
            known = read_runs(context().store(self._record.store, write=False))
            self._name, self._before = continued(self._record, known)
        self._open(_configured())
        while isinstance(said := self._said.get(), Point):
            self._log([said])
        self._ending, (record, run) = True, said
        metrics: list[Point] | None = None
        try:
            if run is not None:
                self._open(self._sent.keys() - self._sessions.keys())
                self._log(list(self._rest(run)))
                metrics = list(metric_points(run))
        except (OSError, InputError, Damaged) as error:
            self._warn(f"run {self.run_id}: the rest of its curves cannot be read: {error}")
        finally:
            for name, session in [*self._sessions.items()]:
                with self._surviving(name):
                    session.end(record, metrics)

    def _open(self, names: Iterable[str]) -> None:
        for name in names:
            with self._surviving(name):
                self._sessions[name] = TRACKERS[name].open(self._record, self._name)
                self._sent.setdefault(name, set())

    def _rest(self, run: RunResults) -> Iterator[Point]:
        """The stages' curves, without those that an interrupted run has sent."""
        for stage in run.stages.values():
            cached = stage.record is not None and stage.record.status == "cached"
            if not (cached and stage.name in self._before):
                yield from curve(stage)

    def _log(self, points: Sequence[Point]) -> None:
        """Send each tracker those of these points that it does not have."""
        for name, session in [*self._sessions.items()]:
            new, sent = [], self._sent[name]
            for stage, step, values in points:
                left = {key: one for key, one in values.items() if (stage, step, key) not in sent}
                if left:
                    new.append(Point(stage, step, left))
            if new:
                with self._surviving(name):
                    session.log(new)
                    sent |= {(stage, step, key) for stage, step, left in new for key in left}

    @contextlib.contextmanager
    def _surviving(self, name: str) -> Iterator[None]:
        """Report whatever a tracker raises, and end its session."""
        tracker = TRACKERS[name]
        try:
            yield
        except (Exception, SystemExit) as error:  # noqa: BLE001
            lost = self._sessions.pop(name, None) is not None and not self._ending
            why = mask(f"{type(error).__name__}: {error}")
            if isinstance(error, ModuleNotFoundError) and error.name == name:
                why = f"it is not installed; `uv pip install {tracker.install}`"
            sent = f"run {self.run_id} was not sent to {name}"
            again = "; it is tried again when the run ends" if lost else ""
            self._warn(f"{sent}, which {tracker.variable} asks for: {why}{again}")


class _ForAnswers:
    """Standard output without what trackers print on it: it is for --json's object."""

    def __init__(self, own: TextIO) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        tracker = threading.current_thread().name == THREAD
        return getattr(sys.stderr if tracker else self._own, name)


_LIVE: dict[str, _Live] = {}
"""Runs that this process is sending, by their ids."""
