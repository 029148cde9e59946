"""The deadline of a run, `lyceum run --hours H`: for a notebook session that ends, or a machine
that is lent for a time.

Some time before it no further stage begins, and running ones are asked to save a checkpoint and to
end. Shortly before it the rest is stopped as by Ctrl-C, so that the command ends in time, although
a step may take minutes and some stages have no steps.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flows.planning.sessions import working_seconds

STOP_SECONDS = 60.0
"""Seconds before the deadline at which the rest is stopped; at most a fiftieth of the whole
time."""


@dataclass(frozen=True)
class Deadline:
    """The moments at which a run pauses and at which it stops, by the clock of `time.monotonic`."""

    pause: float
    stop: float

    @classmethod
    def after(cls, hours: float) -> "Deadline":
        seconds, now = 3600 * hours, time.monotonic()
        return cls(
            pause=now + working_seconds(hours), stop=now + seconds - min(STOP_SECONDS, seconds / 50)
        )


@contextmanager
def observed(
    deadline: Deadline | None,
    pause: threading.Event,
    stop: threading.Event,
    say: Callable[[str], None],
) -> Iterator[None]:
    """Set the events inside when their moments come; past ones at once."""

    def come(event: threading.Event, text: str) -> None:
        say(f"The deadline {text}.")
        event.set()

    near = "is near: no stage begins any more, and running ones save a checkpoint"
    over = "has come: running stages are stopped, to continue from what they saved"
    timers: list[threading.Timer] = []
    if deadline is not None:
        for moment, *told in ((deadline.pause, pause, near), (deadline.stop, stop, over)):
            timers.append(threading.Timer(max(0.0, moment - time.monotonic()), come, told))
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
