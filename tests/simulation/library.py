"""The standard library as simulated threads see it: clock, threads, chance and processes.

Lyceum reads the clock, starts threads, draws numbers and starts processes by the names of the
standard library alone (`time.monotonic()`, `threading.Thread(...)`), so these names are the seam:
inside `simulated_library` they mean the world's to its threads, and what they always mean to all
others. Nothing of Lyceum is replaced.
"""

import fcntl
import os
import platform
import queue
import random
import secrets
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from infra import process_identity
from tests.simulation.threads import Condition, Lock, Queue, SimulatedThread
from tests.simulation.world import Process, World


class Machines:
    """What the operating systems of the simulated machines do for their processes.

    Args:
        start: runs a command line; returns the process.
        metadata: answers a request to the metadata server of the current process' machine.
        change: is told of each system call that changes a disk, before it is made.
    """

    def __init__(
        self,
        world: World,
        start: Callable[[list[str]], Process],
        metadata: Callable[[str], str],
        change: Callable[[str, str], None],
    ) -> None:
        self.world, self.start, self.metadata, self.change = world, start, metadata, change

    def find(self, pid: int) -> Process:
        """A process of the current one's machine. Raises ProcessLookupError."""
        machine = self.world.check().process.machine
        for process in self.world.processes:
            if (process.machine, process.pid) == (machine, pid) and process.alive:
                return process
        raise ProcessLookupError(pid)

    def signal(self, pid: int, number: int) -> None:
        process = self.find(pid)
        if number == signal.SIGKILL:
            self.world.kill(process)
        elif number:
            process.asked_to_stop = True


class Popen:
    """`subprocess.Popen` of a worker."""

    def __init__(self, machines: Machines, command: list[str], **options: Any) -> None:
        self._world = machines.world
        self._ended = Condition(self._world)
        self.process = machines.start(command)
        self.process.ended.append(self._ended.notify_all)
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        return self.process.code

    def poll(self) -> int | None:
        return self.process.code

    def wait(self, timeout: float | None = None) -> int:
        if self.process.alive:
            with self._ended:
                self._ended.wait(timeout)
        if self.process.code is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return self.process.code


class Opener:
    """`urllib.request.build_opener(...)` on a machine with a metadata server."""

    def __init__(self, machines: Machines) -> None:
        self._machines = machines

    def open(self, request: Any, timeout: float = 0.0) -> "Opener":
        self._said = self._machines.metadata(request.full_url)
        self.headers = {"ETag": self._said}
        return self

    def read(self) -> bytes:
        return self._said.encode()

    def __enter__(self) -> "Opener":
        return self

    def __exit__(self, *exception: object) -> None:
        pass


@contextmanager
def simulated_library(machines: Machines) -> Iterator[None]:
    """While inside, the names of the standard library mean the world's to its threads."""
    world, ident = machines.world, get_ident()
    platform.platform()  # starts a process, and remembers what it said
    tempfile.gettempdir()  # writes a file and unlinks it, and remembers where

    def to_threads(simulated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def choose(*arguments: Any, **options: Any) -> Any:
            if world.current is not None and get_ident() == ident:  # world.inside(), but faster
                return simulated(*arguments, **options)
            return real(*arguments, **options)

        return choose

    def made(kind: Callable[..., Any], **given: Any) -> Callable[..., Any]:
        return lambda *arguments, **options: kind(world, *arguments, **given, **options)

    def thread(
        group: Any = None, target: Any = None, name: Any = None, *rest: Any, **more: Any
    ) -> Any:
        return SimulatedThread(world, target, name, *rest, **more)

    def changing(call: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def changed(path: Any, *rest: Any, **options: Any) -> Any:
            machines.change(call, str(rest[0]) if call in _TWO_PATHS else str(path))
            if call in ("link", "replace"):  # files are as old as the world says
                os.utime(path, (world.clock(),) * 2)
            return real(path, *rest, **options)

        return changed

    def lock_file(file: Any, operation: int) -> None:
        while True:
            try:
                return _FLOCK(file, operation | fcntl.LOCK_NB)
            except BlockingIOError:
                if operation & fcntl.LOCK_NB:
                    raise
                world.sleep(0.5)

    chance = world.random
    simulated: list[tuple[Any, str, Callable[..., Any]]] = [
        (time, "time", world.clock),
        (time, "monotonic", world.monotonic),
        (time, "perf_counter", world.monotonic),
        (time, "sleep", world.sleep),
        (
            time,
            "strftime",
            lambda form, *at: _STRFTIME(form, *(at or (time.gmtime(world.clock()),))),
        ),
        (threading, "Lock", made(Lock)),
        (threading, "RLock", made(Lock, again=True)),
        (threading, "Condition", made(Condition)),
        (threading, "Thread", thread),
        (queue, "SimpleQueue", made(Queue)),
        (uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128), version=4)),
        (secrets, "token_hex", lambda n: chance.randbytes(n).hex()),
        (random, "uniform", chance.uniform),
        (socket, "gethostname", lambda: world.thread_now.process.machine),
        (os, "getpid", lambda: world.thread_now.process.pid),
        (process_identity, "process_began", lambda pid: None),  # /proc knows real ones only
        (os, "kill", machines.signal),
        (os, "killpg", machines.signal),
        (subprocess, "Popen", lambda command, **options: Popen(machines, command, **options)),
        (urllib.request, "build_opener", lambda *handlers: Opener(machines)),
        (fcntl, "flock", lock_file),
    ]
    simulated += [(os, call, changing(call, getattr(os, call))) for call in CHANGES]
    real = [(module, name, getattr(module, name)) for module, name, _ in simulated]
    for (module, name, stand_in), (_, _, original) in zip(simulated, real, strict=True):
        setattr(module, name, to_threads(stand_in, original))
    try:
        yield
    finally:
        for module, name, original in real:
            setattr(module, name, original)


CHANGES = ("link", "replace", "rename", "unlink", "rmdir")
"""System calls that change what a directory holds."""
_TWO_PATHS = ("link", "replace", "rename")
_FLOCK, _STRFTIME = fcntl.flock, time.strftime
