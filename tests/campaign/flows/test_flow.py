"""Ctrl-C in the middle of each stage of the quickstart."""

import json
import os
import signal
import time

import pytest

from flows.recipe.resolve import resolve
from tests.fakes.process import until
from tests.flows.lab import Lab, start
from tests.processes import descendants, exists

pytestmark = pytest.mark.usefixtures("prefect_api")

STEPS = {"sft": 40, "simpo": 5, "grpo": 5}
"""So few that each stage takes seconds."""


def test_ctrl_c_in_the_middle_of_any_stage_of_the_quickstart(lab: Lab) -> None:
    """Each stage in turn is stopped while its job runs (importing, compiling or training); the next
    run continues with that very stage."""
    few = [word for one, n in STEPS.items() for word in ("--set", f"stages.{one}.config.steps={n}")]
    command = ["run", "quickstart", "--tiny", "--store", str(lab.store_path), "--json", *few]
    finished: list[str] = []
    # over before one can look
    for stage in [
        stage.name for stage in resolve("quickstart").stages if stage.name != "rebalance"
    ]:
        process = start(command)
        until(
            lambda stage=stage, process=process: (
                running_stage(lab) == stage or process.poll() is not None
            ),
            seconds=300,
        )
        time.sleep(1.5 * len(finished) % 4)  # somewhere else each time
        workers, began = descendants(process.pid), time.monotonic()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert (stage, process.returncode, time.monotonic() - began < 15) == (stage, 130, True), err
        assert not [pid for pid, _ in workers if exists(pid)]
        finished.append(stage)
    record = lab.run_command(command)
    assert record["status"] == "succeeded"
    asked = ["ask", record["run_id"], "Which day comes after Monday?"]
    answer = lab.run_command([*asked, "--store", str(lab.store_path), "--json"])
    assert (answer["stage"], bool(answer["completion"])) == ("grpo", True)


def running_stage(lab: Lab) -> str | None:
    """The stage whose job runs now, as its job.json and status.json say."""
    for status in lab.store_path.glob("work/*/*/status.json"):
        if json.loads(status.read_text(encoding="utf-8"))["state"] == "running":
            return str(
                json.loads((status.parent / "job.json").read_text(encoding="utf-8"))["stage"]
            )
    return None
