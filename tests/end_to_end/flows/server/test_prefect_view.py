"""Prefect as a view: its API is cut off or hangs at chosen requests of a real run, which ends as if
nothing had happened."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flows.server import prefect_view
from infra.store.store import open_store
from tests.fakes.gate import Gate
from tests.fakes.process import ROOT, until

SLACK = 60.0
"""Seconds that a busy machine may take longer than an idle one for a run of a few seconds."""

TEACHER = "{ name = 'procedural', rows = { summarization = 100000 }, grounded = {} }"
LONG = ("--set", f"stages.distill.config.teachers=[{', '.join(10 * [TEACHER])}]")
LOST, BACK = "does not answer", "answers again"


class Command:
    """`lyceum run` of the tiny recipe with an API of somebody else."""

    def __init__(self, recipe: Path, root: Path) -> None:
        self.recipe, self.store_path = recipe, root / "store"

    def start(self, api: str, *arguments: str) -> "subprocess.Popen[str]":
        command = [
            sys.executable,
            "-m",
            "flows.cli.main",
            "run",
            str(self.recipe),
            "--store",
            str(self.store_path),
            "--json",
            *arguments,
        ]
        environment = {**os.environ, "PREFECT_API_URL": api}
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, api: str) -> tuple[int, str, str, float]:
        """Exit code, standard output, messages and seconds of a run to its end."""
        began = time.monotonic()
        process = self.start(api)
        out, messages = process.communicate(timeout=300)
        return process.returncode, out, messages, time.monotonic() - began

    def files(self, store: Path | None = None) -> dict[str, Any]:
        return {
            one.kind: one.files
            for one in open_store(store or self.store_path, write=False).artifacts()
        }


@pytest.fixture
def command(tiny_recipe: Path, tmp_path: Path) -> Command:
    return Command(tiny_recipe, tmp_path)


def ends_as_if_nothing_had_happened(
    command: Command, finished: tuple[Path, dict[str, Any]], ended: tuple[int, str, str, float]
) -> None:
    code, out, messages, _ = ended
    assert code == 0, messages
    said = json.loads(out)
    assert (said["status"], [stage["status"] for stage in said["stages"]]) == (
        "succeeded",
        ["ran", "ran"],
    )
    assert Path(said["report"]).is_file()
    assert command.files() == command.files(finished[0])
    assert "Traceback" not in messages
    assert "error" not in messages.lower()
    assert messages.count(LOST) == 1


def test_a_run_goes_on_when_its_api_goes_away_for_good(
    prefect_api: str, command: Command, finished: tuple[Path, dict[str, Any]]
) -> None:
    """The last thing that Prefect hears is the plan. It was 240 s and a traceback; a run takes
    about 20 s."""
    with Gate(prefect_api, when=b"POST /api/artifacts/", then="refuse") as gate:
        ended = command.run(gate.url)
    ends_as_if_nothing_had_happened(command, finished, ended)
    assert "did not reach the Prefect server" in ended[2]
    assert ended[3] < 20 + SLACK


def test_a_run_goes_on_when_its_api_hangs(
    prefect_api: str, command: Command, finished: tuple[Path, dict[str, Any]]
) -> None:
    with Gate(prefect_api, when=b"POST /api/artifacts/", then="hang") as gate:
        ended = command.run(gate.url)
    ends_as_if_nothing_had_happened(command, finished, ended)
    assert ended[3] < 20 + prefect_view.ANSWER_SECONDS + SLACK


@pytest.mark.parametrize("then", ["refuse", "hang"])
def test_an_api_that_is_lost_at_the_last_request_costs_seconds(
    prefect_api: str, command: Command, finished: tuple[Path, dict[str, Any]], then: Any
) -> None:
    with Gate(prefect_api, when=b'"type":"COMPLETED"', then=then) as gate:
        ended = command.run(gate.url)
        assert gate.turned.is_set()
    ends_as_if_nothing_had_happened(command, finished, ended)
    assert ended[3] < 20 + 3 * prefect_view.ANSWER_SECONDS + SLACK


def test_what_happened_while_the_api_was_away_is_recorded_when_it_is_back(
    prefect_api: str, command: Command, finished: tuple[Path, dict[str, Any]]
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterName,
        LogFilter,
        LogFilterFlowRunId,
    )

    with Gate(prefect_api, when=b"POST /api/artifacts/", then="refuse") as gate:
        process = command.start(gate.url)
        assert gate.turned.wait(120)
        until_made(command, process)
        gate.turn("forward")
        out, messages = process.communicate(timeout=300)
        ends_as_if_nothing_had_happened(command, finished, (process.returncode, out, messages, 0.0))
    assert messages.count(BACK) == 1
    assert "did not reach" not in messages
    ended = {("distill", "Completed"), ("rebalance", "Completed")}
    with get_client(sync_client=True) as client:
        [run] = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[json.loads(out)["run_id"]]))
        )
        assert run.state.is_completed()
        until(
            lambda: (
                {
                    (one.name, one.state_name)
                    for one in client.read_task_runs()
                    if one.flow_run_id == run.id
                }
                == ended
            ),
            seconds=SLACK,
        )
        logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run.id])))
    assert logs


def until_made(command: Command, process: "subprocess.Popen[str]") -> None:
    """Wait until the first artifact is there."""
    deadline = time.monotonic() + 120
    while not command.store_path.exists() or not command.files():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("then", ["refuse", "hang"])
def test_ctrl_c_while_the_api_is_away_cancels_the_jobs(
    prefect_api: str, command: Command, then: Any
) -> None:
    with Gate(prefect_api, when=b"POST /api/artifacts/", then=then) as gate:
        process = command.start(gate.url, *LONG)
        assert gate.turned.wait(120)
        deadline = time.monotonic() + 120
        while not list(command.store_path.glob("work/*/*/job.json")):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, messages = process.communicate(timeout=300)
    assert process.returncode == 130, messages
    assert json.loads(out)["status"] == "cancelled"
    assert "Traceback" not in messages
    jobs = [
        path.read_bytes().decode(errors="replace")
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists()
    ]
    assert not [job for job in jobs if "tasks.worker" in job and str(command.store_path) in job]


def test_an_api_that_is_lost_before_the_flow_begins_is_one_line_within_half_a_minute(
    prefect_api: str, command: Command
) -> None:
    with Gate(prefect_api, when=b"POST /api/flow_runs/", then="refuse") as gate:
        code, out, messages, seconds = command.run(gate.url)
    assert (code, out) == (1, "")
    assert (
        messages.strip().splitlines()[-1]
        == f"lyceum: the Prefect API at {gate.url} does not answer, so the run could not begin"
    )
    assert "Traceback" not in messages
    assert seconds < 30 + SLACK
    assert not list(command.store_path.glob("runs/*"))


NIGHT = """
import sys, threading
from flows.nightly import nightly
from flows.server.prefect_view import prefect_view
recipe, store, url = sys.argv[1:]
with prefect_view(url, print, threading.Event(), start_seconds=15, end_seconds=15):
    state = nightly(recipe=recipe, store=store, return_state=True)
print(state.name, state.message)
"""


def test_a_night_is_decided_although_the_api_has_gone_away(
    prefect_api: str, command: Command
) -> None:
    """The run within it ends, and the night judges it, with the same outcome as with an API."""
    outcomes = []
    for then in ("forward", "refuse"):
        store = command.store_path.with_name(then)
        with Gate(prefect_api, when=b"POST /api/artifacts/", then=then) as gate:
            night = subprocess.run(
                [sys.executable, "-c", NIGHT, str(command.recipe), str(store), gate.url],
                cwd=ROOT,
                env={**os.environ, "PREFECT_API_URL": gate.url},
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            assert gate.turned.is_set()
        assert night.returncode == 0, night.stderr
        assert "Traceback" not in night.stdout
        assert (LOST in night.stdout) == (then == "refuse")
        [run] = open_store(store, write=False).list_runs()
        outcomes.append(night.stdout.splitlines()[-1].replace(run, "RUN"))
        assert command.files(store).keys() == {"distill", "rebalance"}
    assert outcomes[0] == outcomes[1]
