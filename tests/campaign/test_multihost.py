"""A job on several hosts: the same worker on each, a process of its own here, with CPU devices, a
cache of its own, and one bucket."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.resolve import resolve
from infra.store.store import Store, open_store
from schemas.artifact import Manifest
from schemas.job import JobSpec, JobStatus
from tests.conftest import QUICK_COMPILE
from tests.end_to_end.crash.workers import Start, Workers
from tests.end_to_end.test_crash import CHAIN, Chain
from tests.end_to_end.test_multihost import SETTINGS
from tests.fakes.gcs_emulator import Emulator
from tests.fakes.process import free_port

BATCHES = (
    "stages.sft.config.batch_size=4",
    "stages.sft.config.optimizer={ learning_rate = 6e-3 }",  # Muon takes long to compile
    "stages.simpo.config.batch_size=4",
)
Point = tuple[str, str, int, str]


class Slice(Chain):
    """The micro chain on `hosts` hosts of `devices` devices each, with its artifacts below one
    URI."""

    def __init__(
        self,
        uri: str,
        root: Path,
        workers: Workers,
        hosts: int = 2,
        devices: int = 2,
        overrides: tuple[str, ...] = (),
    ) -> None:
        self.uri, self.root, self.hosts, self.devices = uri, root, hosts, devices
        super().__init__(self.seen_by(0), workers)
        self.stages = {
            stage.name: stage for stage in resolve(str(CHAIN), [*BATCHES, *overrides]).stages
        }

    def seen_by(self, host: int) -> Store:
        """The store as a host sees it: its files of this machine are its own."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LYCEUM_CACHE", str(self.root / f"host-{host}"))
            return open_store(self.uri)

    def run_hosts(self, spec: JobSpec, *points: Point, on: int = 1) -> list[int]:
        """Run the job on all hosts, host `on` with these crash points; returns their exit codes."""
        coordinator = f"127.0.0.1:{free_port()}"
        starts = []
        for host in range(self.hosts):
            store, name = self.seen_by(host), f"work/{spec.key}/{spec.attempt}/job.json"
            store.write_here(name, spec)
            devices = f"--xla_force_host_platform_device_count={self.devices}"
            environment = {"LYCEUM_CACHE": str(self.root / f"host-{host}")}
            environment["XLA_FLAGS"] = f"{devices} {QUICK_COMPILE}"
            if self.hosts > 1:
                environment |= {"LYCEUM_HOST": str(host), "LYCEUM_HOSTS": str(self.hosts)}
                environment["LYCEUM_COORDINATOR"] = coordinator
            starts.append(Start(str(store.path(name)), points if host == on else (), environment))
        return self.workers.run_together(starts)

    def run(self, spec: JobSpec, *points: Point) -> int:
        return max(self.run_hosts(spec, *points))

    def status(self, spec: JobSpec, host: int) -> JobStatus:
        name = f"work/{spec.key}/{spec.attempt}/status.json"
        status = self.seen_by(host).read_here(name, JobStatus)
        assert status is not None
        return status

    def log(self, spec: JobSpec, host: int | None = None) -> str:
        hosts = range(self.hosts) if host is None else [host]
        name = f"work/{spec.key}/{spec.attempt}/log.txt"
        return "\n".join(self.seen_by(one).path(name).read_text() for one in hosts)

    def curve(self, name: str) -> list[dict[str, Any]]:
        directory = self.store.local_dir(self.undisturbed(name))
        return [json.loads(line) for line in (directory / "curves.jsonl").read_text().splitlines()]


SliceOf = Callable[..., Slice]


@pytest.fixture(scope="module")
def workers(gcs: Emulator, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    compiled = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("jax")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    with Workers({**SETTINGS, **compiled, **gcs.environment}) as workers:
        yield workers


@pytest.fixture
def slice_of(workers: Workers, gcs_bucket: str, tmp_path: Path) -> SliceOf:
    return lambda name="slice", **shape: Slice(
        f"gs://{gcs_bucket}/{name}", tmp_path / name, workers, **shape
    )


def resumed(slice: Slice, kind: str, point: Point, victim: int) -> tuple[Manifest, JobSpec]:
    """Kill a host of the job at a point and run the job again; returns what came of it (the same
    bytes as ever) and the second job."""
    undisturbed = slice.undisturbed(kind)
    slice.store.discard(kind, undisturbed.key)
    first, second = slice.spec(kind, f"{victim}-killed"), slice.spec(kind, f"{victim}-successor")
    codes = slice.run_hosts(first, point, on=victim)
    assert codes[victim] == -9
    assert all(code < 0 for code in codes), slice.log(first)  # the machines failed, not the stage
    assert slice.run(second) == 0, slice.log(second)
    manifest = slice.store.valid(kind, undisturbed.key)
    assert manifest.files == undisturbed.files
    assert manifest.metrics == undisturbed.metrics
    # nothing but the artifact is left in the bucket
    assert slice.store.children(f"work/{manifest.key}") == []
    return manifest, second


def test_two_hosts_train_and_the_first_one_commits(slice_of: SliceOf) -> None:
    slice = slice_of()
    manifest = slice.undisturbed("sft")
    assert (manifest.execution["hosts"], manifest.execution["devices"]) == (2, 4)
    spec = slice.spec("sft", "undisturbed")
    for host in range(2):
        assert slice.status(spec, host).state == "succeeded"
        assert slice.status(spec, host).artifact == manifest.ref()
        assert ("checkpoint at step 2 saved" in slice.log(spec, host)) == (host == 0)
    assert slice.store.children(f"work/{manifest.key}") == []
    for stage in ("distill", "rebalance"):
        assert slice.undisturbed(stage).execution["hosts"] == 1
        assert slice.status(slice.spec(stage, "undisturbed"), host=1).artifact is None


def test_a_killed_host_ends_the_job_and_its_successor_ends_with_the_same_bytes(slice_of):
    slice = slice_of()
    point = ("sft", "tasks.training.trainer:Trainer.step", 6, "before")
    manifest, second = resumed(slice, "sft", point, victim=1)
    for host in range(2):
        assert "resuming at step 4 of 8" in slice.log(second, host)
        assert slice.status(second, host).artifact == manifest.ref()


@pytest.mark.parametrize(
    ("kind", "point", "victim"),
    [
        # the committer dies while the other one waits for it
        ("sft", ("tasks.training.checkpoints:Checkpoints.save", 2, "before"), 0),
        ("simpo", ("tasks.contract.journal:Journal.put", 1, "after"), 0),  # all samples are kept
        # in the middle of a rollout, and of its answers
        ("grpo", ("tasks.training.trainer:Trainer.step", 4, "before"), 1),
        ("reasoning_eval", ("tasks.sampling.slots:SlotSampler._advance", 2, "before"), 1),
    ],
)
def test_any_host_may_be_killed(slice_of, kind, point, victim):
    resumed(slice_of(), kind, (kind, *point), victim)


def test_hosts_compute_what_one_device_computes(slice_of: SliceOf) -> None:
    """All seven kinds: the same data in the same order, the same text, and losses that differ by
    the order of sums only."""
    several, one = slice_of("several"), slice_of("one", hosts=1, devices=1)

    def text(slice: Slice, stage: str, name: str) -> str:
        return (slice.store.local_dir(slice.undisturbed(stage)) / name).read_text(encoding="utf-8")

    for stage in ("distill", "rebalance"):
        assert several.undisturbed(stage).files == one.undisturbed(stage).files
    assert text(several, "sft", "proof.json") == text(one, "sft", "proof.json")
    for ours, theirs in zip(several.curve("sft"), one.curve("sft"), strict=True):
        assert ours == pytest.approx(theirs, rel=2e-3)
    assert text(several, "simpo", "pairs.jsonl") == text(one, "simpo", "pairs.jsonl")
    for stage in ("simpo", "grpo"):
        assert several.curve(stage)[0] == pytest.approx(one.curve(stage)[0], rel=2e-2, abs=2e-3)
    rollouts = [text(slice, "grpo", "rollouts.jsonl").splitlines() for slice in (several, one)]
    ours, theirs = (json.loads(lines[0]) for lines in rollouts)
    assert ours["completion"] == theirs["completion"]
    for stage in ("reasoning_eval", "safety_eval"):
        assert several.undisturbed(stage).metrics["n"] == one.undisturbed(stage).metrics["n"]
    assert list((several.root / "host-1").rglob("artifacts"))  # host 1 read from the bucket


def test_a_batch_that_cannot_be_spread_is_refused_by_all_hosts(slice_of: SliceOf) -> None:
    slice = slice_of(overrides=("stages.sft.config.batch_size=6",))
    spec = slice.spec("sft", "refused")
    assert slice.run_hosts(spec) == [2, 2], slice.log(spec)
    for host in range(2):
        error = slice.status(spec, host).error or ""
        assert error.startswith("batch_size = 6: 2 hosts have 4 devices")
        assert "multiple of 4 (4, 8, 12, ...)" in error


def test_hosts_on_one_directory_do_not_meet(workers: Workers, tmp_path: Path) -> None:
    slice = Slice(str(tmp_path / "store"), tmp_path, workers)
    manifest = slice.undisturbed("sft")
    work = f"work/{manifest.key}/undisturbed"
    for name in ("status", "hosts/1"):
        found = slice.store.read_json(f"{work}/{name}.json", JobStatus)
        assert found.artifact == manifest.ref()
    assert slice.store.children(f"{work}/hosts") == ["1", "1.json"]
    assert slice.store.children(f"{work}/hosts/1") == []
