"""Stores that `lyceum gc` sweeps."""

from pathlib import Path

import pytest

from infra.store.store import open_store
from tests.flows.cli.gc_yard import Yard


@pytest.fixture
def impatient(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases expire soon, and this machine's cache is the test's own."""
    monkeypatch.setenv("LYCEUM_LEASE_SECONDS", "0.3")
    monkeypatch.setenv("LYCEUM_POLL_SECONDS", "0.05")
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["directory", "bucket"])
def yard(
    impatient: None,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    tiny_recipe: Path,
    capsys: pytest.CaptureFixture[str],
) -> Yard:
    place: Path | str = tmp_path / "store"
    if request.param == "bucket":
        place = f"gs://{request.getfixturevalue('gcs_bucket')}/some/where"
    return Yard(open_store(place), tiny_recipe, capsys, tmp_path)


@pytest.fixture
def bucket_yard(
    impatient: None,
    gcs_bucket: str,
    tmp_path: Path,
    tiny_recipe: Path,
    capsys: pytest.CaptureFixture[str],
) -> Yard:
    """In a whole bucket, for what concerns copies on this machine."""
    return Yard(open_store(f"gs://{gcs_bucket}"), tiny_recipe, capsys, tmp_path)


@pytest.fixture
def here(
    impatient: None, tmp_path: Path, tiny_recipe: Path, capsys: pytest.CaptureFixture[str]
) -> Yard:
    """In a directory, for what concerns directories only."""
    return Yard(open_store(tmp_path / "store"), tiny_recipe, capsys, tmp_path)
