"""`lyceum run --seeds`: real stages under two seeds, side by side, and one that is stopped."""

import json
import os
import signal
from pathlib import Path

import pytest

from flows.runs.record import read_run
from tests.fakes.process import until
from tests.flows.lab import SLOW, Lab, start

RECIPE = Path(__file__).with_name("seeds.toml")


def test_seeds_share_data_train_apart_and_are_reported_together(
    prefect_api, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("LYCEUM_PARALLEL_JOBS", "2")
    lab = Lab(tmp_path, RECIPE, capsys)
    found = lab.run("--seeds", "2")
    assert [(one["seed"], one["status"]) for one in found["seeds"]] == [
        (3, "succeeded"),
        (4, "succeeded"),
    ]
    assert "seeds under 2 seeds, 3 to 4; 2 side by side. The same for all: distill" in lab.messages
    first, second = ({stage["name"]: stage for stage in one["stages"]} for one in found["seeds"])
    for name in ("distill", "rebalance"):
        assert first[name]["artifact"] == second[name]["artifact"]
        assert sorted((first[name]["status"], second[name]["status"])) == ["cached", "ran"]
    for name in ("base_eval", "sft", "sft_eval"):
        assert first[name]["artifact"] != second[name]["artifact"]
    [effect, *_] = found["effects"]
    assert (effect["stage"], effect["since"], set(effect["seeds"])) == ("sft", "base", {"3", "4"})
    assert "seeds under 2 seeds" in Path(found["report"]).read_text(encoding="utf-8")
    groups = {read_run(lab.store, one["run_id"]).group for one in found["seeds"]}
    assert groups == {found["group"]}

    monkeypatch.setenv("LYCEUM_PARALLEL_JOBS", "1")
    again = lab.run("--seeds", "2")
    statuses = {stage["status"] for one in again["seeds"] for stage in one["stages"]}
    assert (statuses, again["effects"]) == ({"cached"}, found["effects"])
    assert set(lab.statuses().values()) == {"cached"}, "the first seed is the recipe's own"


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_stops_all_seeds_and_the_answer_says_so(
    jobs, prefect_api, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("LYCEUM_PARALLEL_JOBS", jobs)
    lab = Lab(tmp_path, RECIPE, capsys)
    process = start(lab.command("--seeds", "2", "--set", SLOW))
    until(lambda: any(lab.store_path.glob("work/*/1/status.json")))
    until(lambda: len(lab.store.list_runs()) == int(jobs))  # a seed that was not begun is not run
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    value = json.loads(out)
    second = "not run" if jobs == "1" else "cancelled"
    assert value["status"] == "cancelled"
    assert [one["status"] for one in value["seeds"]] == ["cancelled", second]
