"""Identifies a process, and tells whether it still exists: a pid is valid on its own machine, in
its own container, since the last boot, until another process gets it: at once where a container
starts again, whose processes have the numbers of those before."""

import functools
import os
import socket
from pathlib import Path

from schemas.reports import Process


def this_process() -> Process:
    pid = os.getpid()
    return Process(
        host=socket.gethostname(), namespace=_namespace(), pid=pid, began=process_began(pid)
    )


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
    except PermissionError:  # another user's
        pass
    return process.began is not None and process_began(process.pid) not in (None, process.began)


def process_began(pid: int) -> int | None:
    """Clock ticks from the boot to the start of a process, -1 of one that has ended and is not
    waited for, None where /proc does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()  # its name may hold blanks
    return -1 if state in "ZX" else int(fields[18])


@functools.cache
def _namespace() -> str:
    """The id that separates machines of one name: on Linux that of the running kernel and, for
    containers, of the process namespace. It is constant while a process lives."""
    boot, link = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    known = boot.is_file() and link.is_symlink()
    return f"{boot.read_text(encoding='ascii').strip()} {os.readlink(link)}" if known else ""
