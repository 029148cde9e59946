"""The flow on real stages, with a real Prefect API: what is cached, what runs again, what fails,
and how a run is stopped."""

import shutil
from pathlib import Path

import pytest

from flows.runs.record import read_run
from tests.fakes.process import until
from tests.fakes.recipe import READS, TINY
from tests.flows.lab import SLOW, Lab, start

pytestmark = pytest.mark.usefixtures("prefect_api")

FAILING = """
[stages.too_much]
kind = "rebalance"
inputs = { examples = "distill" }
config = { quotas = { science = { train = 5, heldout = 1 } } }

[stages.evaluate]
kind = "reasoning_eval"
inputs = { prompts = "too_much" }
config = { prompt_length = 80, response_length = 72, batch_size = 128, min_items = 1 }
"""


def test_a_second_run_reuses_everything_and_says_where_its_report_is(again, finished):
    lab, (_, first) = again, finished
    assert set(first) == {"run_id", "recipe", "target", "store", "status", "stages", "report"}
    assert (first["recipe"], first["target"], first["status"]) == ("tiny", "local", "succeeded")
    fields = {"name", "kind", "key", "status", "seconds", "artifact", "metrics"}
    assert [set(stage) for stage in first["stages"]] == [fields, fields]
    assert Path(first["report"]).read_text(encoding="utf-8").lower().startswith("<!doctype html>")
    second = lab.run()
    for run, status in ((first, "ran"), (second, "cached")):
        assert [stage["status"] for stage in run["stages"]] == [status, status]
    of_each, again_of_each = ([one["artifact"] for one in run["stages"]] for run in (first, second))
    assert of_each == again_of_each
    assert lab.store.list_runs() == sorted([first["run_id"], second["run_id"]])


def test_deleting_all_of_prefect_s_records_reruns_nothing_and_it_shows_what_was_cached(again):
    """They are a view; what is cached is what the manifests say."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import TaskRunFilter
    from prefect.settings import get_current_settings

    def attempts() -> list[str]:
        return [one.attempt for kind in ("distill", "rebalance") for one in again.artifacts(kind)]

    before = attempts()
    shutil.rmtree(get_current_settings().results.local_storage_path, ignore_errors=True)
    named = TaskRunFilter.model_validate({"state": {"name": {"any_": ["Cached"]}}})
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs():
            client.delete_flow_run(run.id)
        assert again.statuses() == {"distill": "cached", "rebalance": "cached"}
        assert attempts() == before
        until(
            lambda: {run.name for run in client.read_task_runs(task_run_filter=named)},
            lambda names: names >= {"distill", "rebalance"},
        )


def test_a_stage_that_finds_its_input_bad_fails_with_its_message_and_the_others_finish(again):
    """An unfillable quota: exit 2; what needs the stage is skipped, what does not is finished; the
    report is written all the same."""
    again.recipe.write_text(TINY.replace("[stages.rebalance]", FAILING + "[stages.rebalance]"))
    record = again.run(code=2)
    statuses = {stage["name"]: stage["status"] for stage in record["stages"]}
    assert statuses.pop("too_much") == "failed"
    assert statuses == {"distill": "cached", "evaluate": "skipped", "rebalance": "cached"}
    assert "science" in record["stages"][1]["error"]
    assert "science" in again.messages
    assert "Traceback" not in again.messages
    assert Path(record["report"]).is_file()


def test_binary_junk_in_the_data_directory_fails_with_its_file_named(lab, tmp_path):
    """Found by the stage that reads it: exit 2, and no artifact of the junk."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.jsonl").write_bytes(bytes(range(256)) * 40)
    lab.recipe.write_text(READS, encoding="utf-8")
    few = "stages.rebalance.config.exact=false"  # else it is refused before it begins
    record = lab.run("--data", str(tmp_path / "data"), "--set", few, code=2)
    assert [stage["status"] for stage in record["stages"]] == ["failed", "skipped"]
    assert "rows.jsonl" in record["stages"][0]["error"]
    assert lab.artifacts("distill") == []


def test_a_run_that_was_killed_still_says_what_it_worked_on(lab: Lab) -> None:
    """SIGKILL of the flow, in the middle of a stage: its key is on record, the run counts as
    interrupted, and nothing of it is garbage."""
    process = start(lab.command("--set", SLOW))
    until(lambda: any(lab.store_path.glob("work/*/1/lease.json")))
    [lease] = lab.store_path.glob("work/*/1/lease.json")
    process.kill()
    process.communicate(timeout=120)
    rest = ["--store", str(lab.store_path), "--json"]
    [run] = lab.run_command(["runs", *rest])["runs"]
    assert (run["status"], run["stages_done"]) == ("interrupted", 0)
    [stage] = read_run(lab.store, run["run_id"]).stages
    assert (stage.name, stage.status, stage.key) == ("distill", "running", lease.parent.parent.name)
    assert lab.run_command(["gc", "--delete", *rest])["items"] == []
