"""The flow on real stages, with a real Prefect API: what is cached, what runs again, what fails, and how a run is stopped."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.cli.main import main
from flows.cli.terminal import Terminal
from flows.recipe.resolve import resolve
from flows.runs.record import read_run
from infra.store.store import Store, open_store
from schemas.artifact import Manifest
from schemas.reports import RunRecord

ROOT = Path(__file__).resolve().parents[2]
FAILING = """
[stages.too_much]
kind = "rebalance"
inputs = { examples = "distill" }
config = { quotas = { science = { train = 5 } } }

[stages.evaluate]
kind = "reasoning_eval"
inputs = { prompts = "too_much" }
config = { prompt_length = 80, response_length = 72, batch_size = 128, min_items = 1 }
"""
TEACHER = "{ name = 'procedural', rows = { summarization = 100000 }, grounded = {} }"
SLOW = f"stages.distill.config.teachers=[{', '.join(10 * [TEACHER])}]"


class Lab:
    """A store, a recipe, and a way to run it in this process."""

    def __init__(self, root: Path, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.store_path, self.recipe, self._capsys = root / "store", recipe, capsys

    @property
    def store(self) -> Store:
        return open_store(self.store_path, write=False)

    def command(self, *arguments: str) -> list[str]:
        return ["run", str(self.recipe), "--store", str(self.store_path), "--json", *arguments]

    def run(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """What `lyceum run --json` prints."""
        return self.run_command(self.command(*arguments), code)

    def run_command(self, arguments: list[str], code: int = 0) -> dict[str, Any]:
        """The one JSON object that a command prints; its messages are kept."""
        assert main(arguments) == code
        printed = self._capsys.readouterr()
        assert printed.out.count("\n") == 1
        value = json.loads(printed.out)
        assert isinstance(value, dict)
        self.messages = printed.err
        return value

    def statuses(self, *arguments: str) -> dict[str, str]:
        return {stage["name"]: stage["status"] for stage in self.run(*arguments)["stages"]}

    def artifacts(self, kind: str) -> list[Manifest]:
        return list(self.store.artifacts(kind))


@pytest.fixture
def lab(prefect_api: str, tmp_path: Path, tiny_recipe: Path, capsys: pytest.CaptureFixture[str]) -> Lab:
    return Lab(tmp_path, tiny_recipe, capsys)


@pytest.fixture
def again(lab: Lab, finished: tuple[Path, dict[str, Any]]) -> Lab:
    """A lab whose store has had a run."""
    shutil.copytree(finished[0], lab.store_path)
    return lab


def test_a_second_run_reuses_everything_and_says_where_its_report_is(again: Lab, finished: tuple[Path, dict[str, Any]]) -> None:
    lab, (_, first) = again, finished
    assert set(first) == {"run_id", "recipe", "target", "store", "status", "stages", "report"}
    assert (first["recipe"], first["target"], first["status"]) == ("tiny", "local", "succeeded")
    assert [set(stage) for stage in first["stages"]] == [{"name", "kind", "key", "status", "seconds", "artifact", "metrics"}] * 2
    assert [stage["status"] for stage in first["stages"]] == ["ran", "ran"]
    assert Path(first["report"]).read_text(encoding="utf-8").lower().startswith("<!doctype html>")

    second = lab.run()
    assert [stage["status"] for stage in second["stages"]] == ["cached", "cached"]
    assert [stage["artifact"] for stage in second["stages"]] == [stage["artifact"] for stage in first["stages"]]
    assert lab.store.list_runs() == sorted([first["run_id"], second["run_id"]])


def test_only_what_changed_runs_again(again: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    """A config, a damaged byte, --force: each reruns its stage, and its followers only if its bytes are different."""
    lab = again
    assert lab.statuses("--set", "stages.rebalance.config.seed=5") == {"distill": "cached", "rebalance": "ran"}

    [distilled] = lab.artifacts("distill")
    flip_a_byte(lab.store.local_dir(distilled) / "examples.jsonl")
    assert main(["why", str(lab.recipe), "distill", "--store", str(lab.store_path)]) == 0
    assert "examples.jsonl: has sha256" in capsys.readouterr().out
    assert lab.statuses() == {"distill": "ran", "rebalance": "cached"}
    assert lab.artifacts("distill")[0].digest == distilled.digest

    assert lab.statuses("--force", "rebalance") == {"distill": "cached", "rebalance": "ran"}


def test_deleting_all_of_prefect_s_records_reruns_nothing(again: Lab) -> None:
    """They are a view; what is cached is what the manifests say."""
    lab = again
    attempts = [manifest.attempt for kind in ("distill", "rebalance") for manifest in lab.artifacts(kind)]
    from prefect.client.orchestration import get_client
    from prefect.settings import get_current_settings

    shutil.rmtree(get_current_settings().results.local_storage_path, ignore_errors=True)
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs():
            client.delete_flow_run(run.id)
    assert lab.statuses() == {"distill": "cached", "rebalance": "cached"}
    assert [manifest.attempt for kind in ("distill", "rebalance") for manifest in lab.artifacts(kind)] == attempts


def test_prefect_shows_what_was_cached(again: Lab) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import TaskRunFilter

    again.run()
    named = TaskRunFilter.model_validate({"state": {"name": {"any_": ["Cached"]}}})
    with get_client(sync_client=True) as client:
        wait_until(lambda: {run.name for run in client.read_task_runs(task_run_filter=named)} >= {"distill", "rebalance"})


def test_a_stage_that_finds_its_input_bad_fails_with_its_message_and_the_others_finish(again: Lab) -> None:
    """An unfillable quota: exit 2; what needs the stage is skipped, what does not is finished; the report is written all the same."""
    lab = again
    text = lab.recipe.read_text(encoding="utf-8")
    lab.recipe.write_text(text.replace("[stages.rebalance]", FAILING + "[stages.rebalance]"), encoding="utf-8")
    record = lab.run("--set", "stages.rebalance.config.seed=5", code=2)
    stages = {stage["name"]: stage for stage in record["stages"]}
    assert {name: stage["status"] for name, stage in stages.items()} == {
        "distill": "cached",
        "too_much": "failed",
        "evaluate": "skipped",
        "rebalance": "ran",
    }
    assert "science" in stages["too_much"]["error"]
    assert "science" in lab.messages
    assert "Traceback" not in lab.messages
    assert Path(record["report"]).is_file()


def test_binary_junk_in_the_data_directory_fails_with_its_file_named(lab: Lab, tmp_path: Path) -> None:
    """Found by the stage that reads it: exit 2, and no artifact of the junk."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.jsonl").write_bytes(bytes(range(256)) * 40)
    source = '{ path = "rows.jsonl", domain = "math", prompt = "q", reasoning = "q", answer = "a" }'
    record = lab.run(
        "--set", f'stages.distill.config.teachers=[{{ name = "dataset", sources = [{source}] }}]', "--data", str(tmp_path / "data"), code=2
    )
    assert [stage["status"] for stage in record["stages"]] == ["failed", "skipped"]
    assert "rows.jsonl" in record["stages"][0]["error"]
    assert lab.artifacts("distill") == []


class Between:
    """Does something to the store each time a stage has just ended, before the next one begins."""

    def __init__(self, stage: str, action: Callable[[], None], times: int = 1) -> None:
        self.stage, self.action, self.left = stage, action, times

    def attach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        record = Terminal.record

        def recorded(terminal: Terminal, now: RunRecord) -> None:
            before = terminal.latest.stages if terminal.latest else ()
            record(terminal, now)
            ended = [one.name for one in now.stages if one not in before and one.status in ("ran", "cached")]
            if self.left and self.stage in ended:
                self.left -= 1
                self.action()

        monkeypatch.setattr(Terminal, "record", recorded)


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
def test_an_input_that_is_damaged_in_mid_run_is_made_again_and_the_run_goes_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    Between("distill", lambda: flip_a_byte(lab.store.local_dir(lab.artifacts("distill")[0]) / "examples.jsonl")).attach(monkeypatch)
    record = lab.run()
    assert [stage["status"] for stage in record["stages"]] == ["ran", "ran"]
    assert "distill: its artifact, an input of rebalance, is gone from the store or damaged; making it again" in lab.messages
    assert lab.artifacts("distill")[0].attempt == "2"


@pytest.mark.slow
def test_an_input_that_is_lost_again_and_again_fails_the_stage_that_needs_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Between("distill", lambda: shutil.rmtree(lab.store_path / "artifacts" / "distill"), times=10)
    lost.attach(monkeypatch)
    record = lab.run(code=1)
    assert [stage["status"] for stage in record["stages"]] == ["ran", "failed"]
    assert lost.left == 8
    assert "is missing, damaged or another one by now" in record["stages"][1]["error"]


@pytest.mark.slow
def test_when_the_input_comes_back_with_other_bytes_all_that_was_made_from_the_old_ones_is_made_again(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store holds an artifact that this code would not make. It is lost after one of two stages has used it."""
    text = lab.recipe.read_text(encoding="utf-8")
    second = text[text.index("[stages.rebalance]") :].replace("stages.rebalance", "stages.second")
    lab.recipe.write_text(text + second.replace("near_duplicates = false", "near_duplicates = false\nseed = 5"), encoding="utf-8")
    undisturbed = Lab(tmp_path / "undisturbed", lab.recipe, capsys)
    expected = undisturbed.run()["stages"]
    [made] = undisturbed.artifacts("distill")
    shutil.copytree(undisturbed.store.local_dir(made), tmp_path / "other")
    rows = (tmp_path / "other" / "examples.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / "other" / "examples.jsonl").write_text("".join(rows[:-1]), encoding="utf-8")
    open_store(lab.store_path).commit(made.model_copy(update={"files": (), "checksum": ""}), tmp_path / "other")

    lost = Between("rebalance", lambda: shutil.rmtree(lab.store_path / "artifacts" / "distill"))
    lost.attach(monkeypatch)
    stages = lab.run()["stages"]
    assert lost.left == 0
    assert "rebalance: its input distill has other bytes now" in lab.messages
    assert [(one["name"], one["status"], one["artifact"]) for one in stages] == [(one["name"], "ran", one["artifact"]) for one in expected]


def test_a_run_that_was_killed_still_says_what_it_worked_on(lab: Lab) -> None:
    """SIGKILL of the flow, in the middle of a stage: its key is on record, the run counts as interrupted, and nothing of it is garbage."""
    process = start(lab.command("--set", SLOW))
    wait_until(lambda: any(lab.store_path.glob("work/*/1/lease.json")))
    [lease] = lab.store_path.glob("work/*/1/lease.json")
    process.kill()
    process.communicate(timeout=30)
    [run] = lab.run_command(["runs", "--store", str(lab.store_path), "--json"])["runs"]
    assert (run["status"], run["stages_done"]) == ("interrupted", 0)
    [stage] = read_run(lab.store, run["run_id"]).stages
    assert (stage.name, stage.status, stage.key) == ("distill", "running", lease.parent.parent.name)
    assert lab.run_command(["gc", "--store", str(lab.store_path), "--delete", "--json"])["items"] == []


def start(arguments: list[str]) -> "subprocess.Popen[str]":
    """`lyceum` as a process of its own, in a process group of its own, as a shell would start it."""
    command = [sys.executable, "-m", "flows.cli.main", *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text(encoding="utf-8") if Path("/proc").exists() else True


@pytest.mark.slow
def test_two_simultaneous_runs_run_each_stage_once(lab: Lab) -> None:
    both = [start(lab.command()), start(lab.command())]
    printed = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    for stage in (0, 1):
        assert sorted(one["stages"][stage]["status"] for one in printed) == ["cached", "ran"]
    assert len(list(lab.store_path.glob("work/*/*/job.json"))) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_stopped_run_leaves_no_process(lab: Lab, number: signal.Signals) -> None:
    """Ctrl-C reaches the whole process group, as from a terminal; SIGTERM one process. Exit 130 within seconds, record `cancelled`."""
    process = start(lab.command("--set", SLOW))
    wait_until(lambda: any(lab.store_path.glob("work/*/1/status.json")))
    [lease] = lab.store_path.glob("work/*/1/lease.json")
    workers = children(process.pid)
    assert workers
    began = time.monotonic()
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 130, err
    record = json.loads(out)
    assert (record["status"], [stage["status"] for stage in record["stages"]]) == ("cancelled", ["skipped"])
    assert "Traceback" not in err
    assert not [pid for pid in workers if alive(pid)]
    assert json.loads(lease.read_text(encoding="utf-8"))["released"] is True
    assert lab.artifacts("distill") == []


SMALL = [
    "name=small",
    "stages.distill.config.teachers=[{ name = 'procedural', rows = { general = 200 }, grounded = { answerable = 60, unanswerable = 60 } }]",
    "stages.rebalance.config.quotas={ general = { train = 40, validation = 1, heldout = 4 } }",
    "stages.rebalance.config.grounding_quotas={ answerable = { train = 20, heldout = 2 }, unanswerable = { train = 20, heldout = 2 } }",
    *(f"stages.{name}.config.min_items=1" for name in ("base_eval", "base_safety", "sft_eval", "simpo_eval", "grpo_eval", "safety_eval")),
    *(f"stages.{name}.config.steps=3" for name in ("sft", "simpo", "grpo")),
    "stages.simpo.config.prompts=32",
    "stages.grpo.config.batch_size=16",
]
"""The quickstart with so little data and so few steps that each stage takes seconds."""


@pytest.mark.campaign
def test_ctrl_c_in_the_middle_of_any_stage_of_the_quickstart(lab: Lab) -> None:
    """Each stage in turn is stopped while its job runs (importing, compiling or training); the next run continues with that very stage."""
    arguments = [argument for override in SMALL for argument in ("--set", override)]
    command = ["run", "quickstart", "--store", str(lab.store_path), "--json", *arguments]
    finished: list[str] = []
    for stage in [stage.name for stage in resolve("quickstart").stages if stage.name != "rebalance"]:  # over before one can look
        process = start(command)
        wait_until(lambda stage=stage, process=process: running_stage(lab) == stage or process.poll() is not None, seconds=300)
        time.sleep(1.5 * len(finished) % 4)  # somewhere else each time
        workers, began = children(process.pid), time.monotonic()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (stage, process.returncode, time.monotonic() - began < 15) == (stage, 130, True), err
        assert not [pid for pid in workers if alive(pid)]
        finished.append(stage)
    record = lab.run_command(command)
    assert record["status"] == "succeeded"
    answer = lab.run_command(["ask", record["run_id"], "Which day comes after Monday?", "--store", str(lab.store_path), "--json"])
    assert (answer["stage"], bool(answer["completion"])) == ("grpo", True)


def running_stage(lab: Lab) -> str | None:
    """The stage whose job runs now, as its job.json and status.json say."""
    for status in lab.store_path.glob("work/*/*/status.json"):
        if json.loads(status.read_text(encoding="utf-8"))["state"] == "running":
            return str(json.loads((status.parent / "job.json").read_text(encoding="utf-8"))["stage"])
    return None


def children(pid: int) -> list[int]:
    """Process ids of all descendants."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = {int(line.split()[0]): int(line.split()[1]) for line in listed.splitlines()}
    found = [child for child, parent in parents.items() if parent == pid]
    return [*found, *(grandchild for child in found for grandchild in children(child))]
