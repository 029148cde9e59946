"""A run that repairs an artifact whose bytes changed says so wherever it is looked at."""

import json
import shutil
from pathlib import Path

from flows.cli.main import main
from flows.runs.record import read_run
from infra.store.store import open_store
from tests.flows.runs.synthetic_run import damage


def test_a_run_that_repairs_damage_says_so(finished, tmp_path, capsys):
    """On the terminal once while it happens and once at the end; in the record, the JSON and the
    report."""
    store_of, first = finished
    shutil.copytree(store_of, tmp_path / "store")
    store = open_store(tmp_path / "store")
    damage(store, read_run(store, first["run_id"]), "rebalance", "train.jsonl")
    recipe = str(store_of.parent / "tiny.toml")
    assert main(["run", recipe, "--store", str(tmp_path / "store")]) == 0
    printed = capsys.readouterr()
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
    assert main(["run", recipe, "--store", str(tmp_path / "store"), "--json"]) == 0
    stages = json.loads(capsys.readouterr().out)["stages"]
    assert ["repaired" in stage for stage in stages] == [True, False]
