"""Kill a worker anywhere, run the same command again, and the artifact has the same bytes as if
nothing had happened.

These are real SIGKILLs of real workers (`tests/end_to_end/crash/workers.py`). What else may
interrupt a stage, at every step, is tested in-process, in test_laws.py; more points, and the whole
chain, flow process included, are in `tests/campaign/test_crash.py`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.recipe.resolve import ResolvedStage, resolve
from infra.store.store import Store, open_store
from schemas.artifact import Manifest
from schemas.job import JobSpec, JobStatus
from tests.end_to_end.crash.workers import Workers
from tests.tasks.jobs import spec_of

CHAIN = Path(__file__).parent / "crash" / "chain.toml"


class Chain:
    """The stages of `chain.toml`, run one worker at a time in one store, each after those that feed
    it."""

    def __init__(self, store: Store, workers: Workers) -> None:
        self.store, self.workers = store, workers
        self.stages: dict[str, ResolvedStage] = {
            stage.name: stage
            for stage in resolve(
                str(CHAIN), ["stages.rebalance.config.near_duplicates=false"]
            ).stages
        }

    def spec(self, name: str, attempt: str) -> JobSpec:
        stage = self.stages[name]
        inputs = {port: self.undisturbed(source).ref() for port, source in stage.inputs.items()}
        return spec_of(stage, self.store, inputs, attempt=attempt)

    def run(self, spec: JobSpec, *points: tuple[str, str, int, str]) -> int:
        name = f"work/{spec.key}/{spec.attempt}/job.json"
        self.store.write_json(name, spec)
        return self.workers.run(self.store.path(name), points)

    def undisturbed(self, name: str) -> Manifest:
        """The stage's artifact, made by one worker that nobody disturbed."""
        spec = self.spec(name, "undisturbed")
        if self.store.lookup(spec.kind, spec.key) is None:
            assert self.run(spec) == 0, self.log(spec)
        return self.store.lookup(spec.kind, spec.key)

    def log(self, spec: JobSpec) -> str:
        return self.store.path(f"work/{spec.key}/{spec.attempt}/log.txt").read_text()


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    directory = tmp_path_factory.mktemp("crash")
    with Workers(
        {
            "LYCEUM_TEST_LAYERS": "1",
            "LYCEUM_CHECKPOINT_STEPS": "2",
            "LYCEUM_CHECKPOINT_SECONDS": "3600",
        }
    ) as workers:
        yield Chain(open_store(directory / "store"), workers)


def killed_and_resumed(chain: Chain, point: tuple[str, str, int, str]) -> JobSpec:
    """A worker is killed there, and a successor ends as if nothing had happened; returns the
    successor's job."""
    kind = point[0]
    undisturbed = chain.undisturbed(kind)
    first = chain.spec(kind, "-".join(map(str, point[1:])).replace(":", "-"))
    chain.store.discard(kind, undisturbed.key)
    try:
        assert chain.run(first, point) == -9, chain.log(first)
        second = first.model_copy(update={"attempt": f"{first.attempt}-successor"})
        assert chain.run(second) == 0, chain.log(second)
        resumed = chain.store.valid(kind, undisturbed.key)
        assert resumed.files == undisturbed.files
        assert resumed.metrics == undisturbed.metrics
        assert [
            name for name in chain.store.children(f"work/{undisturbed.key}") if name == "kept"
        ] == []
    finally:
        chain.store.discard(kind, undisturbed.key)
        name = f"artifacts/{kind}/{undisturbed.key}/manifest.json"
        chain.store.create_json(name, undisturbed)
    return second


def test_a_successor_does_only_the_work_since_the_last_checkpoint(chain: Chain) -> None:
    second = killed_and_resumed(chain, ("sft", "tasks.training.trainer:Trainer.step", 6, "before"))
    assert "resuming at step 4 of 8" in chain.log(second)
    status = chain.store.read_json(f"work/{second.key}/{second.attempt}/status.json", JobStatus)
    assert status.progress.done == 8
