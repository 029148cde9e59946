"""Google's client of Cloud Storage, in front of the simulated service."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import google.cloud.storage as storage

from tests.simulation.bucket import Service

_NUMBERS = count()


@contextmanager
def simulated_storage(service: Service) -> Iterator[None]:
    """While inside, the client library makes clients of this service. The address is a new one, for
    Lyceum keeps one client for each."""
    real, before = storage.Client, os.environ.get("STORAGE_EMULATOR_HOST")
    storage.Client = lambda **options: service
    os.environ["STORAGE_EMULATOR_HOST"] = f"http://simulated-{next(_NUMBERS)}"
    try:
        yield
    finally:
        storage.Client = real
        if before is None:
            del os.environ["STORAGE_EMULATOR_HOST"]
        else:
            os.environ["STORAGE_EMULATOR_HOST"] = before
