"""A bucket at the fake of Cloud Storage, and trees of files. A file of 100 kB is large here, and
delays are short."""

import os
from pathlib import Path

import pytest

from infra.gcs import download, requests, upload
from infra.gcs.bucket import Bucket
from infra.settings import Settings
from infra.store.local_objects import file_entry
from tests.end_to_end.infra.gcs.trees import CHUNK, KB, MB, SLICE, Entries, Tree


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Answers that are slow are not waited for."""
    monkeypatch.setattr(requests, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(upload, "SMALL", 100 * KB)
    monkeypatch.setattr(upload, "CHUNK", CHUNK)
    monkeypatch.setattr(download, "SLICE", SLICE)
    if "slow" in request.node.name:
        monkeypatch.setattr(requests, "ATTEMPT_SECONDS", 0.3)


@pytest.fixture
def bucket(gcs_bucket: str, tmp_path: Path) -> Bucket:
    return Bucket(gcs_bucket, "p", tmp_path / "cache", Settings(store_seconds=60))


@pytest.fixture
def hasty(gcs_bucket: str, tmp_path: Path) -> Bucket:
    """One without patience."""
    return Bucket(gcs_bucket, "p", tmp_path / "cache", Settings(store_seconds=0.5))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Makes a directory of files, by default a large one of three chunks, a small and an empty one;
    returns it and its entries."""

    def make(directory: str = "tree", **sizes: int) -> tuple[Path, Entries]:
        sizes = sizes or {"large": MB + 1, "deep/er/small": 1000, "empty": 0}
        for name, size in sizes.items():
            path = tmp_path / directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(size))
        return tmp_path / directory, [file_entry(tmp_path / directory, name) for name in sizes]

    return make
