"""A process tree ends with whoever started it, also when that one is killed."""

import os
import tempfile

from flows.server import process_tree
from infra.process import ROOT
from tests.fakes.process import python, until
from tests.processes import exists

STARTER = """
import os, sys, tempfile, time
from flows.server import process_tree
command = ("http.server", "0", "--bind", "127.0.0.1")
process = process_tree.start(*command, environment=os.environ, log=tempfile.TemporaryFile())
print(process.pid, flush=True)
time.sleep(600)
"""


def test_it_ends_when_its_starter_is_killed() -> None:
    with python("-c", STARTER) as starter:
        pid = int(starter.stdout.readline())
        starter.kill()
    until(lambda: not exists(pid))


def test_stop_leaves_nothing_of_it() -> None:
    command = ("http.server", "0", "--bind", "127.0.0.1")
    with tempfile.TemporaryFile() as log:
        where = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = process_tree.start(*command, environment=where, log=log)
        assert process.poll() is None
        process_tree.stop(process)
        until(lambda: not exists(process.pid))


def test_a_messages_end_of_a_log_is_its_end_however_long_the_log_is(tmp_path):
    """It was the end of the first MiB."""
    with (tmp_path / "log").open("w+b") as log:
        assert process_tree.tail(log) == ""
        log.write(b"early\n" * 300_000 + b"the last word\n")
        log.flush()
        said = process_tree.tail(log)
    assert said.endswith("early\nthe last word\n")
    assert len(said) == process_tree.TAIL_BYTES
