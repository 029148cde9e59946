"""JAX's compilation cache is safe for processes that run at the same time, and heals."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra import compile_cache
from infra.process import ROOT, worker_environment

PROGRAM = """
import jax
hits = []
note = lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None
jax.monitoring.register_event_listener(note)
print(jax.jit(lambda x: x * 2 + 1)(3), len(hits))
"""


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("JAX_COMPILATION_CACHE_")]:
        monkeypatch.delenv(name)
    return tmp_path / "jax"


def compute(directory: Path) -> tuple[list[str], str]:
    """What a fresh process prints, a result and how many programs it found, and what it says."""
    environment = worker_environment(str(directory))
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split(), done.stderr


def test_half_an_entry_is_removed_and_written_again(directory: Path) -> None:
    first, said = compute(directory)
    assert (first, said) == (["7", "0"], "")
    assert compute(directory)[0] == ["7", "1"]
    (entry,) = directory.glob("*-cache")
    whole = entry.read_bytes()
    entry.write_bytes(whole[:100])  # a process was killed while it wrote
    compile_cache.used(entry).unlink()
    assert compute(directory) == (["7", "0"], "")
    assert entry.read_bytes() == whole
    assert compute(directory) == (["7", "1"], "")


def test_processes_lock_the_directory(directory: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(compute, [directory] * 2))
    assert [(out[0], said) for out, said in found] == [("7", "")] * 2
    assert (directory / ".lockfile").exists()
    assert all(compile_cache.used(entry).exists() for entry in directory.glob("*-cache"))


def test_a_directory_of_the_callers_own_is_left_as_it_is(
    directory: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "x-cache").write_bytes(b"written without a limit")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(own))
    environment = worker_environment(str(directory))
    assert environment["JAX_COMPILATION_CACHE_DIR"] == str(own)
    assert "JAX_COMPILATION_CACHE_MAX_SIZE" not in environment
    assert (own / "x-cache").exists()


def test_no_directory_means_no_variables() -> None:
    assert compile_cache.variables("") == {}
