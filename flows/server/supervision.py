"""Keeps a server of ours up: restarts one that ended, or hangs, on its port, with its database and
settings.

The server's users go on meanwhile (`flows.server.prefect_view`), so restarting is not urgent. A
server that does not stay up is given up after a few tries, with one line for each.
"""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flows.server import process_tree
from schemas.base import InputError, Stopped

LOOK_SECONDS = 0.5
HUNG_SECONDS = 60.0
"""A server that lives but leaves its health unanswered this long is killed; a busy one takes
seconds."""

MOST_RESTARTS = 5
"""The most restarts of a server within `MEMORY_SECONDS`."""

MEMORY_SECONDS = 600.0
RESTART_SECONDS = 2.0
"""Seconds before the second try; each later one waits twice as long."""

Server = subprocess.Popen[bytes]


@contextmanager
def supervised(
    start: Callable[[threading.Event], Server],
    healthy: Callable[[], bool],
    stop: threading.Event,
    say: Callable[[str], None],
    gave_up: Callable[[str], None],
) -> Iterator[None]:
    """Run a server while inside, and start it again whenever it ends or hangs.

    Args:
        start: starts the server and returns when it answers; raises Stopped when its event is set
            first, and RuntimeError when the server does not start (the first time, twice).
        healthy: whether the server answers.
        stop: ends the first start.
        say: is told of each restart, in one line.
        gave_up: is told why the server is not started any more.

    Raises:
        Stopped, RuntimeError: as `start`, before the server has answered once.
    """
    supervisor = _Supervisor(start, healthy, say, gave_up)
    try:
        supervisor.server = start(stop)
    except RuntimeError as error:
        say(f"{_first_line(error)}; trying once more")
        supervisor.server = start(stop)
    thread = threading.Thread(
        target=supervisor.watch, name="prefect-server-supervisor", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        supervisor.done.set()
        thread.join()
        if supervisor.server is not None and supervisor.server.poll() is None and healthy():
            process_tree.stop(supervisor.server)
        elif supervisor.server is not None:
            process_tree.kill(supervisor.server)


@dataclass
class _Supervisor:
    start: Callable[[threading.Event], Server]
    healthy: Callable[[], bool]
    say: Callable[[str], None]
    gave_up: Callable[[str], None]
    server: Server | None = None
    done: threading.Event = field(default_factory=threading.Event)
    restarts: list[float] = field(default_factory=list)

    def watch(self) -> None:
        while self.server is not None:
            why = self._until_it_fails(self.server)
            if why is None:
                return
            process_tree.kill(self.server)  # also what is left of its tree, which holds the port
            self.server = None
            self._again(f"the Prefect server {why}")

    def _until_it_fails(self, server: Server) -> str | None:
        """Wait until the server ends or hangs; returns which, or None when it is needed no more."""
        healthy, looked = time.monotonic(), 0.0
        while not self.done.wait(LOOK_SECONDS):
            code = server.poll()
            if code is not None:
                return (
                    f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
                )
            if time.monotonic() < looked + HUNG_SECONDS / 10:
                continue
            looked = time.monotonic()
            if self.healthy():
                healthy = looked
            elif time.monotonic() > healthy + HUNG_SECONDS:
                return f"has not answered for {HUNG_SECONDS:.0f} s"
        return None

    def _again(self, what: str) -> None:
        """Try to start the server again, a limited number of times."""
        while not self.done.is_set():
            now = time.monotonic()
            self.restarts = [at for at in self.restarts if at > now - MEMORY_SECONDS]
            tries = len(self.restarts)
            if tries == MOST_RESTARTS:
                self.gave_up(f"{what}; after {tries} restarts it is not started again")
                return
            self.restarts.append(now)
            self.say(f"{what}; starting it again ({tries + 1} of at most {MOST_RESTARTS} times)")
            if tries and self.done.wait(RESTART_SECONDS * 2 ** (tries - 1)):
                return
            try:
                self.server = self.start(self.done)
                return
            except Stopped:
                return
            except (OSError, RuntimeError, InputError) as error:
                what = _first_line(error)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].partition(". Its log ends")[0]
