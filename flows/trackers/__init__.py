"""Trackers: services that a run's numbers are sent to when it has ended, if its environment names
them. A tracker is a file here:

    VARIABLES   variables of the environment, one of which makes it send
    INSTALL     the package to install
    send(run)   sends the run by the package's own Python interface, which reads the rest from the
                environment

Nothing of a tracker's package is imported unless it is configured, and nothing that it does wrong
fails a run.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from flows.runs.results import RunResults
from infra.secrets import mask

TRACKERS = tuple(
    sorted(
        path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_")
    )
)
"""The names of all trackers, which are the names of their packages."""


def track(run: RunResults, warn: Callable[[str], None]) -> None:
    """Send a run that has ended to every tracker that is configured; `warn` is told, once for each,
    why that was not possible."""
    for name in TRACKERS:
        tracker = importlib.import_module(f"flows.trackers.{name}")
        variable = next(
            (variable for variable in tracker.VARIABLES if os.environ.get(variable)), None
        )
        if variable is None:
            continue
        try:
            with contextlib.redirect_stdout(
                sys.stderr
            ):  # standard output is for the one object of --json
                tracker.send(run)
        except (
            Exception,  # noqa: BLE001
            SystemExit,
        ) as error:
            missing = isinstance(error, ModuleNotFoundError) and error.name == name
            why = (
                f"it is not installed; `uv pip install {tracker.INSTALL}`"
                if missing
                else mask(f"{type(error).__name__}: {error}")
            )
            warn(
                f"run {run.record.run_id} was not sent to {name}, which {variable} asks for: {why}"
            )
