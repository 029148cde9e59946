"""Whole runs with their store in a bucket: the same artifacts as in a directory, whatever the
bucket does meanwhile."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.store.store import Store, open_store


class Runs:
    """`lyceum run` of one recipe in this process."""

    def __init__(self, recipe: Path, bucket: str, root: Path, lyceum: Callable[..., Any]) -> None:
        self.recipe, self.bucket, self.root, self._lyceum = recipe, bucket, root, lyceum
        self.uri = f"gs://{bucket}/runs"

    @property
    def store(self) -> Store:
        return open_store(self.uri)

    def run(self) -> dict[str, Any]:
        return self._lyceum("run", self.recipe, "--store", self.uri, "--json").json

    def statuses(self) -> list[str]:
        return [stage["status"] for stage in self.run()["stages"]]

    def files(self, store: str | None = None) -> dict[str, Any]:
        opened = open_store(store or self.uri)
        manifests = list(opened.artifacts())
        assert [opened.verify(manifest) for manifest in manifests] == [[]] * len(manifests)
        return {manifest.kind: manifest.files for manifest in manifests}

    def forget(self) -> None:
        """Like another machine: no copies of artifacts."""
        shutil.rmtree(self.root / "cache")

    def object_of(self, kind: str, file: str) -> str:
        [manifest] = self.store.artifacts(kind)
        return f"runs/artifacts/{kind}/{manifest.key}/data/{manifest.attempt}/{file}"


@pytest.fixture
def runs(prefect_api: str, tiny_recipe: Path, gcs_bucket: str, tmp_path: Path, lyceum: Any) -> Runs:
    return Runs(tiny_recipe, gcs_bucket, tmp_path, lyceum)


def test_a_bucket_holds_what_a_directory_holds_and_damage_is_computed_again(runs, gcs, finished):
    """Rot that the service notices, a file that is gone, and rot of which the metadata still tell
    the old checksum: the reader's sha256 finds out, within the same run."""
    first, undamaged = runs.run(), runs.files(str(finished[0]))
    assert [stage["status"] for stage in first["stages"]] == ["ran", "ran"]
    report = first["report"]
    assert report.startswith(f"{runs.uri}/runs/")
    page = gcs.read(runs.bucket, report.removeprefix(f"gs://{runs.bucket}/"))
    assert page.lower().startswith(b"<!doctype html>")
    assert runs.statuses() == ["cached", "cached"]
    assert runs.files() == undamaged

    gcs.corrupt(runs.bucket, runs.object_of("distill", "examples.jsonl"), recompute=True)
    gcs.delete(runs.bucket, runs.object_of("rebalance", "heldout.jsonl"))
    assert runs.statuses() == ["ran", "ran"]
    assert runs.files() == undamaged

    gcs.corrupt(runs.bucket, runs.object_of("distill", "examples.jsonl"))
    runs.store.discard("rebalance", next(runs.store.artifacts("rebalance")).key)
    runs.forget()
    assert runs.statuses() == ["ran", "ran"]
    assert runs.files() == undamaged
    runs.forget()
    [manifest] = runs.store.artifacts("distill")
    assert (runs.store.local_dir(manifest) / "examples.jsonl").is_file()


def test_a_run_survives_a_bucket_at_its_worst(runs, gcs, finished):
    faults = gcs.faults.add_all()
    runs.run()
    struck = {action: gcs.faults.fired(number) for action, number in faults.items()}
    gcs.faults.clear()
    assert sum(struck.values()) > 10, struck
    assert runs.files() == runs.files(str(finished[0]))


def test_a_command_that_only_looks_gives_up_soon_and_says_why(gcs_bucket, gcs, lyceum, monkeypatch):
    monkeypatch.setenv("LYCEUM_STORE_SECONDS", "1")
    gcs.faults.add("status", code=503)
    assert "503" in lyceum("runs", "--store", f"gs://{gcs_bucket}/x", code=1).err
