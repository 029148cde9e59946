"""Where no Prefect API runs: a run of which everything is cached starts nothing, and the first
stage of another one does not wait for Prefect's server."""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from flows.ahead import run_cached
from flows.cli import launch
from flows.preamble import Parameters, Prepared, prepare
from flows.runs.record import read_run
from flows.server.key import Api
from infra.store import lease
from schemas.base import StageFailed, Stopped
from schemas.reports import RunRecord
from tasks.running.watch import Watch
from tests.fakes.process import run_python, until
from tests.flows.lab import SLOW, Lab, flip_a_byte


@pytest.fixture
def no_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "running_api", lambda: None)


Server = Callable[[threading.Event], Api]


@pytest.fixture
def server(no_api: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[Server], None]:
    """Makes a function the start of Prefect's server."""

    def is_started_by(start: Server) -> None:
        @contextmanager
        def prefect_api(stop: threading.Event, say: object, meanwhile: object) -> Iterator[Api]:
            yield start(stop)

        monkeypatch.setattr(launch, "prefect_api", prefect_api)

    return is_started_by


never = Mock(side_effect=AssertionError("Prefect's server was started"))


def test_nothing_is_started_and_what_is_left_is_what_any_run_leaves(
    again, server, finished, capsys
):
    server(never)
    lab, (_, first) = again, finished
    record = lab.run()
    assert set(record) == set(first)
    assert [set(stage) for stage in record["stages"]] == [set(stage) for stage in first["stages"]]
    for now, then in zip(record["stages"], first["stages"], strict=True):
        assert now["status"] == "cached"
        same = ("name", "kind", "key", "artifact", "metrics")
        assert {name: now[name] for name in same} == {name: then[name] for name in same}
    assert (record["status"], record["target"]) == ("succeeded", "local")
    assert Path(record["report"]).read_text(encoding="utf-8").lower().startswith("<!doctype html>")

    run, at = record["run_id"], ("--store", str(lab.store_path))
    assert lab.store.list_runs() == sorted([first["run_id"], run])
    listed = lab.run_command(["runs", *at, "--json"])["runs"]
    assert [one["status"] for one in listed] == ["succeeded", "succeeded"]
    assert lab.run_command(["report", run, *at, "--json"])["left_out"] == {}
    assert lab.run_command(["gc", *at, "--json"])["items"] == []
    ended = read_run(lab.store, run)
    assert sum(stage.seconds for stage in ended.stages) <= ended.finished - ended.started

    assert lab.run_people() == 0
    said = capsys.readouterr()
    assert [line.split()[:3] for line in said.err.splitlines()[-2:]] == [
        ["=", "distill", "cached"],
        ["=", "rebalance", "cached"],
    ]
    assert said.out.count("cached") == 2


def test_neither_prefect_nor_jax_is_loaded(again: Lab) -> None:
    """As a user's shell starts it, with nothing of Prefect said anywhere."""
    script = (
        "import sys; from flows.cli.main import main; code = main(sys.argv[1:]);"
        " sys.stderr.write(str([name for name in ('prefect', 'jax') if name in sys.modules]));"
        " sys.exit(code)"
    )
    hidden = {name: one for name, one in os.environ.items() if not name.startswith("PREFECT_")}
    hidden["PREFECT_HOME"] = str(again.store_path.parent / "prefect")
    done = run_python("-c", script, *again.command(), env=hidden, check=True)
    assert [one["status"] for one in json.loads(done.stdout)["stages"]] == ["cached", "cached"]
    assert done.stderr.endswith("[]")


def damage(lab: Lab) -> None:
    [manifest] = lab.artifacts("rebalance")
    data = lab.store_path / "artifacts" / "rebalance" / manifest.key / "data"
    flip_a_byte(max(data.rglob("*.jsonl"), key=lambda path: path.stat().st_size))


def remove(lab: Lab) -> None:
    [manifest] = lab.artifacts("rebalance")
    shutil.rmtree(lab.store_path / "artifacts" / "rebalance" / manifest.key)


def prepared(lab: Lab, *overrides: str) -> Prepared:
    return prepare(Parameters(str(lab.recipe), "local", str(lab.store_path), overrides))


@pytest.mark.parametrize("change", [damage, remove])
def test_it_is_left_to_the_flow_when_an_artifact_is_damaged_or_gone(again, change):
    """Whether that was so when the artifacts were looked at, or came after it."""
    lab, told = again, list[RunRecord]()
    ready, watch = prepared(lab), Watch(record=told.append)
    before, runs = ready.outlook(), lab.store.list_runs()
    change(lab)
    assert not run_cached(ready, ready.outlook(), watch)
    assert watch.repairs == {}, "a look changes nothing"
    assert not run_cached(ready, before, watch)
    assert (list(watch.repairs) == ["rebalance"]) == (change is damage)
    assert (lab.store.list_runs(), told) == (runs, [])


def test_it_is_left_to_the_flow_when_a_setting_changed_a_stage_is_forced_or_it_is_stopped(again):
    lab = again
    ready, changed = prepared(lab), prepared(lab, "stages.rebalance.config.seed=7")
    forced = replace(ready, given=replace(ready.given, force=("distill",)))
    stopped, paused = Watch(), Watch()
    stopped.stop.set()
    paused.pause.set()
    for one, watch in ((changed, Watch()), (forced, Watch()), (ready, stopped), (ready, paused)):
        assert not run_cached(one, one.outlook(), watch)
    assert len(lab.store.list_runs()) == 1


def test_a_store_that_does_not_take_the_report_takes_nothing_from_the_run(
    again: Lab, server: Callable[[Server], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    server(never)
    full = Mock(side_effect=OSError("no space is left"))
    monkeypatch.setattr("flows.ending.write_report", full)
    record = again.run()
    assert (record["status"], record["report"]) == ("succeeded", None)
    assert "no space is left" in again.messages


def leases(lab: Lab) -> list[Path]:
    return list(lab.store_path.glob("work/*/*/lease.json"))


def test_the_first_stage_is_under_way_while_the_server_starts_and_the_flow_takes_it_over(
    lab: Lab, prefect_api: str, server: Callable[[Server], None]
) -> None:
    """The stage is on record before it begins, and it is made once."""

    def slowly(stop: threading.Event) -> Api:
        until(lambda: len(lab.artifacts("distill")) == 1)
        [run] = lab.store.list_runs()
        [stage] = read_run(lab.store, run).stages
        assert (stage.name, stage.status) == ("distill", "running")
        return Api(prefect_api)

    server(slowly)
    record = lab.run()
    assert [stage["status"] for stage in record["stages"]] == ["ran", "ran"]
    assert lab.store.list_runs() == [record["run_id"]]
    assert len(leases(lab)) == 2


def test_a_server_that_does_not_start_takes_the_stage_with_it(lab, server):
    """Nothing runs on, the record says how it ended, and the same command goes on."""

    def fails(stop: threading.Event) -> Api:
        until(lambda: bool(leases(lab)))
        raise StageFailed("the Prefect server did not start")

    server(fails)
    assert lab.run_people("--set", SLOW) == 1
    [run] = lab.store.list_runs()
    record = read_run(lab.store, run)
    assert record.status == "failed"
    assert [stage.status for stage in record.stages] == ["skipped"]
    [held] = leases(lab)
    assert lease.LeaseRecord.model_validate_json(held.read_bytes()).released


def test_ctrl_c_while_the_server_starts_ends_both(lab, server):
    def interrupted(stop: threading.Event) -> Api:
        until(lambda: bool(leases(lab)))
        stop.set()
        raise Stopped

    server(interrupted)
    assert lab.run_people("--set", SLOW) == 130
    [run] = lab.store.list_runs()
    assert read_run(lab.store, run).status == "cancelled"


def test_what_is_forced_is_not_begun_before_the_flow_sets_its_artifact_aside(again, server):
    server(Mock(side_effect=StageFailed("no server")))
    assert again.run_people("--force", "rebalance") == 1
    assert len(again.store.list_runs()) == 1
    assert len(leases(again)) == 2, "those of the first run"
