"""A store in a directory of the test's own."""

from pathlib import Path

import pytest

from infra.store.store import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")
