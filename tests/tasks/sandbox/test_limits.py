"""What a guest may use of memory and time, and what is left where it destroys its own process."""

import pytest

from tasks.sandbox.bubblewrap import Limits
from tasks.sandbox.examination import examine
from tests.tasks.sandbox.needed import needs_sandbox
from tests.tasks.sandbox.test_attacks import GUARD, attack

pytestmark = needs_sandbox

SHORT = Limits(cpu_s=1)


@pytest.mark.parametrize(
    "bomb",
    [
        "bytearray(2**40)",
        "[bytearray(2**26) for _ in range(9)]",
        "[mmap.mmap(-1, 2**24) for _ in range(60)]",  # shared and anonymous, as /dev/shm is
        "[mmap.mmap(-1, 2**24, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(60)]",
        "[os.memfd_create('x') for _ in range(3)]",
        "os.open('/dev/shm/x', os.O_CREAT | os.O_RDWR)",
        "[os.pipe() for _ in range(200)]",
        "list(iter(lambda: {1: [2] * 2**16}, None))",
        "'x' * 2**30 + 'y'",
    ],
)
def test_memory_is_limited(bomb: str) -> None:
    code = f"import mmap\ndef attack(_):\n    try:\n        x = {bomb}\n"
    code += "    except (OSError, MemoryError):\n        return 'refused'"
    assert attack(code) == "refused"


ENDLESS = {
    "one that catches everything": "try: exec('while True: pass')\n    except BaseException: pass",
    "a power": "9 ** 9 ** 9",
    "a loop": "pass",
    "a regular expression": "re.match(r'(a*)*b', 'a' * 40)",
    "a sum in C": "sum(iter(int, 1))",
    "printing": "print('x' * 2**16)",
    "errors": "sys.stderr.write('x' * 2**16)",
    "threads": "threading.Thread(target=sum, args=[iter(int, 1)]).start()",
    "signals ignored": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
    "garbage": "[refused(os.write, fd, b'\\0' * 2**16) for fd in range(3, 64)]",
}
"""Each again and again."""
QUICK = ["one that catches everything", "a power"]


def is_ended_by_its_cpu_seconds(name: str) -> None:
    """Not by the clock, which says 30 s."""
    code = f"import re, signal, threading\ndef attack(_):\n  while True:\n    {ENDLESS[name]}"
    examined = examine(GUARD + code, "assert attack(1) == 1", limits=SHORT)
    assert not examined.ok
    assert "a limit was met (30 s" not in examined.detail


@pytest.mark.parametrize("name", QUICK)
def test_what_never_ends_is_ended_by_its_cpu_seconds(name: str) -> None:
    is_ended_by_its_cpu_seconds(name)


WAITING = (
    "import signal as s\ns.pthread_sigmask(s.SIG_BLOCK, range(1, 65))\ns.sigwait([10])",
    "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "r, w = os.pipe()\nos.read(r, 1)",
)


@pytest.mark.parametrize("code", WAITING)
def test_what_waits_for_ever_is_ended_by_the_clock(code: str) -> None:
    code = f"{GUARD}\n{code}\ndef f(): return 1"
    examined = examine(code, "assert f() == 1", limits=Limits(wall_s=0.5))
    assert examined.detail.startswith("no verdict: a limit was met")


def test_code_that_destroys_its_own_process_destroys_nothing_else() -> None:
    closing = ("os.closerange(0, 2**16)", "for fd in range(3, 64): refused(os.dup2, 0, fd)")
    for code in (*closing, "import ctypes\nctypes.string_at(0)", "os.abort()"):
        code = f"{GUARD}\n{code}\ndef f(): return 1"
        assert not examine(code, "assert f() == 1", limits=SHORT).ok
        assert examine("def f(): return 1", "assert f() == 1").ok
