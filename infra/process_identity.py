"""Identifies a process, and tells whether it still exists: a pid is valid on its own machine, in
its own container, since the last boot."""

import functools
import os
import socket
from pathlib import Path

from schemas.reports import Process


def this_process() -> Process:
    """This process' identity."""
    return Process(host=socket.gethostname(), namespace=_namespace(), pid=os.getpid())


def is_here(process: Process) -> bool:
    """Whether a process would be visible here if it were alive: it ran on this machine, since the
    last boot."""
    return process.host == socket.gethostname() and process.namespace == _namespace()


def is_gone(process: Process) -> bool:
    """Whether a process is known to have ended; False also when it is not visible here."""
    if not is_here(process):
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # alive, and another user's
        return False
    return False


@functools.cache
def _namespace() -> str:
    """The id that separates machines of one name: on Linux that of the running kernel and, for
    containers, of the process namespace. It is constant while a process lives."""
    boot, link = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    return (
        f"{boot.read_text(encoding='ascii').strip()} {os.readlink(link)}"
        if boot.is_file() and link.is_symlink()
        else ""
    )
