"""Compiled programs travel through a bucket: a new machine loads what another one compiled, unless
it is damaged."""

from pathlib import Path

from infra import process
from infra.store.store import open_store
from tests.fakes.process import printed

PROGRAM = """
import sys
import jax
import jax.numpy as jnp
from infra.store import compiled
from infra.store.store import open_store
compiled.SMALLEST = 1
directory = sys.argv[2]
hits = []
note = lambda event, **_: hits.append(event) if event.endswith("cache_hits") else None
jax.monitoring.register_event_listener(note)
with compiled.Compiled(open_store(sys.argv[1]), "compiled/v5e-8/sft", directory):
    print(float(jax.jit(lambda x: jnp.tanh(x @ x).sum())(jnp.ones((64, 64)))), len(hits))
"""


def compute(store: str, directory: Path) -> tuple[float, int]:
    """What a fresh process computes, and how many programs it found compiled."""
    # whatever this process was told
    environment = process.worker_environment(str(directory))
    environment |= {"JAX_COMPILATION_CACHE_DIR": str(directory)}
    value, hits = printed(PROGRAM, store, directory, **environment).split()
    return float(value), int(hits)


def test_another_machine_loads_what_one_compiled_unless_it_is_damaged(tmp_path, gcs_bucket):
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
