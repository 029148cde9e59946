"""One Python process inside bubblewrap (https://github.com/containers/bubblewrap), and nothing ever outside of it.

What the process has: the standard library of this Python, read-only, /dev/null, /dev/urandom and the pipes it is given. What it has not: a
network, the user's files, /proc, any place to write to, an environment (only PYTHONHASHSEED=0: the same sets in the same order every run),
other processes, more than `Limits`. The recipe and its traps were verified for shared/research/storage.md, "Security":

an ordinary user   a user namespace, in which further ones are forbidden; everything that is not mounted does not exist.
root               (containers, TPU machines) bwrap mounts as root, which reaches a Python below /root, and the guest's first act is to
                   become a user that nobody else is. In a user namespace root's guest would stay root to the kernel.

bwrap itself starts with an empty environment: what its process was given can be read at /proc/1/environ by those who have /proc.
The limits of time are the host's, who kills all inside, and whose own end ends it, and the kernel's (CPU seconds).
"""

import marshal
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import IO, Literal

from schemas.base import InputError
from tasks.sandbox.seccomp import filter_program

_INSTALL = "apt-get install bubblewrap libseccomp2"
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache")
_GRACE_S = 0.25  # a guest has nothing left to do when its pipes are closed
_DEVICES = ("/dev/null", "/dev/urandom")
_STRANGERS = range(200_000, 2_000_000_000)
"""User ids for the guests of root: each guest its own, so that no two share a count of threads."""


@dataclass(frozen=True)
class Limits:
    """What one sandboxed process may use.

    Attributes:
        wall_s: seconds until the host kills it. Generous, for a busy machine must not decide what is right.
        cpu_s: CPU seconds, of the process.
        memory_bytes: address space. There are no other processes and no files, so this is all the memory.
        threads: of the process, the main one included.
    """

    wall_s: float = 30.0
    cpu_s: int = 5
    memory_bytes: int = 512 * 2**20
    threads: int = 32


@cache
def require_sandbox() -> str:
    """The path of bwrap, after a guest was seen to live inside it. Raises InputError saying what is missing and how to get it."""
    if sys.platform != "linux":
        raise InputError(f"check 'tests' runs code that a model wrote, only inside bubblewrap, which needs Linux; this is {sys.platform}.")
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise InputError(f"check 'tests' runs code that a model wrote, only inside bubblewrap, and bwrap is not installed: {_INSTALL}.")
    with _guest(bwrap, "probe", {}, Limits(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as probe:
        _, said = probe.communicate(timeout=60)
    if probe.returncode != 0:
        raise InputError(
            f"check 'tests' runs code that a model wrote, only inside bubblewrap, and {bwrap} cannot start Python here: "
            f"{said.decode(errors='replace').strip() or f'exit status {probe.returncode}'}. An ordinary user needs user namespaces "
            "(Ubuntu 24.04: sysctl kernel.apparmor_restrict_unprivileged_userns=0), root in a container the capability SYS_ADMIN."
        )
    return bwrap


def guest(
    role: Literal["candidate", "examiner"],
    payload: dict[str, str],
    limits: Limits,
    *,
    stdin: IO[bytes],
    stdout: IO[bytes],
    verdict: int | None = None,
) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """A guest in its sandbox, dead when the block ends.

    Args:
        payload: the texts that the guest works with.
        stdin, stdout: ends of pipes. What the guest prints goes nowhere.
        verdict: of a pipe that only the examiner may write to.
    """
    return _guest(require_sandbox(), role, payload, limits, stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL, verdict=verdict)


@contextmanager
def _guest(
    bwrap: str,
    role: str,
    payload: dict[str, str],
    limits: Limits,
    *,
    stdin: IO[bytes] | int,
    stdout: IO[bytes] | int,
    stderr: int,
    verdict: int | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    root = os.geteuid() == 0
    settings = {
        "user": random.SystemRandom().choice(_strangers()) if root else None,
        "cpu_s": limits.cpu_s,
        "memory_bytes": limits.memory_bytes,
        "threads": limits.threads,
    }
    with ExitStack() as stack:
        # The other end is this process's alone, and closes with it: `tasks.sandbox.guest` ends then.
        lifeline, _ = (stack.enter_context(os.fdopen(end, mode)) for end, mode in zip(os.pipe(), ("rb", "wb"), strict=True))
        arguments = {"role": role, "settings": settings, "payload": payload, "verdict": verdict, "lifeline": lifeline.fileno()}
        given = stack.enter_context(_in_memory(marshal.dumps((_modules(), arguments))))
        seccomp = stack.enter_context(_in_memory(filter_program()))
        passed = [given.fileno(), seccomp.fileno(), lifeline.fileno()]
        process = subprocess.Popen(
            [
                *(bwrap, *(_AS_ROOT if root else _AS_USER), "--die-with-parent", "--as-pid-1", "--new-session", *_mounts()),
                *("--seccomp", str(seccomp.fileno()), "--", *_PYTHON, "-c", _LOADER, str(given.fileno())),
            ],
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=passed if verdict is None else [*passed, verdict],
            env={"PYTHONHASHSEED": "0"},
            cwd="/",
        )
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a guest that ends by itself, and kill one that does not: the guest, not bwrap, whose child would be left to the machine's
    process 1. In a container that may be one which reaps nobody. For the same reason no init of bwrap's stands between (`--as-pid-1`)."""
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        for inside in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split():
            os.kill(int(inside), signal.SIGKILL)
        try:
            process.wait(_GRACE_S * 20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


_AS_ROOT = (
    *("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
    *("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"),
)
_AS_USER = ("--unshare-all", "--unshare-user", "--disable-userns")
_PYTHON = (os.path.realpath(sys.executable), "-s", "-S", "-P", "-B", "-X", "utf8")
_LOADER = """
import marshal, os, sys, types
with os.fdopen(int(sys.argv[1]), "rb") as file:
    modules, arguments = marshal.load(file)
for name, code in modules.items():
    module = sys.modules[name] = types.ModuleType(name)
    if "." in name:
        package, _, own = name.rpartition(".")
        setattr(sys.modules[package], own, module)
    exec(code, module.__dict__)
module.main(**arguments)
"""


@cache
def _modules() -> dict[str, CodeType]:
    """The guest's modules, compiled once, in the order of their imports; the packages are empty."""
    empty = compile("", "<package>", "exec")
    sources = {name: (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8") for name in ("assembly", "wire", "guest")}
    compiled = {f"tasks.sandbox.{name}": compile(source, f"<{name}>", "exec") for name, source in sources.items()}
    return {"tasks": empty, "tasks.sandbox": empty, **compiled}


@contextmanager
def _in_memory(content: bytes) -> Iterator[IO[bytes]]:
    with os.fdopen(os.memfd_create("sandbox"), "wb+") as file:
        file.write(content)
        file.seek(0)
        yield file


@cache
def _mounts() -> tuple[str, ...]:
    """This Python and the C libraries, read-only, and two devices; the root itself cannot be written to either."""
    prefix = os.path.realpath(sys.base_prefix)
    own = {os.path.join(prefix, folder) for folder in ("lib", sys.platlibdir)} - set(_LIBRARIES)
    places = [*_LIBRARIES, *sorted(own), _PYTHON[0], *_DEVICES]
    parents = {str(parent) for place in places for parent in Path(place).parents} - {"/"}
    arguments = [word for parent in sorted(parents) for word in ("--dir", parent)]  # bwrap would make them for root's eyes only
    for place in places:
        if os.path.islink(place):
            arguments += ["--symlink", os.readlink(place), place]
        elif os.path.exists(place):
            arguments += ["--dev-bind" if place in _DEVICES else "--ro-bind", place, place]
    return (*arguments, "--remount-ro", "/")


@cache
def _strangers() -> range:
    """User ids that mean nobody: high ones where this machine (or its container) has them, else below nobody's."""
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        first, _, count = map(int, line.split())
        if first <= _STRANGERS.start and first + count >= _STRANGERS.stop:
            return _STRANGERS
    return range(30_000, 60_000)
