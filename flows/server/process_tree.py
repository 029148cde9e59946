"""Process trees that cannot outlive their starter.

`python -m flows.server.process_tree MODULE [ARGUMENTS]` runs a module as `python -m` would.

The starter holds the other end of standard input. When it goes away, however it dies, the read
below ends and the module's process gets a SIGTERM. The tree has a session of its own, so that
Ctrl-C in the terminal reaches the starter only, which then decides.
"""

import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO

STOP_SECONDS = 45.0
"""Seconds that a tree may take to stop by itself: running flows cancel their jobs first, for which
Prefect gives each 30 s."""

TAIL_BYTES = 2000
"""The most of a log that a message shows."""

FRAMES = re.compile(r"^([ \t].*|Traceback \(.*|.*, line \d+, in .*)?\n", re.MULTILINE)
"""What a message leaves out of it: the code that an error passed through."""


def start(
    module: str, *arguments: str, environment: Mapping[str, str], log: IO[bytes]
) -> "subprocess.Popen[bytes]":
    """Start a module as such a tree; its output goes to `log`."""
    command = [sys.executable, "-m", "flows.server.process_tree", module, *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=log,
        env=dict(environment),
        start_new_session=True,
    )


def stop(process: "subprocess.Popen[bytes]") -> None:
    """Ask the tree's first process to stop, wait until the whole tree has ended, and kill the rest
    after `STOP_SECONDS`."""
    deadline = time.monotonic() + STOP_SECONDS
    try:
        process.terminate()
        while time.monotonic() < deadline and _some_are_left(process):
            time.sleep(0.05)
    finally:  # also after a second Ctrl-C
        kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """End the whole tree at once, including processes that its first one left behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(log: IO[bytes]) -> str:
    """The end of what trees wrote to their log."""
    begins = max(0, os.fstat(log.fileno()).st_size - TAIL_BYTES)
    return FRAMES.sub("", os.pread(log.fileno(), TAIL_BYTES, begins).decode("utf-8", "replace"))


def _some_are_left(process: "subprocess.Popen[bytes]") -> bool:
    process.poll()  # else its own remains would count as a process of the tree
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 0)
        return True
    return False


def _stop_when_the_starter_is_gone() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    threading.Thread(target=_stop_when_the_starter_is_gone, daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
