"""Stages that are begun before the task that runs them is there: Prefect's server takes seconds to
start, which a stage that runs on this machine need not wait for."""

import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from schemas.job import JobRequest, JobStatus
from tasks.running.execution import make
from tasks.running.watch import Listener, Watch


class Begun:
    """A stage under way in a thread of its own. What it says is kept until somebody listens.

    Attributes:
        since: when it was begun, a moment of `time.monotonic`.
    """

    def __init__(self, job: JobRequest, watch: Watch) -> None:
        self.since = time.monotonic()
        self._said: SimpleQueue[str | JobStatus | None] = SimpleQueue()
        listener = Listener(self._said.put, self._said.put)
        with_thread = ThreadPoolExecutor(1, thread_name_prefix=f"begun-{job.stage}")
        self._made = with_thread.submit(make, job, watch, listener)
        self._made.add_done_callback(lambda made: self._said.put(None))
        with_thread.shutdown(wait=False)

    def attend(self, listener: Listener) -> bool:
        """Pass on all that the stage has said and says until it ends; returns and raises what
        `make` does."""
        while (said := self._said.get()) is not None:
            if isinstance(said, str):
                listener.log(said)
            else:
                listener.progress(said)
        return self._made.result()

    def wait(self) -> None:
        """Wait until it has ended, however it did."""
        self._made.exception()


_BEGUN: dict[str, Begun] = {}


def begin(job: JobRequest, watch: Watch) -> None:
    """Begin a stage; its task is going to `take` it."""
    _BEGUN[job.key] = Begun(job, watch)


def begun_since(key: str) -> float | None:
    """When the stage of this key was begun, a moment of `time.monotonic`; None: nobody did, or its
    task has taken it."""
    found = _BEGUN.get(key)
    return None if found is None else found.since


def take(key: str) -> Begun | None:
    """The stage of this key that was begun, once."""
    return _BEGUN.pop(key, None)
