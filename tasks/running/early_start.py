"""Begins stages before their Prefect task exists: Prefect's server takes seconds to start, and a
stage on this machine need not wait for it."""

import time
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

from schemas.job import JobRequest, JobStatus
from tasks.running.execution import make
from tasks.running.watch import Listener, Watch


class Begun:
    """A stage under way in a thread of its own. It keeps its messages until somebody listens.

    Attributes:
        since: its start, a moment of `time.monotonic`.
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


def begun_since(key: str) -> float | None:
    """The start of the stage with this key, a moment of `time.monotonic`; None: nobody began it, or
    its task has taken it."""
    found = _BEGUN.get(key)
    return None if found is None else found.since


def take(key: str) -> Begun | None:
    """The stage with this key, for the first caller; None for others, or if nobody began it."""
    return _BEGUN.pop(key, None)
