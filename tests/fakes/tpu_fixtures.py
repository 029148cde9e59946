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
    hurry = {
        "LYCEUM_TPU_POLL_SECONDS": "0.05",
        "LYCEUM_POLL_SECONDS": "0.05",
        "LYCEUM_HEARTBEAT_SECONDS": "0.3",
        "LYCEUM_STOP_SECONDS": "2",
        "LYCEUM_TPU_SILENCE_SECONDS": "10",
        "LYCEUM_TPU_BOOT_SECONDS": "60",
        "LYCEUM_TPU_DELETE_SECONDS": "20",
    }
    for name, value in hurry.items():
        monkeypatch.setenv(name, value)
    return f"gs://{gcs_bucket}/lyceum"
