"""Google's clients of Cloud Storage and Cloud TPU, in front of the simulated services."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import google.auth
import google.cloud.storage as storage
from google.cloud import tpu_v2alpha1 as tpu

from tests.simulation.bucket import Service
from tests.simulation.cloud import Cloud

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


@contextmanager
def simulated_client(cloud: Cloud) -> Iterator[None]:
    """While inside, the client library makes clients of the cloud `cloud`."""
    real = tpu.TpuClient, google.auth.default
    tpu.TpuClient = lambda **options: cloud
    google.auth.default = lambda **options: (None, "simulated")
    try:
        yield
    finally:
        tpu.TpuClient, google.auth.default = real
