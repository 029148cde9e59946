"""Fixtures with the fake of Cloud Storage. `tests/conftest.py` registers them."""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gcs_emulator import Emulator, environment

# gcsfs and fsspec read these when they are imported, which some other test may cause before a
# fixture runs.
os.environ |= {
    name: value for name, value in environment("").items() if name.startswith(("GCSFS", "FSSPEC"))
}

_numbers = count(1)


@pytest.fixture(scope="session")
def gcs() -> Iterator[Emulator]:
    """The process, one for the session."""
    with Emulator() as emulator:
        yield emulator


@pytest.fixture
def gcs_bucket(gcs: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of an empty bucket of the test's own; no faults, no requests counted, and clients in
    this process find the fake.

    This machine's cache is the test's own, too: buckets of all sessions have the same few names.
    """
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "cache"))
    for name, value in gcs.environment.items():
        monkeypatch.setenv(name, value)
    gcs.faults.clear()
    bucket = gcs.create_bucket(f"lyceum-test-{next(_numbers)}")
    gcs.forget_requests()
    yield bucket
    gcs.faults.clear()


@pytest.fixture
def gcs_client(gcs_bucket: str) -> Any:
    """The test's bucket in google-cloud-storage: a `google.cloud.storage.bucket.Bucket`."""
    from google.cloud.storage.client import Client

    return Client().bucket(gcs_bucket)
