"""A process tree ends with whoever started it, also when that one is killed."""

import os
import subprocess
import sys
import tempfile
import time

from flows.server import process_tree
from infra.process import ROOT

STARTER = """
import os, sys, tempfile, time
from flows.server import process_tree
command = ("http.server", "0", "--bind", "127.0.0.1")
process = process_tree.start(*command, environment=os.environ, log=tempfile.TemporaryFile())
print(process.pid, flush=True)
time.sleep(600)
"""


def ended(pid: int, seconds: float = 120) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_it_ends_when_its_starter_is_killed() -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    starter.stdout.close()
    assert ended(pid)


def test_stop_leaves_nothing_of_it() -> None:
    with tempfile.TemporaryFile() as log:
        process = process_tree.start(
            "http.server",
            "0",
            "--bind",
            "127.0.0.1",
            environment={**os.environ, "PYTHONPATH": str(ROOT)},
            log=log,
        )
        assert process.poll() is None
        process_tree.stop(process)
        assert ended(process.pid)
