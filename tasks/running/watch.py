"""The callbacks and events by which a run reports and is stopped."""

import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from schemas.job import JobStatus, Usage
from schemas.reports import RunRecord


@dataclass(frozen=True)
class Watch:
    """State that a flow and its running stages share within this process; not being data, it cannot
    be a parameter.

    Attributes:
        stop: set it, and every stage cancels its job and ends.
        pause: set it, and no stage begins any more; every job is asked to save a checkpoint and to
            end, and one that waits for its machine is cancelled.
        progress: called with the status of a running stage's job, in the stage's thread.
        say: called with other messages about a stage, e.g. that it waits for another run.
        record: called with each new version of the run record.
        costs: stage -> US dollars that its jobs have cost in this run; free stages are absent.
        usages: stage -> the measurements of its last job's worker.
        repairs: stage -> the damage of its artifact, which is made again.
    """

    stop: threading.Event = field(default_factory=threading.Event)
    pause: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[str, JobStatus], None] = field(default=lambda stage, status: None)
    say: Callable[[str, str], None] = field(default=lambda stage, text: None)
    record: Callable[[RunRecord], None] = field(default=lambda record: None)
    costs: dict[str, float] = field(default_factory=dict)
    usages: dict[str, Usage] = field(default_factory=dict)
    repairs: dict[str, str] = field(default_factory=dict)


WATCH: ContextVar[Watch] = ContextVar("lyceum_watch")


@dataclass(frozen=True)
class Listener:
    """The callbacks of a stage's follower.

    Attributes:
        log: called with each line: events, and the job's output.
        progress: called with the job's status at each poll.
    """

    log: Callable[[str], None]
    progress: Callable[[JobStatus], None]
