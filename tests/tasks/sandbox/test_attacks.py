"""Attacks on the sandbox from within, each small, and harmless where it is contained. Those on a
verdict: test_verdicts.py."""

import ctypes
import functools
import os
import platform
import shutil
import socket
import sys
from pathlib import Path

import pytest

from tasks.sandbox import seccomp
from tasks.sandbox.bubblewrap import Limits
from tasks.sandbox.examination import examine
from tests.tasks.sandbox.needed import needs_sandbox

pytestmark = needs_sandbox

GUARD = """
import os, sys
if os.path.exists("/proc") or os.path.exists("/home") or os.path.exists("/etc/passwd"):
    raise RuntimeError("an attack runs in the sandbox only")
def refused(attack, *arguments):
    try:
        return f"done: {attack(*arguments)}"
    except (OSError, ValueError, MemoryError, RuntimeError):
        return "refused"
def all_refused(*attacks):
    said = [refused(one) for one in attacks]
    return "refused" if set(said) == {"refused"} else said
"""


def attack(code: str, argument: object = None) -> str:
    """What an attack gave, run as an answer's code. It returns `refused(...)` of what it tried."""
    tests = f"result = attack({argument!r})\nassert result == 'refused', result"
    examined = examine(GUARD + code, tests)
    return "refused" if examined.ok else examined.detail


def gives(expression: str, argument: object = None, imports: str = "os") -> str:
    """What an attack of one expression gave; `it` is its argument."""
    return attack(f"import {imports}\ndef attack(it):\n    return {expression}", argument)


def test_attacks_refuse_to_run_outside_the_sandbox() -> None:
    with pytest.raises(RuntimeError, match="in the sandbox only"):
        exec(GUARD, {})


# Files


PLACES = """
    /etc/shadow /etc/passwd /proc/1/environ /proc/self/mem /proc/self/maps /sys ~/.ssh secret
    repository /tmp /dev/shm /dev/mem /dev/tty /var /run
"""


@pytest.mark.parametrize("where", PLACES.split())
def test_no_file_of_the_machine_or_its_user_can_be_read(where: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("key")
    ours = {"secret": str(secret), "repository": str(Path(__file__))}
    path = ours.get(where) or os.path.expanduser(where)
    if where in ("/etc/shadow", "/proc/1/environ", *ours):
        assert Path(path).exists()
    read = "os.listdir(it) if os.path.isdir(it) else open(it, 'rb').read()"
    assert gives(f"refused(lambda: {read})", path) == "refused"


WRITES = """
import tempfile
def attack(where):
    x, python = where + "/x", sys.executable
    return all_refused(
        lambda: open(x, "w"),
        lambda: os.open(x, os.O_RDWR | os.O_CREAT),
        lambda: os.open(where, os.O_TMPFILE | os.O_RDWR),
        lambda: os.mkdir(x),
        lambda: os.mkfifo(x),
        lambda: os.mknod(x),
        lambda: os.symlink("/", x),
        lambda: os.link(python, x),
        lambda: os.rename(python, x),
        lambda: os.unlink(python),
        lambda: os.truncate(python, 2**40),
        lambda: os.chmod(python, 0o777),
        lambda: os.open(python, os.O_RDWR),
        lambda: os.chroot(where),
        lambda: [open(f"{x}{number}", "w") for number in range(9)],
        lambda: tempfile.mkstemp(),
        lambda: os.utime(python),
    )
"""


@pytest.mark.parametrize(
    "where", ["/", "/tmp", "/dev", "/dev/shm", "/etc", "/usr/lib", sys.base_prefix, "."]
)
def test_nothing_can_be_written_be_it_large_sparse_many_or_a_link(where: str) -> None:
    assert attack(WRITES, where) == "refused"


# The network, and sockets that are none


def test_there_is_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connect = "refused(lambda: socket.create_connection(('127.0.0.1', it), 2))"
        assert gives(connect, server.getsockname()[1], "socket") == "refused"
    token = "computeMetadata/v1/instance/service-accounts/default/token"
    read = "refused(lambda: urllib.request.urlopen(it, timeout=2).read())"
    assert gives(read, f"http://169.254.169.254/{token}", "urllib.request") == "refused"


def test_no_socket_of_any_family_can_be_made_and_a_pair_leads_nowhere() -> None:
    code = """
import socket
def attack(families):
    for family in families:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            if refused(socket.socket, family, kind) != "refused":
                return family, kind
    a, b = socket.socketpair()
    return all_refused(
        lambda: a.connect("\\0x"),
        lambda: a.bind("\\0x"),
        lambda: a.bind("/x"),
        lambda: a.listen(),
        lambda: a.sendto(b"x", "\\0x"),
        lambda: socket.send_fds(a, [b"x"], [0]),
        lambda: a.setsockopt(1, 9, 1),
    )
"""
    # among them unix 1, inet 2, inet6 10, netlink 16, packet 17, alg 38, vsock 40
    assert attack(code, list(range(46))) == "refused"


# Processes, threads, signals


REFUSES = (
    # other processes; `it` is set-uid root
    ("refused(os.fork)", "os"),
    ("refused(subprocess.run, [sys.executable, '-V'])", "subprocess"),
    ("refused(os.posix_spawn, sys.executable, [sys.executable], {})", "os"),
    ("refused(os.execv, sys.executable, [sys.executable])", "os"),
    ("refused(os.execv, it, [it])", "os"),
    ("refused(multiprocessing.Pool, 2)", "multiprocessing"),
    # being root again
    ("'refused' if os.getuid() and os.geteuid() and os.getgid() else os.getuid()", "os"),
    ("all_refused(lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]))", "os"),
    ("all_refused(lambda: os.setresuid(0, 0, 0), lambda: os.seteuid(0))", "os"),
    ("all_refused(lambda: os.nice(-5), lambda: os.setpriority(0, 0, -5))", "os"),
    # limits, which cannot be changed
    ("refused(resource.setrlimit, resource.RLIMIT_CPU, (0, 0))", "resource"),
    ("refused(resource.setrlimit, resource.RLIMIT_AS, (-1, -1))", "resource"),
    # of devices there are the harmless two
    ("'refused' if sorted(os.listdir('/dev')) == ['null', 'urandom'] else 'more'", "os"),
)


@pytest.mark.parametrize(("expression", "imports"), REFUSES)
def test_there_are_no_other_processes_no_root_and_no_other_limits(expression, imports):
    assert gives(expression, shutil.which("su"), imports) == "refused"


def test_a_thread_bomb_takes_no_thread_from_its_neighbours() -> None:
    """There are few, and they are counted by user, or by user namespace: the two guests of an
    examination do not share one."""
    bomb = """
import threading
started = []
try:
    while True:
        started.append(threading.Thread(target=threading.Event().wait))
        started[-1].start()
except RuntimeError:
    pass
def f(): return len(started)
"""
    tests = """
import threading
assert f() == 8
for _ in range(7):
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""
    examined = examine(GUARD + bomb, tests, limits=Limits(threads=8))
    assert examined.ok, examined.detail


def test_signals_reach_nobody_outside() -> None:
    kills = """
import ctypes, fcntl, signal
def attack(_):
    libc = ctypes.CDLL(None)
    for pid in [*range(2, 5000), -1, *range(-5000, -1)]:
        if refused(os.kill, pid, 9) != "refused" or libc.tgkill(pid, pid, 9) == 0:
            return pid
    os.kill(0, 0)  # the group is its own: only it
    reader, writer = os.pipe()
    for pid in [*range(2, 1000), *range(-1000, -1)]:
        if refused(fcntl.fcntl, reader, fcntl.F_SETOWN, pid) != "refused":
            return pid
    alone = (os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0)) == (1, 0, 1, 1)
    return "refused" if alone else (os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0))
"""
    assert attack(kills) == "refused"


# The kernel

REFUSED = """
    fork vfork clone3 execve execveat ptrace process_vm_readv process_vm_writev kcmp pidfd_open
    pidfd_getfd pidfd_send_signal socket connect bind listen accept sendto sendmsg recvmsg
    io_uring_setup io_uring_enter io_uring_register bpf perf_event_open userfaultfd unshare setns
    mount umount2 pivot_root chroot open_tree move_mount fsopen fsmount mount_setattr
    name_to_handle_at open_by_handle_at keyctl add_key request_key init_module finit_module
    delete_module kexec_load kexec_file_load reboot swapon swapoff sethostname setdomainname
    clock_settime settimeofday adjtimex clock_adjtime syslog acct quotactl personality iopl ioperm
    setuid setgid setresuid setresgid setreuid setregid setgroups setfsuid setfsgid capset
    setpriority ioprio_set sched_setscheduler memfd_create memfd_secret shmget shmat semget msgget
    mq_open seccomp landlock_create_ruleset fanotify_init inotify_init1 mkdir mkdirat mknod mknodat
    symlink symlinkat link linkat rename renameat2 unlink unlinkat truncate ftruncate fallocate
    chmod fchmodat chown fchownat utimensat setxattr creat vmsplice splice tee sendfile
    copy_file_range setsid setpgid setrlimit vhangup lookup_dcookie
"""
"""By what they would do: processes and others' memory, sockets and rings, namespaces and mounts,
the machine, identity, memory beside the address space, files."""


@functools.cache
def number(name: str) -> int:
    """Of a system call on this machine; below 0: there is none."""
    resolve = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name
    return int(resolve(name.encode()))


def test_every_system_call_that_is_not_allowed_fails_as_if_the_kernel_had_none() -> None:
    # the last two: with some arguments
    allowed = {number(name) for name in (*seccomp.ALLOWED.split(), "clone", "prlimit64")}
    # kernels answer these before any filter: by SIGILL, for there is no probe
    probes = {335, 336} if platform.machine() == "x86_64" else set()
    refused = [one for one in range(1024) if one not in allowed | probes]
    assert {number(name) for name in REFUSED.split() if number(name) >= 0} <= set(refused)
    calls = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def attack(numbers):
    call = lambda one: (libc.syscall(one, 0, 0, 0, 0, 0, 0), ctypes.get_errno())
    return [one for one in numbers if call(one) != (-1, 38)] or "refused"
"""
    assert attack(calls, refused) == "refused"


LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\ndef attack(number):\n"


@pytest.mark.parametrize(
    "flags", ["0x10000000", "0x20000000", "0x00020000", "0x40000000", "0x100", "17"]
)
def test_clone_makes_threads_only(flags: str) -> None:
    """Not with a new user, PID, mount or network namespace, with shared memory, or as fork does."""
    code = f"{LIBC}    got = libc.syscall(number, {flags}, 0, 0, 0, 0)\n"
    code += "    return 'refused' if got == -1 and ctypes.get_errno() == 38 else got"
    assert attack(code, number("clone")) == "refused"


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="another processor has no second system call interface"
)
def test_the_32_bit_and_x32_interfaces_are_closed() -> None:
    """`int 0x80` has other numbers, so a filter of 64-bit numbers alone would let it through."""
    run = r"""
import ctypes, mmap
def attack(_):
    page = mmap.mmap(-1, 4096, prot=7)
    page.write(b'\xb8\x14\x00\x00\x00\xcd\x80\xc3')  # mov eax, 20 (getpid); int 0x80; ret
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
    assert "by signal 31" in attack(run)
    x32 = "    return 'refused' if libc.syscall(0x40000000 + 39) == -1 else 'done'"
    assert attack(LIBC + x32) != "'done'"


# Secrets in the process itself


def test_the_environment_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    left = "sorted(set(os.environ) - {'PYTHONHASHSEED', 'PWD', 'LC_CTYPE'})"
    assert gives(f"{left} or 'refused'") == "refused"
    block = """
import ctypes, itertools
def attack(_):
    block = ctypes.c_void_p.in_dll(ctypes.CDLL(None), "environ")
    found = ctypes.cast(block, ctypes.POINTER(ctypes.c_char_p))
    names = list(itertools.takewhile(bool, map(found.__getitem__, range(99))))
    return "refused" if all(b"API_KEY" not in one for one in names) else names
"""
    assert attack(block) == "refused"


SEARCH = """
import ctypes, gc
def attack(parts):
    marker, held = "".join(parts), 0
    for item in gc.get_objects():
        found = [one for one in gc.get_referents(item) if type(one) in (str, bytes)]
        held += sum(marker in str(one) for one in found)
    frame, texts = sys._getframe(), 0
    own = ("marker", "held", "parts", "found")
    while frame:
        names = [*frame.f_locals.items()]
        texts += sum(marker in repr(value) for name, value in names if name not in own)
        frame = frame.f_back
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    end = libc.sbrk(0)
    copies = ctypes.string_at(end - 2**20, 2**20).count(marker.encode())
    return "refused" if (held, texts, copies <= 9) == (1, 0, True) else (held, texts, copies)
"""


def test_a_guest_has_no_file_open_but_its_own_pipes() -> None:
    """Not the keeper's socket, on which the host is told how a guest ended; nor the warden's, on
    which guests are asked for."""
    code = """
import stat
def attack(_):
    found = []
    for fd in range(2**10):
        try:
            found.append(os.fstat(fd))
        except OSError:
            pass
    null = os.stat("/dev/null").st_rdev
    pipes = [one for one in found if stat.S_ISFIFO(one.st_mode)]
    others = [one for one in found if one not in pipes and one.st_rdev != null]
    modes = [stat.filemode(one.st_mode) for one in others]
    return "refused" if not others and len(pipes) == 2 else modes
"""
    assert attack(code) == "refused"


def test_a_candidate_has_neither_its_tests_nor_what_earlier_guests_had_in_its_memory() -> None:
    """All guests are forks of one warden: it must never read what one of them gets."""
    code = "x = 'swordfish-1729'\ndef f(): return 1"
    for _ in range(3):
        examine(code, "SECRET = 'swordfish-1729'\nassert f() == SECRET")
    assert attack(SEARCH + "\n" + "# " + "x" * 10, ["swordfish", "-", "1729"]) == "refused"
