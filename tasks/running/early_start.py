"""Begins stages before their Prefect task exists: Prefect's server takes seconds to start, and a
stage on this machine need not wait for it."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue

from schemas.job import JobRequest, JobStatus
from tasks.running.execution import make
from tasks.running.watch import Listener, Watch


class Begun:
    """A stage under way in a thread of its own. It keeps its messages until somebody listens."""

    def __init__(self, job: JobRequest, watch: Watch) -> None:
        self._since = time.monotonic()
        self._ended: float | None = None
        self._said: SimpleQueue[str | JobStatus | None] = SimpleQueue()
        listener = Listener(self._said.put, self._hear)
        with_thread = ThreadPoolExecutor(1, thread_name_prefix=f"begun-{job.stage}")
        self._made = with_thread.submit(make, job, watch, listener)
        self._made.add_done_callback(self._end)
        with_thread.shutdown(wait=False)

    def _hear(self, status: JobStatus) -> None:
        if status.state == "queued":
            self._since = time.monotonic()
        self._said.put(status)

    def _end(self, made: Future[bool]) -> None:
        self._ended = time.monotonic()
        self._said.put(None)

    def seconds(self) -> float:
        """How long it has run, or ran: neither the wait in the queue counts, nor the one for its
        task."""
        return (self._ended or time.monotonic()) - self._since

    def attend(self, listener: Listener) -> bool:
        """Pass on the stage's messages, past and future, until it ends; returns and raises what
        `make` does."""
        while (said := self._said.get()) is not None:
            if isinstance(said, str):
                listener.log(said)
            else:
                listener.progress(said)
        return self._made.result()

    def wait(self) -> None:
        """Wait until it has ended, well or not."""
        self._made.exception()


_BEGUN: dict[str, Begun] = {}


def begin(job: JobRequest, watch: Watch) -> None:
    """Begin a stage, which its task will `take`."""
    _BEGUN[job.key] = Begun(job, watch)


def begun(key: str) -> Begun | None:
    """The stage with this key, until its task takes it; None if nobody began it."""
    return _BEGUN.get(key)


def take(key: str) -> Begun | None:
    """The stage with this key, for the first caller; None for others, or if nobody began it."""
    return _BEGUN.pop(key, None)
