"""The run record: what it says while a run goes on, when the store fails, and when the run's
process is gone."""

import json
import re
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

from flows.cli import show
from flows.recipe.resolve import resolve
from flows.report.page import report_of
from flows.runs.record import RunLog, new_run_id, read_run, read_runs, record_name, run_status
from flows.runs.results import read_results
from infra.process_identity import this_process
from infra.store.store import Store
from schemas.reports import RunRecord, StageRecord
from tests.fakes.process import python
from tests.flows.growing_stores import write_recipe

METRICS = {f"metric_{number}": number / 7 for number in range(100)}


@pytest.fixture
def run(store: Store, tiny_recipe: Path) -> RunLog:
    return RunLog(store, resolve(str(tiny_recipe)), "local", lambda record: None)


def test_ids_are_in_the_order_of_their_beginnings_whatever_the_clocks_show(monkeypatch):
    """By them a night finds the one before."""
    ids = []
    with monkeypatch.context() as clock:
        for zone in ("Asia/Tokyo", "America/Los_Angeles"):
            clock.setenv("TZ", zone)
            time.tzset()
            ids.append(new_run_id("demo")[:-5])
    time.tzset()
    assert ids == sorted(ids)


def begun(name: str, key: str = "k") -> StageRecord:
    return StageRecord(name=name, kind=name, key=key, status="running")


def test_a_stage_is_on_record_from_its_beginning_and_once(store: Store, run: RunLog) -> None:
    """Also when it begins a second time, with another key."""
    for stage in (begun("rebalance"), begun("distill"), begun("rebalance", key="other")):
        run.stage(stage)
        assert read_run(store, run.record.run_id) == run.record == read_runs(store)[0]
    stages = [(stage.name, stage.key) for stage in run.record.stages]
    assert stages == [("distill", "k"), ("rebalance", "other")]


def test_no_stage_of_a_run_that_has_ended_is_running(run: RunLog) -> None:
    """It keeps its key: whatever it left belongs to this run."""
    run.stage(begun("distill"))
    run.finish("failed")
    [stage] = run.record.stages
    assert (stage.status, stage.key, stage.error) == ("skipped", "k", "the run ended before it did")
    assert stage.seconds > 0


def test_a_run_says_what_it_was_stopped_in(store, run, capsys):
    """At its end and on its page: not that the stage was skipped, and not that it failed."""
    run.stage(begun("distill"))
    run.finish("cancelled")
    show.show(show.run(run.record, []))
    said = capsys.readouterr().out
    [row] = [line for line in said.splitlines() if line.startswith("│ distill")]
    assert "stopped" in row
    assert "Stopped while distill ran. Not begun: rebalance." in said
    assert "skipped" not in said
    page = report_of(read_results(store, run.record)).html()
    assert "Stage distill was stopped" in page
    assert "failed</" not in page
    assert [one.outcome for one in run.record.stages] == ["stopped"]
    assert StageRecord(name="sft", kind="sft", status="skipped").outcome == "skipped"


def test_what_the_machines_of_a_run_cost_is_said_at_its_end(run, capsys):
    """Beside its seconds, as the plan had promised it; a stage on this machine costs nothing."""
    for name, usd in (("distill", None), ("rebalance", 1.234)):
        run.stage(begun(name).model_copy(update={"status": "ran", "cost_usd": usd}))
    run.finish("succeeded")
    show.show(show.run(run.record, []))
    said = capsys.readouterr().out
    assert re.search(r": succeeded in \d+\.\d s, 1\.23 USD by list price\n", said)
    rows = [[cell.strip() for cell in line.split("│")] for line in said.splitlines()]
    found = {row[1]: row[4:6] for row in rows if len(row) > 4}
    assert found == {"distill": ["0.0", ""], "rebalance": ["0.0", "1.23"]}
    assert "┃ seconds ┃ USD " in said


def test_a_store_that_takes_no_record_does_not_end_the_run(store, run, monkeypatch, caplog):
    with monkeypatch.context() as patched:
        patched.setattr(store, "write_json", Mock(side_effect=OSError("503 for 10 s")))
        run.stage(begun("distill"))
    assert "could not be written; the run goes on: 503 for 10 s" in caplog.text
    assert read_run(store, run.record.run_id).stages == ()
    run.stage(begun("rebalance"))
    stages = [stage.name for stage in read_run(store, run.record.run_id).stages]
    assert stages == ["distill", "rebalance"]


def test_the_record_of_a_run_that_has_ended_is_one_object(store: Store, run: RunLog) -> None:
    """What its stages said meanwhile counts no more."""
    run.stage(begun("distill"))
    run.finish("succeeded", [begun("rebalance").model_copy(update={"status": "ran"})])
    assert [stage.status for stage in run.record.stages] == ["skipped", "ran"]
    assert store.read_json(record_name(run.record.run_id), RunRecord) == run.record
    assert read_run(store, run.record.run_id) == run.record


@pytest.mark.parametrize("stages", [40, 80])
def test_what_a_run_writes_grows_as_its_stages_do(store, tmp_path, monkeypatch, stages):
    """Each stage begins and ends, and is written both times, and once with all others."""
    resolved = write_recipe(tmp_path / "growth.toml", stages)
    run, written = RunLog(store, resolved, "local", lambda record: None), list[int]()
    write = store.write_bytes
    monkeypatch.setattr(
        store,
        "write_bytes",
        lambda name, data, *rest: written.append(len(data)) or write(name, data),
    )
    for stage in resolved.stages:
        run.stage(begun(stage.name))
        run.stage(begun(stage.name).model_copy(update={"status": "ran", "metrics": METRICS}))
    assert len(written) == 2 * stages
    assert max(written) < 2 * len(json.dumps(METRICS, indent=2))
    before = sum(written)
    run.finish("succeeded")
    assert sum(written) - before < 2 * before


def test_a_run_whose_process_is_gone_was_interrupted(run: RunLog) -> None:
    """Where that can be known; a run on another machine, or before its last start, may still be
    running."""
    with python("-c", "") as ended:
        pass
    gone = this_process().model_copy(update={"pid": ended.pid})

    def status(**changes: object) -> str:
        return run_status(run.record.model_copy(update=changes))

    assert status() == "running"
    assert status(process=gone) == "interrupted"
    assert status(process=gone.model_copy(update={"host": "elsewhere"})) == "running?"
    assert status(process=None) == "running?"
    assert status(process=gone, status="failed") == "failed"
