"""Compiled programs travel through the store: a new machine loads what another one compiled, and
nothing depends on it."""

from unittest.mock import Mock

import pytest

from infra.store import compiled
from infra.store.compiled import Compiled


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "SMALLEST", 4)


def test_entries_are_sent_while_the_stage_runs_once_they_have_stopped_growing(store, tmp_path):
    with Compiled(store, "compiled/x", str(tmp_path / "cache"), seconds=60) as watching:
        cache = tmp_path / "cache"
        cache.mkdir()
        (cache / "a-cache").write_bytes(b"half")
        watching.look(finished=False)
        (cache / "a-cache").write_bytes(b"half and half")
        watching.look(finished=False)
        assert store.children("compiled/x") == []
        watching.look(finished=False)
        assert store.read_bytes("compiled/x/a-cache") == b"half and half"
        (cache / "b-cache").write_bytes(b"at the end")
        (cache / "b-atime").write_bytes(b"JAX's own clock")
        (cache / "c-cache").write_bytes(b"c")
        (cache / "d-cache").symlink_to("gone")  # somebody has removed it: its stage failed
    assert store.children("compiled/x") == ["a-cache", "b-cache"]


def test_a_store_that_fails_costs_nothing_but_the_programs(store, tmp_path, monkeypatch):
    for name in ("children", "create_bytes"):
        monkeypatch.setattr(store, name, Mock(side_effect=OSError("no answer")))
    (tmp_path / "cache").mkdir()
    with Compiled(store, "compiled/x", str(tmp_path / "cache")):
        (tmp_path / "cache" / "a-cache").write_bytes(b"1234")
    with Compiled(store, "compiled/x", ""):
        pass
