"""Whom a run tells what happens, and who stops it."""

import threading
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from schemas.job import JobStatus, Usage
from schemas.reports import RunRecord


@dataclass(frozen=True)
class Watch:
    """What a flow and its running stages share within this process, and what cannot be a parameter
    because it is not data.

    Attributes:
        stop: set it, and every stage cancels its job and ends.
        pause: set it, and no stage begins any more; every job is asked to save a checkpoint and to
            end, and one that waits for its machine is cancelled.
        progress: is told how a running stage's job is, from the stage's thread.
        say: is told what else there is to know of a stage, e.g. that it waits for another run.
        record: is told each new version of the run record.
        costs: stage -> what its jobs have cost in this run, US dollars; stages that cost nothing
            are absent.
        usages: stage -> what the worker of its last job measured.
        repairs: stage -> what was wrong with its artifact, which is made again.
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
    """Who follows one stage.

    Attributes:
        log: is told a line: what happens, and what the job prints.
        progress: is told how the job is, at each look at it.
    """

    log: Callable[[str], None]
    progress: Callable[[JobStatus], None]
