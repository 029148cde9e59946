"""Supervises a job from a thread of the worker: heartbeat, progress, prompt cancellation, and an
end when nobody waits for it.

A stage spends its time in compiled code, where Python's signal handlers do not run. Signals are
therefore delivered to this thread as well, through a pipe (`signal.set_wakeup_fd`): the handler
interrupts the stage as soon as it is back in Python, and if the stage has not unwound within the
grace period the thread ends the process. The thread polls for the parent's end instead of using
`PR_SET_PDEATHSIG`, which fires when the *thread* that started the worker ends; in a thread pool
that can be long before the process does.
"""

import logging
import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Literal

from schemas.base import InputError
from schemas.job import JobStatus, Progress

log = logging.getLogger("lyceum")

CANCELLED = 130
"""Exit code of a cancelled job: 128 + SIGINT, as in shells."""

TICK_SECONDS = 0.2
"""The thread looks this often: progress is written at most, and a vanished parent noticed at least,
once per tick."""

GRACE_SECONDS = 1.5
"""Seconds that a cancelled stage may take to unwind."""

_FINISHED = b"\0"
"""Wakes the thread to end it; every other byte in the pipe is the number of a signal."""


def ended(
    state: Literal["failed", "cancelled", "paused"],
    error: str,
    exit_code: int,
    *,
    lost: bool = False,
) -> JobStatus:
    """The final status of a job that made no artifact."""
    return JobStatus(
        state=state, heartbeat=time.time(), error=error, exit_code=exit_code, lost=lost
    )


class Supervisor:
    """A context manager around a job, entered in the main thread. SIGTERM and SIGINT raise
    KeyboardInterrupt there, once.

    Args:
        write: stores a status; when it raises OSError or InputError (a full disk) that status is
            logged and lost, and the job goes on.
        heartbeat_seconds: the longest time between two writes.
        parent: the process whose end is the end of this job, or None if the job stands alone.
    """

    def __init__(
        self, write: Callable[[JobStatus], None], heartbeat_seconds: float, parent: int | None
    ) -> None:
        self._write = write
        self._heartbeat_seconds = heartbeat_seconds
        self._parent = parent
        # Replaced as a whole by the stage and read by our thread: there is no lock that an
        # interrupt could leave held.
        self._progress = Progress()
        self._began = time.time()
        self._interrupted = False
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    def __enter__(self) -> "Supervisor":
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._interrupt)
        self._store(JobStatus(state="running", heartbeat=time.time()))
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end_thread()

    def report(self, progress: Progress) -> None:
        """Record progress, which the thread writes at its next tick; the stage itself does no input
        or output."""
        self._progress = progress

    def finish(self, final: JobStatus) -> None:
        """Write the final status. After it, nothing is written or interrupted."""
        self._interrupted = True
        self._end_thread()
        self._store(final)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if not self._interrupted:
            self._interrupted = True
            raise KeyboardInterrupt

    def _end_thread(self) -> None:
        if self._thread.is_alive():
            os.write(self._wake, _FINISHED)
            self._thread.join()

    def _watch(self) -> None:
        written, beat = self._progress, time.monotonic()
        stop_by = math.inf
        while True:
            ready, _, _ = select.select([self._woken], [], [], TICK_SECONDS)
            received = os.read(self._woken, 64) if ready else b""
            if _FINISHED in received:
                return
            if stop_by == math.inf:
                if self._parent is not None and os.getppid() != self._parent:
                    log.warning("process %d, which submitted this job, is gone", self._parent)
                    os.kill(os.getpid(), signal.SIGTERM)
                    received = bytes([signal.SIGTERM])
                if received:
                    stop_by = time.monotonic() + GRACE_SECONDS
            elif time.monotonic() > stop_by:
                self._give_up()
            progress = self._progress
            if progress is not written or time.monotonic() - beat > self._heartbeat_seconds:
                self._store(JobStatus(state="running", heartbeat=time.time()))
                written, beat = progress, time.monotonic()

    def _give_up(self) -> None:
        """End the process although the stage has not unwound. That loses nothing, since an artifact
        exists only once its manifest does."""
        try:
            log.warning("cancelled; the stage did not stop within %g s", GRACE_SECONDS)
            self._store(ended("cancelled", "cancelled", CANCELLED))
        finally:
            os._exit(CANCELLED)

    def _store(self, status: JobStatus) -> None:
        told = {"progress": self._progress, "began": self._began}
        try:
            self._write(status.model_copy(update=told))
        except (OSError, InputError) as error:
            log.warning("the status could not be written: %s", error)
