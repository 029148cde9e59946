"""Two minutes of simulated histories, from a seed that is new each time and is printed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def _simulate(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_no_law_is_broken() -> None:
    done = _simulate("--histories", "1000000", "--seconds", "100")
    sys.stdout.write(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_replayed_seed_is_the_same_history_byte_for_byte() -> None:
    """In two processes; of each place and target."""
    for target in ("local", "v5e-8"):
        first, second = (_simulate("--seed", "7", "--target", target, "--replay") for _ in range(2))
        assert first.stdout == second.stdout
        assert first.stdout.count("\n") > 20, first.stderr
