"""The sandbox for root and for an ordinary user, and what is left of it in the end: nothing."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.fakes.process import ROOT, python, until
from tests.processes import descendants, state_of
from tests.tasks.sandbox.needed import needs_sandbox
from tests.tasks.sandbox.test_attacks import GUARD, WRITES

pytestmark = needs_sandbox


# An ordinary user

AS_USER = """
import json, os, sys
sys.path[:0] = json.loads(sys.argv[1])
from tasks.sandbox.examination import examine
guard, writes = json.loads(sys.argv[2])
alone = "(os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0)) == (1, 0, 1, 1)"
attacks = {
    "files": "refused(lambda: open('/etc/passwd').read())",
    "fork": "refused(os.fork)",
    "alone": f"'refused' if {alone} else 'not'",
    "unshare": "'refused' if ctypes.CDLL(None).unshare(0x10000000) else 'done'",
    "others": "refused(os.kill, -1, 9)",
}
codes = {name: f"import ctypes\\ndef attack(_):\\n    return {it}" for name, it in attacks.items()}
codes["writes"] = writes.replace("def attack(where):", "def attack(_):\\n    where = '/tmp'")
tests = "assert attack(1) == 'refused', attack(1)"
told = {name: examine(guard + code, tests).detail for name, code in codes.items()}
works = examine("def f(): return 1", "assert f() == 1").ok
print(json.dumps({"user": os.getuid(), "told": told, "works": works}))
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can become somebody else"
)
def test_it_holds_for_an_ordinary_user_as_for_root() -> None:
    """The kernel gives user namespaces instead of users to whoever is not root."""
    python = "/usr/bin/python3"
    paths = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    became = [*user, "env", "-i", "PATH=/usr/bin:/bin", python, "-B", "-c"]
    imports = f"import sys; sys.path[:0] = {paths}; import tasks.sandbox.examination"
    able = subprocess.run([*became, imports], cwd="/", capture_output=True)
    if able.returncode != 0:
        said = able.stderr.decode()[-200:]
        pytest.skip(f"user 65534 has no {python} that can import this package: {said}")
    given = [json.dumps(paths), json.dumps([GUARD, WRITES])]
    said = subprocess.run([*became, AS_USER, *given], cwd="/", capture_output=True)
    found = json.loads(said.stdout or said.stderr)
    assert found == {"user": 65534, "told": dict.fromkeys(found["told"], ""), "works": True}


# After the end


STUBBORN = """
import ctypes, os, signal, time
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
ctypes.CDLL(None).prctl(1, 0)
time.sleep(1000)
"""


def test_nothing_is_left_of_a_sandbox_whose_host_was_killed_or_that_had_to_be_killed() -> None:
    """No zombies either: in a container there may be no process 1 that reaps what a killed bwrap
    leaves. An examination at work is bwrap, the warden, and a keeper with its guest for each of the
    two; between examinations there are bwrap and the warden."""
    script = f"""
import os, sys
from tasks.sandbox.bubblewrap import Limits
from tasks.sandbox.examination import examine
examine("def f(): return 1", "f()")
examine({STUBBORN!r}, "f()", limits=Limits(wall_s=1))
print(flush=True)
sys.stdin.readline()
examine({STUBBORN!r}, "f()", limits=Limits(wall_s=100))
"""
    with python("-c", script, stdin=subprocess.PIPE, start_new_session=True) as host:
        try:
            host.stdout.readline()
            until(lambda: len(living(descendants(host.pid))) == 2)
            host.stdin.write("\n")
            host.stdin.flush()
            until(lambda: len(descendants(host.pid)) == 6)
            guests = descendants(host.pid)
        finally:
            host.kill()
    until(lambda: not living([(pid, state_of(pid)) for pid, _ in guests]))


def living(found: list[tuple[int, str]]) -> list[int]:
    return [pid for pid, state in found if state in "SRD"]
