"""Trackers: services that a run's numbers are sent to when it has ended, if its environment names
them. A tracker is a file here that ends with `TRACKER = Tracker(...)`; its name is that of the
package that it sends by.

Nothing of a tracker's package is imported unless it is configured, and nothing that it does wrong
fails a run.
"""

import contextlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from flows.runs.results import RunResults
from infra.secrets import mask
from tasks.contract.plugins import Family


@dataclass(frozen=True, kw_only=True)
class Tracker:
    """A tracker.

    Attributes:
        variables: of the environment, one of which makes it send.
        install: the package to install.
        send: sends a run by the package's own Python interface, which reads the rest from the
            environment. Raises whatever the package raises.
    """

    variables: tuple[str, ...]
    install: str
    send: Callable[[RunResults], None]


TRACKERS: Family[Tracker] = Family("flows.trackers", Tracker)


def track(run: RunResults, warn: Callable[[str], None]) -> None:
    """Send a run that has ended to every tracker that is configured; `warn` is told, once for each,
    why that was not possible."""
    for name in TRACKERS.names():
        tracker = TRACKERS[name]
        variable = next((one for one in tracker.variables if os.environ.get(one)), None)
        if variable is None:
            continue
        try:
            with contextlib.redirect_stdout(sys.stderr):  # standard output is for --json's object
                tracker.send(run)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            why = mask(f"{type(error).__name__}: {error}")
            if isinstance(error, ModuleNotFoundError) and error.name == name:
                why = f"it is not installed; `uv pip install {tracker.install}`"
            sent = f"run {run.record.run_id} was not sent to {name}"
            warn(f"{sent}, which {variable} asks for: {why}")
