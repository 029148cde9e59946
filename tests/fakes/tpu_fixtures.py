"""Fixtures with the fake of Cloud TPU. `tests/conftest.py` registers them."""

from collections.abc import Iterator

import pytest

from tests.fakes.gcs_emulator import Emulator
from tests.fakes.tpu_fake import FakeTpu


@pytest.fixture(scope="session")
def tpu_process(gcs: Emulator) -> Iterator[FakeTpu]:
    """The process, one for the session. Its VMs find the fake of Cloud Storage."""
    with FakeTpu(vm_environment=gcs.environment) as fake:
        yield fake


@pytest.fixture
def tpu(tpu_process: FakeTpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeTpu]:
    """The fake with nothing in it; clients in this process find it."""
    tpu_process.forget()
    for name, value in tpu_process.environment.items():
        monkeypatch.setenv(name, value)
    yield tpu_process
    tpu_process.forget()


@pytest.fixture
def tpu_cloud(tpu: FakeTpu, gcs_bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both fakes and settings that hurry: returns the URI of an empty store in the test's
    bucket."""
    hurry = {"TPU_POLL": "0.05", "POLL": "0.05", "HEARTBEAT": "0.3", "STOP": "2"}
    hurry |= {"TPU_SILENCE": "10", "TPU_BOOT": "60", "TPU_DELETE": "20"}
    for name, value in hurry.items():
        monkeypatch.setenv(f"LYCEUM_{name}_SECONDS", value)
    return f"gs://{gcs_bucket}/lyceum"
