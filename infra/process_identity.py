"""Which process did something, and whether it is still there to be asked: a pid counts on its own
machine, in its own container, since its last start."""

import functools
import os
import socket
from pathlib import Path

from schemas.reports import Process


def this_process() -> Process:
    """This process, as others can look it up."""
    return Process(host=socket.gethostname(), namespace=_namespace(), pid=os.getpid())


def is_here(process: Process) -> bool:
    """Whether a process would be found from here if it were alive: it ran on this machine, since
    its last start."""
    return process.host == socket.gethostname() and process.namespace == _namespace()


def is_gone(process: Process) -> bool:
    """Whether a process is known to have ended; False also when it cannot be looked up from
    here."""
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
    """What tells machines of one name apart: on Linux the id of the running kernel, and of the
    process namespace for containers. It stays what it is for as long as a process lives."""
    boot, link = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    return (
        f"{boot.read_text(encoding='ascii').strip()} {os.readlink(link)}"
        if boot.is_file() and link.is_symlink()
        else ""
    )
