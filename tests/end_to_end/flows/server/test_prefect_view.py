"""Prefect as a view: its API is cut off or hangs at chosen requests of a real run, which ends as if
nothing had happened."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.server import prefect_view
from infra.store.store import open_store
from tests.fakes.gate import Gate
from tests.fakes.process import ROOT, until
from tests.flows.lab import SLOW
from tests.flows.server.served import Run

SLACK = 60.0
"""Seconds that a busy machine may take longer than an idle one for a run of a few seconds."""

LOST, BACK = "does not answer", "answers again"
Finished = tuple[Path, dict[str, Any]]
Start = Callable[..., Run]
PLAN = b"POST /api/artifacts/"
"""What a run sends when it has begun: the plan, before its first stage."""


@pytest.fixture
def start(tiny_recipe: Path, tmp_path: Path) -> Start:
    """Starts `lyceum run` of the tiny recipe with an API of somebody else."""
    return lambda api, *arguments: Run(tiny_recipe, tmp_path, *arguments, PREFECT_API_URL=api)


def ends_as_if_nothing_had_happened(run: Run, finished: Finished) -> float:
    """Returns how long it took."""
    said, seconds = run.end()
    assert said["status"] == "succeeded"
    assert [stage["status"] for stage in said["stages"]] == ["ran", "ran"]
    assert Path(said["report"]).is_file()
    assert run.files() == run.files(finished[0])
    assert "error" not in run.said.lower()
    assert run.said.count(LOST) == 1
    return seconds


@pytest.mark.parametrize("then", ["refuse", "hang"])
def test_a_run_goes_on_when_its_api_goes_away_for_good_or_hangs(prefect_api, start, finished, then):
    """The last thing that Prefect hears is the plan. It was 240 s and a traceback; a run takes
    about 20 s."""
    with Gate(prefect_api, when=PLAN, then=then) as gate:
        run = start(gate.url)
        seconds = ends_as_if_nothing_had_happened(run, finished)
    assert then == "hang" or "did not reach the Prefect server" in run.said
    assert seconds < 20 + SLACK + (prefect_view.ANSWER_SECONDS if then == "hang" else 0)


def test_an_api_that_is_lost_at_the_last_request_costs_seconds(prefect_api, start, finished):
    with Gate(prefect_api, when=b'"type":"COMPLETED"', then="hang") as gate:
        seconds = ends_as_if_nothing_had_happened(start(gate.url), finished)
        assert gate.turned.is_set()
    assert seconds < 20 + 3 * prefect_view.ANSWER_SECONDS + SLACK


def test_what_happened_while_the_api_was_away_is_recorded_when_it_is_back(
    prefect_api: str, start: Start, finished: Finished
) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    with Gate(prefect_api, when=PLAN, then="refuse") as gate:
        run = start(gate.url)
        assert gate.turned.wait(120)
        until(lambda: run.process.poll() is None and run.store_path.exists() and run.files())
        gate.turn("forward")
        ends_as_if_nothing_had_happened(run, finished)
    assert run.said.count(BACK) == 1
    assert "did not reach" not in run.said
    ended = {("distill", "Completed"), ("rebalance", "Completed")}
    with get_client(sync_client=True) as client:
        [name] = [path.name for path in run.store_path.glob("runs/*")]
        [recorded] = [one for one in client.read_flow_runs() if one.name == name]
        assert recorded.state.is_completed()

        def stages() -> set[tuple[str, str | None]]:
            found = client.read_task_runs()
            return {(one.name, one.state_name) for one in found if one.flow_run_id == recorded.id}

        until(stages, lambda found: found == ended, seconds=SLACK)
        assert client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[recorded.id])))


def test_ctrl_c_while_the_api_is_away_cancels_the_jobs(prefect_api: str, start: Start) -> None:
    with Gate(prefect_api, when=PLAN, then="hang") as gate:
        run = start(gate.url, "--set", SLOW)
        assert gate.turned.wait(120)
        until(lambda: list(run.store_path.glob("work/*/*/job.json")))
        run.process.send_signal(signal.SIGINT)
        assert run.end(130)[0]["status"] == "cancelled"


def test_an_api_that_is_lost_before_the_flow_begins_is_one_line_within_half_a_minute(
    prefect_api: str, start: Start
) -> None:
    with Gate(prefect_api, when=b"POST /api/flow_runs/", then="refuse") as gate:
        run = start(gate.url)
        said, seconds = run.end(1)
    assert said == {}
    last = f"lyceum: the Prefect API at {gate.url} does not answer, so the run could not begin"
    assert run.said.strip().splitlines()[-1] == last
    assert seconds < 30 + SLACK
    assert not list(run.store_path.glob("runs/*"))


NIGHT = """
import sys, threading
from flows.nightly import nightly
from flows.server.prefect_view import prefect_view
recipe, store, url = sys.argv[1:]
with prefect_view(url, print, threading.Event(), start_seconds=15, end_seconds=15):
    state = nightly(recipe=recipe, store=store, return_state=True)
print(state.name, state.message)
"""


def test_a_night_is_decided_although_the_api_has_gone_away(prefect_api, tiny_recipe, tmp_path):
    """The run within it ends, and the night judges it, with the same outcome as with an API."""
    outcomes = []
    for then in ("forward", "refuse"):
        store = tmp_path / then
        with Gate(prefect_api, when=PLAN, then=then) as gate:
            night = subprocess.run(
                [sys.executable, "-c", NIGHT, str(tiny_recipe), str(store), gate.url],
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
        opened = open_store(store, write=False)
        [run] = opened.list_runs()
        outcomes.append(night.stdout.splitlines()[-1].replace(run, "RUN"))
        assert {one.kind for one in opened.artifacts()} == {"distill", "rebalance"}
    assert outcomes[0] == outcomes[1]
