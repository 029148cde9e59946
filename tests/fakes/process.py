"""A fake of a cloud as a process of its own: how a test starts it and ends it, and what keeps it
alive until then."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

ROOT = Path(__file__).resolve().parents[2]
T = TypeVar("T")


def until(look: Callable[[], T], enough: Callable[[T], object] = bool, seconds: float = 300) -> T:
    """What `look` returns, once it is enough."""
    limit = time.monotonic() + seconds
    while not enough(found := look()):
        assert time.monotonic() < limit, f"waited in vain; last seen: {found}"
        time.sleep(0.03)
    return found


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def python(*arguments: object, **how: Any) -> "subprocess.Popen[str]":
    """Python in a process of its own, in the repository; what it prints is read as text."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.Popen(command, **{"cwd": ROOT, "stdout": subprocess.PIPE, **how}, text=True)


def run_python(*arguments: object, **how: Any) -> "subprocess.CompletedProcess[str]":
    """The same, when it has ended."""
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, **{"cwd": ROOT, "capture_output": True, **how}, text=True)


def printed(script: str, *arguments: object, **variables: str) -> str:
    """What a script prints in a process of its own, with more variables; it ends well."""
    done = run_python("-c", script, *arguments, env=os.environ | variables, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


class FakeProcess:
    """The process, as a context manager. Its first line says where it listens, which `started`
    takes note of.

    Args:
        module: what `python -m` runs.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]

    def __enter__(self) -> Self:
        # A process group of its own: on Ctrl-C whoever uses it cleans up first.
        self._process = subprocess.Popen(
            self._command, cwd=ROOT, stdout=subprocess.PIPE, text=True, process_group=0
        )
        places = self._process.stdout.readline().split()
        if not places:
            code = self._process.wait()
            raise RuntimeError(f"{self._command[2]} did not start: exit code {code}")
        self.started(*places)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._process.stdout.close()

    def started(self, *places: str) -> None:
        raise NotImplementedError


def wait_for_the_end(*places: str) -> None:
    """Print where the process listens, then wait for SIGTERM, SIGINT or its parent's end."""
    parent, stop = os.getppid(), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stop.set())
    sys.stdout.write(" ".join(places) + "\n")
    sys.stdout.flush()
    while not stop.wait(0.5) and os.getppid() == parent:
        pass


def reset(connection: socket.socket) -> None:
    """End a connection with a RST: at once, with nothing sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    os.close(connection.detach())
