"""`lyceum ask` as a process of its own stops when it is told to."""

import signal
from typing import Any

from infra.store.store import Store
from schemas.reports import RunRecord
from tests.flows.cli import test_ask
from tests.flows.cli.test_ask import QUESTION
from tests.flows.lab import start

run = test_ask.run


def test_ctrl_c_ends_the_process_cleanly(run: tuple[Store, RunRecord, Any]) -> None:
    """SIGINT after the first words: exit code 130, a line end, no traceback."""
    process = start(["ask", "demo-1", QUESTION, "--store", run[0].uri])
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "")
    assert (first + rest).endswith("\n")
