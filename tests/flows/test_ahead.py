"""A run of which everything is cached is on record before it looks for its artifacts, as any run
is: `lyceum gc` takes what no run on record names."""

from pathlib import Path
from typing import Any

import pytest

from flows import ahead
from flows.ahead import run_cached
from flows.cli.needs import Needs
from flows.preamble import Parameters, Prepared, prepare
from flows.runs.record import read_runs
from infra.store.store import Store, open_store
from schemas.artifact import Manifest
from schemas.reports import RunRecord
from tasks.running.execution import adopt
from tasks.running.watch import Watch


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


@pytest.fixture
def made(store: Store, tmp_path: Path, tiny_recipe: Path) -> Prepared:
    """A recipe of which every stage has its artifact."""
    ready = prepare(Parameters(str(tiny_recipe), "local", store.uri))
    known: dict[str, Manifest] = {}
    for stage in ready.resolved.stages:
        job = ready.request(stage, known, run="")
        (tmp_path / "out").mkdir()
        given: dict[str, Any] = {"config": job.config, "inputs": job.inputs, "attempt": "1"}
        draft = Manifest(kind=job.kind, key=job.key, version=1, files=(), **given)
        known[stage.name] = store.commit(draft, tmp_path / "out")
    return ready


def test_what_is_looked_for_is_on_record(store, made, monkeypatch):
    """It was not until the run had ended: gc removed an artifact that the run had just found, and
    the run ended well without it."""
    named: list[bool] = []

    def looks(job: Any, *rest: Any) -> Manifest | None:
        named.append(job.key in Needs(store, ()).keys)
        return adopt(job, *rest)

    monkeypatch.setattr(ahead, "adopt", looks)
    monkeypatch.setattr(ahead, "report_run", lambda *given: None)
    told: list[RunRecord] = []
    assert run_cached(made, store, made.outlook(), Watch(record=told.append))
    assert named == [True, True]
    [record] = read_runs(store)
    assert record.status == "succeeded"
    assert [stage.status for stage in record.stages] == ["cached"] * 2
    assert told == [record]


def test_a_run_that_finds_an_artifact_gone_leaves_no_record(store, made):
    before, told = made.outlook(), list[RunRecord]()
    store.discard(before[1].stage.kind, before[1].key)
    assert not run_cached(made, store, before, Watch(record=told.append))
    assert (store.list_runs(), told) == ([], [])
