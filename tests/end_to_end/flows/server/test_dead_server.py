"""Prefect servers of ours that are killed or hang: they are started again, and the runs that use
them end as if nothing had happened."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.server import tied
from flows.server.prefect_api import answers
from infra.store.store import open_store
from tests.flows.server.served import PATIENCE, ROOT, SLOW, Served, until

MARK = "LYCEUM_TEST_MARK"
SERVER, WORKER = (
    re.compile(r"prefect server |prefect\.server|flows\.server\.app"),
    re.compile(r"-m tasks\.worker"),
)


class Run:
    """`lyceum run` of the tiny recipe in a process tree of its own, which can be found by a
    mark."""

    def __init__(self, recipe: Path, root: Path, *arguments: str, **environment: str) -> None:
        self.store_path, self.log, self._mark = root / "store", root / "run.log", f"{MARK}={root}"
        command = [
            sys.executable,
            "-m",
            "flows.cli.main",
            "run",
            str(recipe),
            "--store",
            str(self.store_path),
            "--json",
            *arguments,
        ]
        inherited = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
        home = {"PREFECT_HOME": str(root / "prefect"), MARK: str(root)}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**inherited, **home, **environment},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def pids(self, what: re.Pattern[str] = re.compile("")) -> list[int]:
        """Processes of this run with such a command line."""
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                if self._mark in (directory / "environ").read_bytes().decode(
                    errors="replace"
                ).split("\0"):
                    command = (
                        (directory / "cmdline")
                        .read_bytes()
                        .decode(errors="replace")
                        .replace("\0", " ")
                    )
                    found += [int(directory.name)] if what.search(command) else []
            except OSError:
                continue
        return found

    def signal_server(self, number: signal.Signals) -> None:
        kill(self.pids(SERVER), number)

    def end(self) -> dict[str, Any]:
        """What it prints in the end."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == 0, self.said
        assert "Traceback" not in self.said
        assert self.pids() == []
        value = json.loads(out)
        assert isinstance(value, dict)
        return value

    def files(self, store: Path | None = None) -> dict[str, Any]:
        return {
            one.kind: one.files
            for one in open_store(store or self.store_path, write=False).artifacts()
        }


def kill(pids: list[int], number: signal.Signals) -> None:
    assert pids
    for pid in pids:
        os.kill(pid, number)


def test_a_run_ends_well_when_its_own_server_is_killed_whenever_it_starts(
    finished: tuple[Path, dict[str, Any]], tiny_recipe: Path, tmp_path: Path
) -> None:
    """Before the flow begins, and again while the first stage runs."""
    run = Run(tiny_recipe, tmp_path)
    until(lambda: "Prefect API:" in run.said)
    run.signal_server(signal.SIGKILL)
    until(lambda: run.pids(WORKER))
    run.signal_server(signal.SIGKILL)
    said = run.end()
    assert (said["status"], [stage["status"] for stage in said["stages"]]) == (
        "succeeded",
        ["ran", "ran"],
    )
    assert run.files() == run.files(finished[0])
    assert "was killed by signal 9; starting it again (1 of" in run.said
    assert "was killed by signal 9; starting it again (2 of" in run.said
    assert run.said.count("does not answer") in (1, 2)


def test_a_run_whose_own_server_hangs_is_seconds_later(
    finished: tuple[Path, dict[str, Any]], tiny_recipe: Path, tmp_path: Path
) -> None:
    """It was 7 minutes until the first stage was reported."""
    run = Run(tiny_recipe, tmp_path)
    until(lambda: run.pids(WORKER))
    run.signal_server(signal.SIGSTOP)
    began = time.monotonic()
    assert run.end()["status"] == "succeeded"
    # the stages, three bounded waits for Prefect, and a busy machine
    assert time.monotonic() - began < 20 + 3 * 20 + 60
    assert run.files() == run.files(finished[0])
    assert run.said.count("does not answer") == 1


def test_ctrl_c_while_the_own_server_is_dead_cancels_the_jobs(
    tiny_recipe: Path, tmp_path: Path
) -> None:
    run = Run(tiny_recipe, tmp_path, "--set", SLOW)
    until(lambda: run.pids(WORKER))
    run.signal_server(signal.SIGKILL)
    time.sleep(1)
    began = time.monotonic()
    run.process.send_signal(signal.SIGINT)
    out, _ = run.process.communicate(timeout=PATIENCE)
    assert (run.process.returncode, json.loads(out)["status"]) == (130, "cancelled"), run.said
    assert time.monotonic() - began < tied.STOP_SECONDS
    assert run.pids() == []


def test_serve_starts_its_server_again_and_the_runs_go_on(
    finished: tuple[Path, dict[str, Any]], tiny_recipe: Path, tmp_path: Path
) -> None:
    """One run of its worker, one of the command line that shares the server, and one that starts
    afterwards."""
    other = tmp_path / "other"
    other.mkdir()
    with Served(tmp_path / "served") as served:
        run = served.start(recipe=str(tiny_recipe))
        shared = Run(tiny_recipe, other, **served.reach.environment)
        until(lambda: in_process(served, WORKER) and shared.pids(WORKER))
        kill(in_process(served, SERVER), signal.SIGKILL)
        until(lambda: "starting it again (1 of" in served.said)

        assert shared.end()["status"] == "succeeded"
        assert shared.files() == shared.files(finished[0])
        until(lambda: answers(served.api))
        assert served.ended(run)["type"] == "COMPLETED"
        until(lambda: served.stages(run) == {"distill": "Completed", "rebalance": "Completed"})
        assert shared.files(served.work / ".lyceum") == shared.files(finished[0])

        again = served.start(recipe=str(tiny_recipe))
        assert served.ended(again)["type"] == "COMPLETED"
        until(lambda: served.stages(again) == {"distill": "Cached", "rebalance": "Cached"})
        assert served.stop() < tied.STOP_SECONDS
    assert served.processes() == {}


def test_serve_ends_in_one_line_when_its_server_does_not_stay_up(tmp_path: Path) -> None:
    """It is killed whenever it is there."""
    with Served(tmp_path) as served:
        deadline = time.monotonic() + PATIENCE
        while served.process.poll() is None:
            assert time.monotonic() < deadline, served.said
            for pid in in_process(served, SERVER):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.2)
        assert served.process.returncode == 1
    assert served.said.rstrip().endswith("after 5 restarts it is not started again")
    assert "Traceback" not in served.said
    assert served.processes() == {}


def in_process(served: Served, what: re.Pattern[str]) -> list[int]:
    return [pid for pid, command in served.processes().items() if what.search(command)]
