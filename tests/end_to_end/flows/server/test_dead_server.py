"""Prefect servers of ours that are killed or hang: they are started again, and the runs that use
them end as if nothing had happened."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.runs.record import read_runs
from flows.server import process_tree
from flows.server.prefect_api import answers
from infra.store.store import open_store
from tests.flows.lab import SLOW
from tests.flows.server.served import PATIENCE, Run, Served, until

SERVER = re.compile(r"prefect server |prefect\.server|flows\.server\.guard")
WORKER = re.compile(r"-m tasks\.worker")


def kill(pids: list[int], number: signal.Signals) -> None:
    assert pids
    for pid in pids:
        os.kill(pid, number)


def until_the_flow_begins(run: Run) -> None:
    """Its first stage may have begun long before; the flow puts it on record once more."""
    until(lambda: "Prefect API:" in run.said)
    found, store = time.time(), open_store(run.store_path, write=False)
    until(lambda: (read_runs(store)[0].updated or 0.0) > found)


def test_a_run_ends_well_when_its_own_server_is_killed_and_later_hangs(
    finished: tuple[Path, dict[str, Any]], tiny_recipe: Path, tmp_path: Path
) -> None:
    """Killed before the flow begins, it is started again. It hangs while a stage runs: once it was
    7 minutes until the first stage was reported."""
    run = Run(tiny_recipe, tmp_path)
    until(lambda: "Prefect API:" in run.said)
    kill(run.pids(SERVER), signal.SIGKILL)
    until_the_flow_begins(run)
    until(lambda: run.pids(WORKER))
    kill(run.pids(SERVER), signal.SIGSTOP)
    began = time.monotonic()
    said, _ = run.end()
    # the stages, three bounded waits for Prefect, and a busy machine
    assert time.monotonic() - began < 20 + 3 * 20 + 60
    assert said["status"] == "succeeded"
    assert [stage["status"] for stage in said["stages"]] == ["ran", "ran"]
    assert run.files() == run.files(finished[0])
    assert "was killed by signal 9; starting it again (1 of" in run.said
    assert run.said.count("does not answer") in (1, 2)


def test_ctrl_c_while_the_own_server_is_dead_cancels_the_jobs(tiny_recipe, tmp_path):
    run = Run(tiny_recipe, tmp_path, "--set", SLOW)
    until_the_flow_begins(run)
    until(lambda: run.pids(WORKER))
    kill(run.pids(SERVER), signal.SIGKILL)
    time.sleep(1)
    began = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    assert run.end(130)[0]["status"] == "cancelled"
    assert time.monotonic() - began < process_tree.STOP_SECONDS


def test_serve_starts_its_server_again_and_the_runs_go_on_until_it_does_not_stay_up(
    finished: tuple[Path, dict[str, Any]], tiny_recipe: Path, tmp_path: Path
) -> None:
    """One run of its worker, one of the command line that shares the server, and one that starts
    afterwards. Then it is killed whenever it is there, and `lyceum serve` ends in one line."""
    other = tmp_path / "other"
    other.mkdir()
    with Served(tmp_path / "served") as served:
        run = served.start(recipe=str(tiny_recipe))
        shared = Run(tiny_recipe, other, **served.reach.environment)
        both = lambda: in_process(served, WORKER) and shared.pids(WORKER)  # noqa: E731
        until(lambda: both() or shared.process.poll() is not None)
        kill(in_process(served, SERVER), signal.SIGKILL)
        until(lambda: "starting it again (1 of" in served.said)

        assert shared.end()[0]["status"] == "succeeded"
        assert shared.files() == shared.files(finished[0])
        until(lambda: answers(served.api))
        assert served.ended(run)["type"] == "COMPLETED"
        until(lambda: served.stages(run) == {"distill": "Completed", "rebalance": "Completed"})
        assert shared.files(served.work / ".lyceum") == shared.files(finished[0])

        again = served.start(recipe=str(tiny_recipe))
        assert served.ended(again)["type"] == "COMPLETED"
        until(lambda: served.stages(again) == {"distill": "Cached", "rebalance": "Cached"})

        before, deadline = len(served.said), time.monotonic() + PATIENCE
        while served.process.poll() is None:
            assert time.monotonic() < deadline, served.said
            for pid in in_process(served, SERVER):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        assert served.process.returncode == 1
    assert served.said.rstrip().endswith("after 5 restarts it is not started again")
    assert "Traceback" not in served.said[before:]
    assert served.processes() == {}


def in_process(served: Served, what: re.Pattern[str]) -> list[int]:
    return [pid for pid, command in served.processes().items() if what.search(command)]
