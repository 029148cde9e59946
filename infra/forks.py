"""Workers that begin as forks of one process, which has imported what they need: a worker takes
one to four seconds of a core to import JAX, Tunix and its stage, and a fork of such a process a few
hundredths.

`tasks.worker.fork_server` is that process. It has an environment, is given jobs through a socket,
and lives until the socket is closed: no longer than the process that opened it. Of each job it is
handed the log and the end of a pipe that says `pid N` when the worker begins and `code N` when it
has ended.

Linux only, and only for jobs on the CPU: libraries of other systems and of accelerators start
threads that no fork survives.
"""

import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

SERVER = (sys.executable, "-m", "tasks.worker.fork_server")

TICK_SECONDS = 0.05
"""Whoever waits for a worker leaves others this often a chance to look at it."""


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a worker with these variables may begin as a fork."""
    return sys.platform == "linux" and environment.get("JAX_PLATFORMS") == "cpu"


class Fork:
    """A worker that was asked for; used like a `subprocess.Popen`.

    Attributes:
        pid: its process, which leads a session; None until it has begun.
    """

    def __init__(self, told: int) -> None:
        self.pid: int | None = None
        self._told, self._ready = told, select.poll()  # `select.select` knows 1024 descriptors
        self._ready.register(told, select.POLLIN)
        self._text = b""
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while there is none."""
        with self._lock:
            self._read(0)
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises subprocess.TimeoutExpired after so many seconds."""
        limit = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = limit - time.monotonic()
            with self._lock:
                self._read(max(0.0, min(left, TICK_SECONDS)))
                if self._code is not None:
                    return self._code
            if left <= 0:
                raise subprocess.TimeoutExpired(SERVER, timeout or 0.0)

    def withdraw(self) -> int | None:
        """The process id of a worker that has begun; one that has not never will."""
        with self._lock:
            self._read(0)
            if self.pid is None:
                self._end(-signal.SIGTERM)
            return self.pid

    def _read(self, seconds: float) -> None:
        if self._code is not None or not self._ready.poll(1000 * seconds):
            return
        data = os.read(self._told, 4096)
        self._text += data
        for line in self._text.splitlines():
            word, _, number = line.partition(b" ")
            if word == b"pid":
                self.pid = int(number)
            else:
                self._end(int(number))
        if not data:
            self._end(-signal.SIGKILL)  # the server is gone, and the worker ends with it

    def _end(self, code: int) -> None:
        if self._code is None:
            self._code = code
            os.close(self._told)


class ForkServer:
    """The process that forks workers, of one environment.

    Args:
        environment: its variables, and those of all its workers.
        root: the directory that holds the package `tasks`.
        log: takes what the process itself has to say.
    """

    def __init__(self, environment: Mapping[str, str], root: Path, log: BinaryIO) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [*SERVER, str(theirs.fileno())],
                cwd=root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def start(self, job: Path, log: BinaryIO) -> Fork:
        """Ask for the worker of a `job.json`; returns at once."""
        told, tells = os.pipe()
        try:
            with suppress(OSError):  # it has just died: the pipe, which is closed, says so
                socket.send_fds(self._channel, [os.fsencode(job)], [log.fileno(), tells])
        finally:
            os.close(tells)
        return Fork(told)

    def close(self) -> None:
        """End the process, and with it workers that are left."""
        self._channel.close()
        self._process.kill()
        self._process.wait()
