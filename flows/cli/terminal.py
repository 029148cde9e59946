"""Show a person a run on standard error: on a terminal one progress bar per running stage,
elsewhere plain lines."""

import sys
import threading
import time
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from flows.cli.answer import drop
from flows.runs.forecast import Forecast
from flows.runs.wording import duration
from infra.visible import plain
from schemas.job import JobStatus
from schemas.reports import RunRecord, StageRecord

LINE_SECONDS = 10.0
"""Without a terminal, a running stage prints at most one line in this time."""

_MARK = {"cached": "=", "ran": "+", "failed": "!", "skipped": "-", "stopped": "-"}


class _View(Console):
    """Standard error. Where nobody reads what a run says, it goes on."""

    def on_broken_pipe(self) -> None:
        drop(sys.stderr)


class Terminal:
    """Shows a run while it happens, and keeps its newest record. Stages call `progress` from their
    threads.

    Args:
        console: where; standard error unless given.
        above: of a run beside others, the terminal that they share.
        label: what stands before its stages then.
    """

    def __init__(
        self, console: Console | None = None, above: "Terminal | None" = None, label: str = ""
    ) -> None:
        # notebooks set FORCE_COLOR: the bars of nine hours would be a line for each of their moves
        forced = None if sys.stderr.isatty() else False
        ours = above.console if above else console
        self.console: Console = ours or _View(stderr=True, force_terminal=forced)
        self._label = f"{label} " if label else ""
        self.latest: RunRecord | None = None
        self.forecast: Forecast | None = None
        self._live = self.console.is_terminal
        self._bars: Progress = above._bars if above else self._make_bars()
        self._bar_ids: dict[str, TaskID] = {}
        self._run_bar: TaskID | None = None
        self._start = time.monotonic()
        self._began: dict[str, float] = {}
        self._spoke: dict[str, float] = {}
        self._lock: threading.Lock = above._lock if above else threading.Lock()

    def _make_bars(self) -> Progress:
        return Progress(
            TextColumn("{task.description:<14}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("[dim]{task.fields[values]}"),
            console=self.console,
            transient=True,
        )

    def __enter__(self) -> Self:
        if self._live:
            self._bars.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live:
            self._bars.stop()

    def say(self, text: str) -> None:
        try:
            self.console.print(Text(plain(text)), soft_wrap=True)
        except OSError:  # a full disk
            drop(sys.stderr)

    def say_of(self, stage: str, text: str) -> None:
        self.say(f"  {self._label}{stage}: {text}")

    def progress(self, stage: str, status: JobStatus) -> None:
        progress = status.progress
        values = " ".join(f"{name}={value:.4g}" for name, value in progress.values.items())
        with self._lock:
            now = time.monotonic()
            if self._live:
                if stage not in self._bar_ids:
                    named = self._label + stage
                    self._bar_ids[stage] = self._bars.add_task(named, unit="", values="")
                said: dict[str, Any] = {"unit": status.phase or progress.unit, "values": values}
                bar, total = self._bar_ids[stage], progress.total or None
                self._bars.update(bar, completed=progress.done, total=total, **said)
                self._whole()
            elif now - self._spoke.get(stage, -LINE_SECONDS) >= LINE_SECONDS:
                self._spoke[stage] = now
                done = f"running for {now - self._began.get(stage, now):.0f} s"
                if progress.total:
                    done = f"{progress.done}/{progress.total} {progress.unit} {values}"
                left = self._left()
                rest = "" if left is None else f"; the run: {self._left_text(left)}"
                self.say_of(stage, (status.phase or done).rstrip() + rest)

    def record(self, record: RunRecord) -> None:
        """The run's record changed: print the stages that ended since the last one."""
        with self._lock:
            known = {one.name: one for one in self.latest.stages} if self.latest else {}
            for stage in record.stages:
                before = known.get(stage.name)
                if before is stage or before == stage:
                    continue
                if stage.status == "running":
                    self._began[stage.name] = time.monotonic()
                else:
                    self._ended(stage)
            self.latest = record
            if record.status != "running" and self._run_bar is not None:
                self._bars.remove_task(self._run_bar)
                self._run_bar = None

    def expect(self, forecast: Forecast) -> None:
        """Say what is going to happen; from now on progress says when all of it will be over. Of
        several runs somebody else says it."""
        for line in [] if self._label else forecast.lines():
            self.say(line)
        self.forecast = forecast

    def _left(self) -> float | None:
        """Seconds until the run ends, as far as that is known."""
        if self.forecast is None or self.latest is None:
            return None
        return self.forecast.remaining(self.latest)

    def _left_text(self, seconds: float) -> str:
        """What a run's estimate leaves; 0, or a stage that is late: it is used up."""
        used = not seconds or (self.forecast is not None and self.forecast.late)
        return "longer than estimated" if used else f"about {duration(seconds)} left"

    def _whole(self) -> None:
        """The line of the whole run, below the bars of its stages."""
        if (left := self._left()) is None:
            return
        if self._run_bar is None:
            self._run_bar = self._bars.add_task(f"{self._label}whole run", unit="s", values="")
        spent = time.monotonic() - self._start
        said: dict[str, Any] = {"total": round(spent + left), "values": self._left_text(left)}
        self._bars.update(self._run_bar, completed=round(spent), **said)

    def _ended(self, stage: StageRecord) -> None:
        if stage.name in self._bar_ids:
            self._bars.remove_task(self._bar_ids.pop(stage.name))
        status, name = stage.outcome, f"{self._label}{stage.name}"
        line = f"{_MARK[status]} {name:<14} {status:<7} {stage.seconds:7.1f} s"
        self.say(f"{line}  {stage.error}" if stage.error else line)
