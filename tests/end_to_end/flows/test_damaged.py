"""A run that repairs an artifact whose bytes changed says so wherever it is looked at."""

import shutil
from pathlib import Path

from flows.runs.record import read_run
from infra.store.store import open_store
from tests.flows.runs.synthetic_run import damage


def test_a_run_that_repairs_damage_says_so(finished, tmp_path, lyceum):
    """On the terminal once while it happens and once at the end; in the record, the JSON and the
    report."""
    store_of, first = finished
    shutil.copytree(store_of, tmp_path / "store")
    store = open_store(tmp_path / "store")
    damage(store, read_run(store, first["run_id"]), "rebalance", "train.jsonl")
    run = ["run", store_of.parent / "tiny.toml", "--store", tmp_path / "store"]
    printed = lyceum(*run)
    said = "its artifact was damaged (train.jsonl: has sha256"
    assert printed.err.count("rebalance: its artifact is damaged (train.jsonl: has sha256") == 1
    assert said in printed.out
    record = next(read_run(store, run) for run in store.list_runs() if run != first["run_id"])
    assert [
        (stage.name, stage.status, (stage.repaired or "").startswith(said))
        for stage in record.stages
    ] == [("distill", "cached", False), ("rebalance", "ran", True)]
    assert said in Path(record.report or "").read_text("utf-8")
    damage(store, record, "distill")
    stages = lyceum(*run, "--json").json["stages"]
    assert ["repaired" in stage for stage in stages] == [True, False]
