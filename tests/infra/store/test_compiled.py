"""Compiled programs travel through the store: a new machine loads what another one compiled, and nothing depends on it."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra import process
from infra.process import ROOT
from infra.store import compiled
from infra.store.compiled import Compiled
from infra.store.store import Store, open_store

PROGRAM = """
import sys
import jax
import jax.numpy as jnp
from infra.store import compiled
from infra.store.store import open_store
compiled.SMALLEST = 1
directory = sys.argv[2]
hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None)
with compiled.Compiled(open_store(sys.argv[1]), "compiled/v5e-8/sft", directory):
    print(float(jax.jit(lambda x: jnp.tanh(x @ x).sum())(jnp.ones((64, 64)))), len(hits))
"""


def compute(store: str, directory: Path) -> tuple[float, int]:
    """What a fresh process computes, and how many programs it found compiled."""
    environment = {**process._environment(str(directory)), "JAX_COMPILATION_CACHE_DIR": str(directory)}  # whatever this process was told
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, store, str(directory)], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    value, hits = done.stdout.split()
    return float(value), int(hits)


def test_another_machine_loads_what_one_compiled_unless_it_is_damaged(tmp_path: Path, gcs_bucket: str) -> None:
    store = f"gs://{gcs_bucket}/lyceum"
    value, hits = compute(store, tmp_path / "first")
    assert hits == 0
    again, hits = compute(store, tmp_path / "second")
    assert again == value
    assert hits > 0
    opened = open_store(store)
    for name in opened.children("compiled/v5e-8/sft"):
        entry = f"compiled/v5e-8/sft/{name}"
        opened.write_bytes(entry, (opened.read_bytes(entry) or b"")[:-7])
    assert compute(store, tmp_path / "third") == (value, 0)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(compiled, "SMALLEST", 4)
    return open_store(tmp_path / "store")


def test_entries_are_sent_while_the_stage_runs_once_they_have_stopped_growing(store: Store, tmp_path: Path) -> None:
    with Compiled(store, "compiled/x", str(tmp_path / "cache"), seconds=60) as watching:
        cache = tmp_path / "cache"
        cache.mkdir()
        (cache / "a-cache").write_bytes(b"half")
        watching._look(finished=False)
        (cache / "a-cache").write_bytes(b"half and half")
        watching._look(finished=False)
        assert store.children("compiled/x") == []
        watching._look(finished=False)
        assert store.read_bytes("compiled/x/a-cache") == b"half and half"
        (cache / "b-cache").write_bytes(b"at the end")
        (cache / "b-atime").write_bytes(b"JAX's own clock")
        (cache / "c-cache").write_bytes(b"c")
    assert store.children("compiled/x") == ["a-cache", "b-cache"]


def test_a_store_that_fails_costs_nothing_but_the_programs(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(store, "children", fail)
    monkeypatch.setattr(store, "create_bytes", fail)
    (tmp_path / "cache").mkdir()
    with Compiled(store, "compiled/x", str(tmp_path / "cache")):
        (tmp_path / "cache" / "a-cache").write_bytes(b"1234")
    with Compiled(store, "compiled/x", ""):
        pass
