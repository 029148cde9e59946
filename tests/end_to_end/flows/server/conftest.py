"""Fixtures that several test files share."""

from collections.abc import Iterator

import pytest

from tests.flows.server.served import Served


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One `lyceum serve` for all tests of a file that leave it as it is."""
    with Served(tmp_path_factory.mktemp("served")) as running:
        yield running
