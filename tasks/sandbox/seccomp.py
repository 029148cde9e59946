"""The system calls of a sandboxed Python process: those listed here; any other fails as "function
not implemented" (ENOSYS).

A list of what is allowed stays closed when a kernel gains calls, and ENOSYS is what an older kernel
says: the C library falls back, e.g. from clone3 to clone. `prlimit64` only reads limits: a guest
that lowered its own would be killed as if the machine had done it, and nobody would judge its code.
`clone` makes threads only: no processes, so that the memory limit of one process is the limit of
all, and no namespaces. Nothing that opens sockets, traces, mounts, loads, or keeps memory outside
of the address space (memfd, SysV) is in the list.

libseccomp assembles the filter for any architecture. We call it by ctypes; pyseccomp (0.1.2, of
2021) does nothing else.
"""

import ctypes
import os
import tempfile
from functools import cache

from schemas.base import InputError

ALLOWED = """
    read write readv writev pread64 pwrite64 close close_range lseek dup dup2 dup3 fcntl ioctl pipe
    pipe2 socketpair eventfd2 open openat stat lstat fstat newfstatat statx access faccessat
    faccessat2 readlink readlinkat getdents getdents64 getcwd umask mmap mprotect munmap mremap
    madvise brk select pselect6 poll ppoll epoll_create epoll_create1 epoll_ctl epoll_wait
    epoll_pwait rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait rt_sigsuspend
    sigaltstack kill tgkill pause nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday
    time times alarm setitimer getitimer getpid getppid gettid getpgrp getpgid getsid getuid geteuid
    getgid getegid getresuid getresgid getgroups getrlimit getrusage prctl arch_prctl uname sysinfo
    sched_yield sched_getaffinity getcpu membarrier set_tid_address set_robust_list get_robust_list
    futex rseq getrandom wait4 waitid exit exit_group restart_syscall
"""

_ALLOW, _ENOSYS = 0x7FFF0000, 0x00050000 | 38
_EQUAL, _MASKED_EQUAL, _CLONE_THREAD = 4, 7, 0x00010000


class _Compare(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    ]


@cache
def filter_program() -> bytes:
    """The filter as the BPF program that seccomp(2) takes. Raises InputError where libseccomp is
    missing or refuses."""
    try:
        library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    except OSError as error:
        raise InputError(
            f"libseccomp is missing ({error}); the sandbox needs it: apt-get install libseccomp2."
        ) from error
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    add, pointer = library.seccomp_rule_add_array, ctypes.c_void_p
    add.argtypes = [pointer, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, pointer]
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    context = library.seccomp_init(_ENOSYS)
    try:
        failed = 0
        for name in ALLOWED.split():
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number >= 0:  # negative: this architecture has no such call (aarch64 has no open)
                failed |= library.seccomp_rule_add_array(context, _ALLOW, number, 0, None)
        thread = _Compare(0, _MASKED_EQUAL, _CLONE_THREAD, _CLONE_THREAD)
        for name, compare in (("clone", thread), ("prlimit64", _Compare(2, _EQUAL, 0, 0))):
            number = library.seccomp_syscall_resolve_name(name.encode())
            failed |= library.seccomp_rule_add_array(
                context, _ALLOW, number, 1, ctypes.byref(compare)
            )
        with tempfile.TemporaryFile() as file:
            failed |= library.seccomp_export_bpf(context, file.fileno())
            program = os.pread(file.fileno(), 1 << 20, 0)
    finally:
        library.seccomp_release(context)
    if failed or not program:
        raise InputError(
            "libseccomp refused the sandbox's filter; the sandbox needs libseccomp 2.4 or later:"
            " apt-get install libseccomp2."
        )
    return program
