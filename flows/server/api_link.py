"""Tracks whether the Prefect API answers, and reports once when it is lost and once when it is
back.

After the first failed request nobody asks again until the API's health answers, so an API that is
away, or accepts requests without answering, costs a run seconds once instead of at every stage.
"""

import threading
import time
from collections.abc import Callable

from flows.server.prefect_api import answers

LOOK_SECONDS = 1.0


class ApiLink:
    """The state of one Prefect API, shared by all clients and threads of a process.

    Args:
        say: called with one line when the API is lost, and one when it is back.
        stop: when set, nobody waits for the API any more.
        start_seconds: how long after its loss a flow that has not begun waits for the API.
        end_seconds: the same, once the flow has begun.
    """

    def __init__(
        self,
        url: str,
        say: Callable[[str], None],
        stop: threading.Event,
        *,
        start_seconds: float,
        end_seconds: float,
    ) -> None:
        self.url = url
        self._say, self._stop = say, stop
        self._patience, self._end_seconds, self._begun = start_seconds, end_seconds, False
        self._up, self._closed, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._up.set()
        self._since = 0.0  # monotonic time of the loss

    @property
    def up(self) -> bool:
        """Whether the API answered when it was last asked."""
        return self._up.is_set()

    def lost(self) -> None:
        """Record that a request got no answer; from now on, check the API's health."""
        with self._lock:
            if not self.up or self._closed.is_set():
                return
            self._up.clear()
            self._since = time.monotonic()
        meanwhile = "the run goes on without it, and what it should record is sent when it is back"
        waiting = f"waiting for it, up to {self._patience:.0f} s"
        server = self.url.removesuffix("/api")
        self._say(
            f"The Prefect server at {server} does not answer:"
            f" {meanwhile if self._begun else waiting}."
        )
        threading.Thread(target=self._look, name="prefect-api-link", daemon=True).start()

    def begun(self) -> None:
        self._patience, self._begun = self._end_seconds, True

    def wait(self) -> bool:
        """Wait for an API that has been away only briefly; returns whether it answers."""
        while not self._up.wait(0.1):
            if self._stop.is_set() or time.monotonic() > self._since + self._patience:
                return False
        return True

    def close(self) -> None:
        self._closed.set()

    def _look(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            if answers(self.url):
                self._up.set()
                if not self._closed.is_set():
                    self._say("The Prefect server answers again.")
                return
