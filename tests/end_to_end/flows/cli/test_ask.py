"""`lyceum ask` as a process of its own stops when it is told to."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from infra.store.store import Store
from schemas.reports import RunRecord
from tests.flows.cli import test_ask
from tests.flows.cli.test_ask import QUESTION

run = test_ask.run


def test_ctrl_c_ends_the_process_cleanly(run: tuple[Store, RunRecord, Any]) -> None:
    """SIGINT after the first words: exit code 130, a line end, no traceback."""
    command = [
        sys.executable,
        "-m",
        "flows.cli.main",
        "ask",
        "demo-1",
        QUESTION,
        "--store",
        run[0].uri,
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[4],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=120)
    assert (process.returncode, errors.decode()) == (130, "")
    assert (first + rest).endswith(b"\n")
