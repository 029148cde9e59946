"""The flow on real stages: what runs again, an input that is lost in mid-run, two runs at once, a
run that is stopped."""

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.cli.terminal import Terminal
from infra.store.store import open_store
from schemas.reports import RunRecord
from tests.fakes.process import until
from tests.flows.lab import SLOW, Lab, flip_a_byte, start
from tests.processes import descendants, exists

pytestmark = pytest.mark.usefixtures("prefect_api")


def test_only_what_changed_runs_again(again: Lab, lyceum: Any) -> None:
    """A config, a damaged byte, --force: each reruns its stage, and its followers only if its bytes
    are different."""
    lab = again
    assert lab.statuses("--set", "stages.rebalance.config.seed=5") == {
        "distill": "cached",
        "rebalance": "ran",
    }

    [distilled] = lab.artifacts("distill")
    flip_a_byte(lab.store.local_dir(distilled) / "examples.jsonl")
    said = lyceum("why", lab.recipe, "distill", "--store", lab.store_path).out
    assert "examples.jsonl: has sha256" in said
    assert lab.statuses() == {"distill": "ran", "rebalance": "cached"}
    assert lab.artifacts("distill")[0].digest == distilled.digest

    assert lab.statuses("--force", "rebalance") == {"distill": "cached", "rebalance": "ran"}


class Between:
    """Does something to the store each time a stage has just ended, before the next one begins."""

    def __init__(self, stage: str, action: Callable[[], None], times: int = 1) -> None:
        self.stage, self.action, self.left = stage, action, times

    def attach(self, monkeypatch: pytest.MonkeyPatch) -> None:
        record = Terminal.record

        def recorded(terminal: Terminal, now: RunRecord) -> None:
            before = terminal.latest.stages if terminal.latest else ()
            record(terminal, now)
            ended = [
                one.name
                for one in now.stages
                if one not in before and one.status in ("ran", "cached")
            ]
            if self.left and self.stage in ended:
                self.left -= 1
                self.action()

        monkeypatch.setattr(Terminal, "record", recorded)


def test_an_input_that_is_damaged_in_mid_run_is_made_again_and_the_run_goes_on(lab, monkeypatch):
    Between(
        "distill",
        lambda: flip_a_byte(lab.store.local_dir(lab.artifacts("distill")[0]) / "examples.jsonl"),
    ).attach(monkeypatch)
    record = lab.run()
    assert [stage["status"] for stage in record["stages"]] == ["ran", "ran"]
    assert (
        "distill: its artifact, an input of rebalance, is gone from the store or damaged; making it"
        " again" in lab.messages
    )
    assert lab.artifacts("distill")[0].attempt == "2"


def test_an_input_that_is_lost_again_and_again_fails_the_stage_that_needs_it(lab, monkeypatch):
    lost = Between(
        "distill", lambda: shutil.rmtree(lab.store_path / "artifacts" / "distill"), times=10
    )
    lost.attach(monkeypatch)
    record = lab.run(code=1)
    assert [stage["status"] for stage in record["stages"]] == ["ran", "failed"]
    assert lost.left == 8
    assert "is missing, damaged or another one by now" in record["stages"][1]["error"]


def test_when_the_input_comes_back_with_other_bytes_all_made_from_the_old_ones_is_made_again(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The store holds an artifact that this code would not make. It is lost after one of two stages
    has used it."""
    text = lab.recipe.read_text(encoding="utf-8")
    second = text[text.index("[stages.rebalance]") :].replace("stages.rebalance", "stages.second")
    lab.recipe.write_text(
        text + second.replace("near_duplicates = false", "near_duplicates = false\nseed = 5"),
        encoding="utf-8",
    )
    undisturbed = Lab(tmp_path / "undisturbed", lab.recipe, capsys)
    expected = undisturbed.run()["stages"]
    [made] = undisturbed.artifacts("distill")
    shutil.copytree(undisturbed.store.local_dir(made), tmp_path / "other")
    rows = (
        (tmp_path / "other" / "examples.jsonl")
        .read_text(encoding="utf-8")
        .splitlines(keepends=True)
    )
    (tmp_path / "other" / "examples.jsonl").write_text("".join(rows[:-1]), encoding="utf-8")
    open_store(lab.store_path).commit(
        made.model_copy(update={"files": (), "checksum": ""}), tmp_path / "other"
    )

    lost = Between("rebalance", lambda: shutil.rmtree(lab.store_path / "artifacts" / "distill"))
    lost.attach(monkeypatch)
    stages = lab.run()["stages"]
    assert lost.left == 0
    assert "rebalance: its input distill has other bytes now" in lab.messages
    assert [(one["name"], one["status"], one["artifact"]) for one in stages] == [
        (one["name"], "ran", one["artifact"]) for one in expected
    ]


def test_two_simultaneous_runs_run_each_stage_once(lab: Lab) -> None:
    both = [start(lab.command()), start(lab.command())]
    printed = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    for stage in (0, 1):
        assert sorted(one["stages"][stage]["status"] for one in printed) == ["cached", "ran"]
    assert len(list(lab.store_path.glob("work/*/*/job.json"))) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_leaves_no_process(lab: Lab, number: signal.Signals) -> None:
    """Ctrl-C reaches the whole process group, as from a terminal; SIGTERM one process. Exit 130
    within seconds, record `cancelled`."""
    process = start(lab.command("--set", SLOW))
    until(lambda: any(lab.store_path.glob("work/*/1/status.json")))
    [lease] = lab.store_path.glob("work/*/1/lease.json")
    workers = descendants(process.pid)
    assert workers
    began = time.monotonic()
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert time.monotonic() - began < 60
    assert process.returncode == 130, err
    record = json.loads(out)
    assert record["status"] == "cancelled"
    assert [stage["status"] for stage in record["stages"]] == ["skipped"]
    assert "Traceback" not in err
    assert not [pid for pid, _ in workers if exists(pid)]
    assert json.loads(lease.read_text(encoding="utf-8"))["released"] is True
    assert lab.artifacts("distill") == []
