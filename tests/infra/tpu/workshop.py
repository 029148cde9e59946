"""What tests of the TPU backend share: a store, backends whose VMs do nothing but wait, and a test
that speaks in the place of the VMs."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import infra.tpu.backend
from infra.backend import FINAL, JobHandle
from infra.context import context
from infra.settings import Settings, TpuSettings
from infra.store.lease import attempts
from infra.store.remote import host_status
from infra.store.store import Store
from infra.tpu.api import TpuApi
from infra.tpu.backend import CloudTpuBackend
from infra.tpu.job_record import TpuRecord, record_name
from infra.tpu.state_machine import State
from infra.tpu.types import TPU_TYPES
from schemas.artifact import ArtifactRef
from schemas.job import JobSpec, JobStatus
from tests.fakes.process import until
from tests.fakes.tpu_fake import FakeTpu, Resource

KEY = "ab" * 32
REF = ArtifactRef(kind="sft", key=KEY, digest="cd" * 32)


class Workshop:
    """A store, and backends whose VMs do nothing but wait."""

    def __init__(self, uri: str, tpu: FakeTpu) -> None:
        self.tpu = tpu
        self.store: Store = context().store(uri)
        self.backends: list[CloudTpuBackend] = []

    def backend(self, target: str = "v5e-8", **settings: object) -> CloudTpuBackend:
        """Settings are those of the environment; `tpu_...` are of TpuSettings."""
        settings = {"tpu_poll_seconds": 0.2, "tpu_silence_seconds": 60.0, **settings}
        general, given = Settings.from_environment(), TpuSettings.from_environment()
        for name, value in settings.items():
            if name.startswith("tpu_"):
                given = given.model_copy(update={name.removeprefix("tpu_"): value})
            else:
                general = general.model_copy(update={name: value})
        made = CloudTpuBackend(TPU_TYPES[target], general, given)
        self.backends.append(made)
        return made

    def attach(self, backend: CloudTpuBackend, key: str = KEY) -> JobHandle | None:
        """What a backend takes over of a key for a second run."""
        return backend.attach(self.store, key, "run-2", attempts(self.store, key))

    def clear(self) -> None:
        """Nothing of its jobs may be left."""
        self.tpu.faults.clear()
        for backend in self.backends:
            for handle in list(backend.jobs):
                backend.cancel(handle)
            assert backend.close() == []
        assert self.tpu.leaked() == []

    def spec(self, attempt: str = "1", key: str = KEY, run: str = "run-1") -> JobSpec:
        given = {"stage": "sft", "kind": "sft", "target": "v5e-8", "config": {}}
        return JobSpec(**given, key=key, attempt=attempt, store=self.store.uri, run=run)

    def orphan(
        self,
        key: str = KEY,
        attempt: str = "1",
        *,
        zone: str = "us-central1-a",
        target: str = "v5e-8",
        state: State = "booting",
    ) -> JobHandle:
        """The job of a flow that was killed: its request in some state, and the record of it."""
        handle = JobHandle(self.store.uri, key, attempt)
        order = self.backend(target).order(self.store, handle, "run-1", "")
        api = TpuApi(TPU_TYPES[target], TpuSettings.from_environment())
        name = api.name(zone, order.short)
        given = {"target": target, "tier": "spot", "run": "run-1", "usd_per_hour": 3600.0}
        record = TpuRecord(**given, resources=(name,), requested=time.time(), state=state)
        self.store.write_json(record_name(handle), record)
        api.create(name, order.labels, {**order.metadata, "lyceum-resource": name}, 3600)
        self.tpu.wait(name, "READY")
        return handle

    def says(
        self, state: str, host: int = 0, key: str = KEY, attempt: str = "1", **more: object
    ) -> None:
        """A host writes its status, as the agent does."""
        status = JobStatus.parse({"state": state, "heartbeat": time.time(), **more})
        self.store.write_json(host_status(key, attempt, host), status)

    def record(self, handle: JobHandle) -> TpuRecord:
        return self.store.read_json(record_name(handle), TpuRecord)


def final(backend: CloudTpuBackend, handle: JobHandle) -> JobStatus:
    return until(lambda: backend.poll(handle), lambda status: status.state in FINAL, seconds=120)


def booted(shop: Workshop, backend: CloudTpuBackend, handle: JobHandle) -> Resource:
    until(lambda: backend.poll(handle).phase.startswith("booting"))
    return shop.tpu.resource(handle.key[:24])


def running(shop: Workshop, backend: CloudTpuBackend, handle: JobHandle) -> Resource:
    """A job whose first host has said that it runs."""
    resource = booted(shop, backend, handle)
    shop.says("running", attempt=handle.attempt)
    until(lambda: backend.poll(handle).state == "running")
    return resource


@pytest.fixture
def shop(
    tpu_cloud: str, tpu: FakeTpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Workshop]:
    """A shop. At the end nothing of its jobs may be left."""
    script = tmp_path / "nothing.sh"
    script.write_text("exec sleep 600\n")
    monkeypatch.setattr(infra.tpu.backend, "STARTUP_SCRIPT", script)
    made = Workshop(tpu_cloud, tpu)
    yield made
    made.clear()
