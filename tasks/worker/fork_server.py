"""Forks workers (`infra.forks`): `python -m tasks.worker.fork_server SOCKET`, where SOCKET is the
number of an open one.

Each message is the path of a `job.json`, with two descriptors: the log, and the pipe that is told
the worker's process id and exit code. What the job's kind needs is imported first, so that the jobs
after it find it there. JAX has no backend in this process, for a fork of one does not compute; the
threads that libraries have started by then (OpenBLAS, jemalloc) are made anew in a fork.
"""

import os
import select
import signal
import socket
import sys
import warnings
from contextlib import suppress
from pathlib import Path

from infra.secrets import mask_output
from schemas.job import JobSpec
from tasks.worker.__main__ import main, open_log
from tasks.worker.preload import preload


def serve(channel: socket.socket) -> Path | None:
    """Fork a worker for each message. Returns in each worker the path of its job, and in the server
    None, once the other end is closed."""
    children: dict[int, int] = {}
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    server = os.getpid()
    while True:
        ready, _, _ = select.select([channel.fileno(), woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            _tell_of_the_ended(children)
        if channel.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(channel, 1 << 16, 2)
        if not message:
            return None
        log, told = descriptors
        job = Path(os.fsdecode(message))
        with suppress(Exception):  # the worker will say it
            spec = JobSpec.model_validate_json(job.read_bytes())
            preload(spec.kind, spec.devices)
        try:
            pid = os.fork()
        except OSError as error:  # a limit of memory or processes: the others go on
            os.write(log, f"the worker cannot be forked: {error}\n".encode())
            os.close(log)
            os.close(told)
            continue
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            channel.close()
            for descriptor in (woken, wake, *children.values()):
                os.close(descriptor)
            _become_worker(server, log, told)
            return job
        os.close(log)
        children[pid] = told


def _become_worker(server: int, log: int, told: int) -> None:
    """Begin a fork: a session of its own, and its output in the log. It ends here when nobody waits
    for it any more."""
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ["LYCEUM_PARENT_PID"] = str(server)
    try:
        os.write(told, f"pid {os.getpid()}\n".encode())
    except BrokenPipeError:
        os._exit(0)
    os.close(told)


def _tell_of_the_ended(children: dict[int, int]) -> None:
    for pid in list(children):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            told = children.pop(pid)
            with suppress(BrokenPipeError):
                os.write(told, f"code {os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(told)


if __name__ == "__main__":
    # from Python 3.12 on, for the threads that a fork makes anew
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    mask_output()
    open_log()
    path = serve(socket.socket(fileno=int(sys.argv[1])))
    if path is not None:
        sys.exit(main([str(path)]))
