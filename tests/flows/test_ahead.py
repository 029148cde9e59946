"""A run of which everything is cached is on record before it looks for its artifacts, as any run
is: `lyceum gc` takes what no run on record names."""

from pathlib import Path

import pytest

from flows import ahead
from flows.ahead import begun, run_cached
from flows.cli.needs import Needs
from flows.preamble import Parameters, Prepared, prepare
from flows.runs.record import read_runs
from flows.trackers import followed
from infra.store.store import Store
from schemas.job import JobRequest
from schemas.reports import RunRecord
from tasks.running.watch import Watch
from tests.fakes.trackers import Trackio
from tests.flows.growing_stores import commit_chain


@pytest.fixture
def made(store: Store, tmp_path: Path, tiny_recipe: Path) -> Prepared:
    """A recipe of which every stage has its artifact."""
    ready = prepare(Parameters(str(tiny_recipe), "local", store.uri))
    commit_chain(store, ready.resolved, tmp_path / "scratch")
    return ready


def test_what_is_looked_for_is_on_record(store, made, monkeypatch, meanwhile):
    """It was not until the run had ended: gc removed an artifact that the run had just found, and
    the run ended well without it."""
    named: list[bool] = []
    meanwhile(ahead, "adopt", lambda job, *_: named.append(job.key in Needs(store, ()).keys))
    monkeypatch.setattr(ahead, "report_run", lambda *given: None)
    told: list[RunRecord] = []
    assert run_cached(made, made.outlook(), Watch(record=told.append))
    assert named == [True, True]
    [record] = read_runs(store)
    assert record.status == "succeeded"
    assert [stage.status for stage in record.stages] == ["cached"] * 2
    assert told == [record]


def test_a_run_whose_flow_never_began_is_closed_at_its_trackers(store, made, monkeypatch):
    """As when Prefect's server does not start."""
    (fake := Trackio()).install(monkeypatch)
    monkeypatch.setattr(ahead, "begin", lambda *given: None)
    store.discard("distill", made.outlook()[0].key or "")
    with begun(made, made.outlook(), followed(Watch())) as run:
        assert run is not None
    assert [record.status for record in read_runs(store)] == ["failed"]
    assert (len(fake.runs), fake.finished) == (1, 1)


def test_all_stages_that_wait_for_no_other_begin_while_the_server_starts(store, monkeypatch):
    """Quickstart's second distillation waited for the server: seven idle seconds of a first run."""
    ready, jobs = prepare(Parameters("quickstart", "local", store.uri)), list[JobRequest]()
    monkeypatch.setattr(ahead, "begin", lambda job, watch: jobs.append(job))
    with begun(ready, ready.outlook(), Watch()) as run:
        assert run is not None
        on_record = [(stage.name, stage.status) for stage in run.record.stages]
    assert [job.stage for job in jobs] == ["distill", "problems"]
    assert {job.run for job in jobs} == {run.record.run_id}
    assert on_record == [("distill", "running"), ("problems", "running")]
