"""Stores that `lyceum gc` sweeps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.store.store import open_store
from tests.flows.cli.gc_yard import Yard


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases expire soon, and this machine's cache is the test's own."""
    monkeypatch.setenv("LYCEUM_LEASE_SECONDS", "0.3")
    monkeypatch.setenv("LYCEUM_POLL_SECONDS", "0.05")
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def make_yard(
    impatient: None, tmp_path: Path, tiny_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path | str], Yard]:
    return lambda place: Yard(open_store(place), tiny_recipe, capsys, tmp_path)


@pytest.fixture(params=["directory", "bucket"])
def yard(make_yard: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "directory":
        return make_yard(tmp_path / "store")
    return make_yard(f"gs://{request.getfixturevalue('gcs_bucket')}/some/where")


@pytest.fixture
def bucket_yard(make_yard: Any, gcs_bucket: str) -> Any:
    """In a whole bucket, for what concerns copies on this machine."""
    return make_yard(f"gs://{gcs_bucket}")


@pytest.fixture
def here(make_yard: Any, tmp_path: Path) -> Any:
    """In a directory, for what concerns directories only."""
    return make_yard(tmp_path / "store")
