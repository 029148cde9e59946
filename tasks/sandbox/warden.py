"""The process inside bubblewrap that forks all guests of one host. It runs none of their code and
reads none of their input.

A guest costs two forks instead of a container and a Python: the warden forks a keeper, which enters
a new PID namespace (and, for a host that is not root, a user namespace) and forks the guest, its
only process. The guest lives in the warden's mount and network namespaces, where nothing is
writable, and gives up everything else before it reads its payload:

1. its session: it shares no process group with anybody, and sees no process but itself
2. root, where there is one to give up: it becomes a user that nobody else is; all capabilities
3. resources beyond its limits, and every system call that `tasks.sandbox.seccomp` does not name,
   exec and fork included
4. every file but its own pipes

A guest serves one job and is gone. The keeper, which no guest can see or signal, kills it as soon
as the host lets go of the control socket; the warden ends when the host does, and everything inside
with it, for it is process 1 there.
"""

import ctypes
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
from contextlib import suppress
from typing import Any

from tasks.sandbox import guest

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_USER, _NEW_PID = 0x10000000, 0x20000000
_NO_NEW_PRIVILEGES, _SECCOMP, _FILTER = 38, 22, 2
_CAPABILITIES_VERSION = 0x20080522
_BEGUN = b"begun"
_PRELOADED = """
    bisect collections copy dataclasses datetime decimal fractions functools hashlib heapq itertools
    math operator random statistics string typing
"""
"""Modules that answers often import, loaded once here instead of in every guest."""


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def main(asked: int, seccomp: bytes) -> None:
    """Serve the host until it closes its end of the socket `asked`: each message is a job with its
    files (`tasks.sandbox.bubblewrap`)."""
    for name in _PRELOADED.split():
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers need no reaping
    gc.freeze()  # what is there now is shared with all guests, not copied by their collections
    host = socket.socket(fileno=asked)
    while True:
        message, files, _, _ = socket.recv_fds(host, 4096, 8)
        if not message:
            os._exit(0)
        with socket.socket(fileno=files[0]) as control:
            try:
                if os.fork() == 0:
                    host.close()
                    _keep(control, json.loads(message), files[1:], seccomp)
            except OSError as error:
                _say(control, failed=f"no process could be started: {error}")
        for file in files[1:]:
            os.close(file)


def _say(control: socket.socket, **what: Any) -> None:
    """Send a message to the host, which may be gone."""
    with suppress(OSError):
        control.send(json.dumps(what).encode())


def _keep(control: socket.socket, job: dict[str, Any], files: list[int], seccomp: bytes) -> None:
    """Keep a guest: tell the host that it has begun and how it ended, or end it when the host lets
    go. Never returns."""
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ready, tell = os.pipe()
        new = _NEW_PID if job["user"] is not None else _NEW_PID | _NEW_USER
        _checked("unshare", _LIBC.unshare(new))
        inside = os.fork()
        if inside == 0:
            _become_guest(tell, job, files, seccomp)
        os.close(tell)
        if (said := os.read(ready, 4096)) != _BEGUN:
            raise RuntimeError(said.decode() or "a guest ended before it began")
        # only now: who reads the end of a pipe knows that the guest has begun, or that the host was
        # told
        for file in files:
            os.close(file)
        ended, most = os.pidfd_open(inside), job["limits"]["cpu_s"]
        if unwanted := ended not in select.select([ended, control.fileno()], [], [])[0]:
            os.kill(inside, signal.SIGKILL)
        _, status, usage = os.wait4(inside, 0)
        exitcode, used = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        if exitcode == -signal.SIGKILL and not unwanted and used < 0.5 * most:
            killed = f"a guest was killed after {used:.1f} of {most} CPU seconds, and not by us"
            raise RuntimeError(f"{killed}: is the machine out of memory?")
        _say(control, status=exitcode)
    except Exception as error:  # noqa: BLE001  whatever it is, the host is told
        _say(control, failed=str(error))
    finally:
        os._exit(0)


def _become_guest(tell: int, job: dict[str, Any], files: list[int], seccomp: bytes) -> None:
    """Give up everything, report that, and run the guest. Never returns."""
    try:
        os.setsid()
        _limit(**job["limits"], keepers=int(job["user"] is None))
        if job["user"] is not None:
            os.setgroups([])
            os.setresgid(job["user"], job["user"], job["user"])
            os.setresuid(job["user"], job["user"], job["user"])
        header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
        _checked("capset", _LIBC.capset(header, (ctypes.c_uint32 * 6)()))
        nothing = os.open("/dev/null", os.O_RDWR)
        left_open = sorted({*files, tell})
        for stream in (0, 1, 2):
            os.dup2(nothing, stream)
        for before, after in zip([2, *left_open], [*left_open, 2**16], strict=True):
            os.closerange(before + 1, after)
        _checked("no_new_privs", _LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        program = ctypes.byref(_Program(len(seccomp) // 8, seccomp))
        _checked("seccomp", _LIBC.prctl(_SECCOMP, _FILTER, program, 0, 0))
    except Exception as error:  # noqa: BLE001  whatever it is, nothing foreign has run yet
        os.write(tell, str(error).encode())
        os._exit(0)
    try:
        os.write(tell, _BEGUN)
        os.close(tell)
        guest.main(job["role"], *files)
    finally:
        os._exit(0)  # at once, whatever threads and exit handlers the code has left


def _limit(cpu_s: int, memory_bytes: int, threads: int, keepers: int) -> None:
    """Set hard limits, which nobody but root can raise. The kernel counts threads by user, or by
    user namespace, so the keeper's count, too."""
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_NPROC, threads + keepers),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, memory_bytes),
    ):
        resource.setrlimit(kind, (most, most))


def _checked(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
