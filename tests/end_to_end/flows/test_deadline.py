"""A deadline in the middle of SFT: the run ends well, says what is left, and the same command ends
with the bytes of a run that nobody disturbed."""

import time
from pathlib import Path

import pytest

from flows.cli.deadline import Deadline
from flows.cli.terminal import Terminal
from schemas.job import JobStatus
from tasks.running.watch import WATCH
from tests.end_to_end.test_python_page import EVALUATION, RECIPE
from tests.flows.lab import Lab


@pytest.fixture
def chain(prefect_api: str, tmp_path: Path) -> Path:
    """distill, rebalance and sft of the crash tests' chain, and an evaluation."""
    path = tmp_path / "chain.toml"
    path.write_text(RECIPE[: RECIPE.index("[stages.simpo]")] + EVALUATION, encoding="utf-8")
    return path


def test_a_run_pauses_in_its_deadline_and_goes_on_to_the_same_bytes(
    chain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The deadline comes near as soon as SFT's worker is heard of, seconds before its first step:
    it pauses after step 1."""
    lab, undisturbed = Lab(tmp_path, chain, capsys), Lab(tmp_path / "whole", chain, capsys)

    def progress(terminal: Terminal, stage: str, status: JobStatus) -> None:
        if stage == "sft" and status.state == "running":
            WATCH.get().pause.set()

    with monkeypatch.context() as patch:
        patch.setattr(Terminal, "progress", progress)
        paused = lab.run("--hours", "9")
    assert (paused["status"], paused["left"]) == ("paused", ["sft", "sft_eval"])
    assert [(one["name"], one["status"]) for one in paused["stages"]] == [
        ("distill", "ran"),
        ("rebalance", "ran"),
        ("sft", "skipped"),
    ]
    assert paused["stages"][2]["error"] == "paused at its checkpoint after step 1 of 8"

    record = lab.run("--hours", "9")
    assert (record["status"], "left" in record) == ("succeeded", False)
    assert [one["status"] for one in record["stages"]] == ["cached", "cached", "ran", "ran"]
    whole = undisturbed.run()
    assert [one["artifact"] for one in record["stages"]] == [
        one["artifact"] for one in whole["stages"]
    ]
    [sft] = lab.artifacts("sft")
    assert "resuming at step 1 of 8" in (
        lab.store.path(f"work/{sft.key}/{sft.attempt}/log.txt").read_text(encoding="utf-8")
    )


def test_for_people_a_paused_run_says_what_is_left_and_how_to_go_on(
    chain, tmp_path, monkeypatch, lyceum
):
    """A deadline that has passed before anything could begin."""
    store, now = tmp_path / "store", time.monotonic()
    monkeypatch.setattr(Deadline, "after", lambda hours: Deadline(now, now + 3600))
    printed = lyceum("run", chain, "--store", store, "--hours", "1")
    assert "no stage begins any more" in printed.err
    assert "The deadline came; left: distill, rebalance, sft, sft_eval." in printed.out
    assert f"The same command continues, here or elsewhere, with this store: {store.as_uri()}" in (
        " ".join(printed.out.split())
    )
