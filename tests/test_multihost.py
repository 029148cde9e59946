"""A job on several hosts: the same worker on each, a process of its own here, with CPU devices, a cache of its own, and one bucket."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.resolve import resolve
from infra.store import Store, open_store
from schemas.artifact import Manifest
from schemas.job import JobSpec, JobStatus
from tests.crash.workers import Start, Workers
from tests.gcs_emulator import Emulator
from tests.test_crash import CHAIN, Chain

SETTINGS = {
    "LYCEUM_CHECKPOINT_STEPS": "2",
    "LYCEUM_CHECKPOINT_SECONDS": "3600",
    "LYCEUM_HEARTBEAT_SECONDS": "0.2",  # a host that is gone is missed after 3 s
    "LYCEUM_TEST_LAYERS": "1",
    "JAX_SHARE_BINARY_BETWEEN_HOSTS": "true",  # host 0 compiles for both
}
BATCHES = (
    "stages.sft.config.batch_size=4",
    "stages.sft.config.optimizer={ learning_rate = 6e-3 }",  # Muon takes long to compile
    "stages.simpo.config.batch_size=4",
)
Point = tuple[str, str, int, str]


class Slice(Chain):
    """The micro chain on `hosts` hosts of `devices` devices each, with its artifacts below one URI."""

    def __init__(self, uri: str, root: Path, workers: Workers, hosts: int = 2, devices: int = 2, overrides: tuple[str, ...] = ()) -> None:
        self.uri, self.root, self.hosts, self.devices = uri, root, hosts, devices
        super().__init__(self.seen_by(0), workers)
        self.stages = {stage.name: stage for stage in resolve(str(CHAIN), [*BATCHES, *overrides]).stages}

    def seen_by(self, host: int) -> Store:
        """The store as a host sees it: its files of this machine are its own."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LYCEUM_CACHE", str(self.root / f"host-{host}"))
            return open_store(self.uri)

    def run_hosts(self, spec: JobSpec, *points: Point, on: int = 1) -> list[int]:
        """Run the job on all hosts, host `on` with these crash points; returns their exit codes."""
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            coordinator = f"127.0.0.1:{listener.getsockname()[1]}"
        starts = []
        for host in range(self.hosts):
            store, name = self.seen_by(host), f"work/{spec.key}/{spec.attempt}/job.json"
            store.write_here(name, spec)
            environment = {
                "LYCEUM_CACHE": str(self.root / f"host-{host}"),
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={self.devices}",
            }
            if self.hosts > 1:
                environment |= {"LYCEUM_HOST": str(host), "LYCEUM_HOSTS": str(self.hosts), "LYCEUM_COORDINATOR": coordinator}
            starts.append(Start(str(store.path(name)), points if host == on else (), environment))
        return self.workers.run_together(starts)

    def run(self, spec: JobSpec, *points: Point) -> int:
        return max(self.run_hosts(spec, *points))

    def status(self, spec: JobSpec, host: int) -> JobStatus:
        status = self.seen_by(host).read_here(f"work/{spec.key}/{spec.attempt}/status.json", JobStatus)
        assert status is not None
        return status

    def log(self, spec: JobSpec, host: int | None = None) -> str:
        hosts = range(self.hosts) if host is None else [host]
        return "\n".join(self.seen_by(k).path(f"work/{spec.key}/{spec.attempt}/log.txt").read_text() for k in hosts)

    def curve(self, name: str) -> list[dict[str, Any]]:
        directory = self.store.local_dir(self.undisturbed(name))
        return [json.loads(line) for line in (directory / "curves.jsonl").read_text().splitlines()]


SliceOf = Callable[..., Slice]


@pytest.fixture(scope="module")
def workers(gcs: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("jax")), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    with Workers({**SETTINGS, **compiled, **gcs.environment}) as workers:
        yield workers


@pytest.fixture
def slice_of(workers: Workers, gcs_bucket: str, tmp_path: Path) -> SliceOf:
    return lambda name="slice", **shape: Slice(f"gs://{gcs_bucket}/{name}", tmp_path / name, workers, **shape)


def resumed(slice: Slice, kind: str, point: Point, victim: int) -> tuple[Manifest, JobSpec, JobSpec]:
    """Kill a host of the job at a point, run the job again; returns what came of it, and both jobs."""
    undisturbed = slice.undisturbed(kind)
    slice.store.discard(kind, undisturbed.key)
    first, second = slice.spec(kind, f"{victim}-killed"), slice.spec(kind, f"{victim}-successor")
    codes = slice.run_hosts(first, point, on=victim)
    assert codes[victim] == -9
    assert all(code != 0 for code in codes), slice.log(first)
    assert slice.run(second) == 0, slice.log(second)
    manifest = slice.store.valid(kind, undisturbed.key)
    assert manifest is not None
    assert manifest.files == undisturbed.files
    assert manifest.metrics == undisturbed.metrics
    return manifest, first, second


def test_a_killed_host_ends_the_job_and_its_successor_ends_with_the_same_bytes(slice_of: SliceOf) -> None:
    slice = slice_of()
    manifest, _, second = resumed(slice, "sft", ("sft", "tasks.training:run_step", 6, "before"), victim=1)
    assert (manifest.execution["hosts"], manifest.execution["devices"]) == (2, 4)
    for host in range(2):
        assert "resuming at step 4 of 8" in slice.log(second, host)
        assert slice.status(second, host).artifact == manifest.ref()
    assert slice.store.children(f"work/{manifest.key}") == []  # nothing but the artifact is left in the bucket
