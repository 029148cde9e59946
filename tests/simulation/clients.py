"""Google's clients of Cloud Storage and Cloud TPU, in front of the simulated services."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from unittest.mock import patch

import google.auth
import google.cloud.storage as storage
from google.cloud import tpu_v2alpha1 as tpu

from infra.gcs import download, upload
from tests.simulation.bucket import Service
from tests.simulation.cloud import Cloud

_NUMBERS = count()


@contextmanager
def simulated_storage(service: Service) -> Iterator[None]:
    """While inside, the client library makes clients of this service, and files are large already
    when they are small. The address is a new one, for Lyceum keeps one client for each."""
    sizes = (
        *((upload, "SMALL", 64), (upload, "CHUNK", 64), (upload, "PIECE", 16)),
        *((download, "SLICE", 48), (download, "PIECE", 16)),
    )
    address = {"STORAGE_EMULATOR_HOST": f"http://simulated-{next(_NUMBERS)}"}
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, address))
        stack.enter_context(patch.object(storage, "Client", lambda **options: service))
        for module, name, size in sizes:
            stack.enter_context(patch.object(module, name, size))
        yield


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
