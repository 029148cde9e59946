"""`lyceum serve` as a process of its own, with a Prefect home of its own, and its API as Prefect's
UI speaks to it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from flows.runs.record import read_runs
from flows.server.key import Api, as_header, read
from flows.server.prefect_api import answers, free_port
from infra.store.store import Store, open_store
from schemas.reports import RunRecord
from tests.fakes import process
from tests.fakes.process import ROOT
from tests.processes import marked

PATIENCE = 900.0
"""Seconds to wait for what takes seconds on two idle cores: the servers of other tests may be
starting."""

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class Served:
    """A context manager; inside, runs can be started. `root` holds everything: Prefect's home, the
    working directory, the store."""

    def __init__(self, root: Path, *arguments: str) -> None:
        self.arguments = arguments
        self.root, self.work, self.log = root, root / "work", root / "serve.log"
        self.port = free_port()
        self.ui, self.api = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port}/api"
        self.mark = f"LYCEUM_TEST_MARK={root}"

    @property
    def store(self) -> Store:
        """Where runs keep what they make when nobody says otherwise."""
        return open_store(self.work / ".lyceum", write=False)

    @property
    def environment(self) -> dict[str, str]:
        """With a mark, by which every process of ours can be found whoever its parent is."""
        name, _, value = self.mark.partition("=")
        return environment_of(self.root, "LYCEUM_STORE") | {name: value}

    def command(self) -> list[str]:
        serve = [sys.executable, "-m", "flows.cli.main", "serve", *self.arguments]
        return [*serve, "--port", str(self.port)]

    def __enter__(self) -> Self:
        self.work.mkdir(parents=True, exist_ok=True)
        where = {"cwd": self.work, "env": self.environment, "start_new_session": True}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(self.command(), stderr=log, **where)
        until(lambda: "Ctrl-C" in self.said or self.process.poll() is not None)
        assert self.process.poll() is None, self.said
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        if kind is not None:
            sys.stdout.write(f"lyceum serve said:\n{self.said}")  # pytest shows it
        if kind is not None and answers(self.api):
            for run in self.ask("/flow_runs/filter", {}):
                sys.stdout.write(f"{run['name']} {run['state']}\n{self.logs(run['id'])}\n")
        if self.process.poll() is None:
            self.stop()

    @property
    def said(self) -> str:
        """What it has written to standard error."""
        return self.log.read_text(encoding="utf-8")

    @property
    def reach(self) -> Api:
        """Its URL and key, from where it keeps them."""
        api = read(self.root / "prefect")
        assert api is not None, "the file is there while it runs"
        return api

    @property
    def link(self) -> str:
        """The link that it printed, which lets one browser in."""
        return next(word for word in self.said.split() if "/lyceum/enter#" in word)

    def stop(self) -> float:
        """Ctrl-C; returns the seconds it took until all had ended."""
        began = time.monotonic()
        os.killpg(self.process.pid, signal.SIGINT)
        assert self.process.wait(timeout=PATIENCE) == 0, self.said
        return time.monotonic() - began

    def processes(self) -> dict[int, str]:
        """Every process that carries our mark, and its command line."""
        return marked(self.mark)

    def ask(self, path: str, body: dict[str, Any] | None = None, method: str | None = None) -> Any:
        """One request to Prefect's REST API, again when the server is busy, as Prefect's own
        clients do."""
        data = None if body is None else json.dumps(body).encode()
        key = f"Basic {as_header(self.reach.key or '')}"
        headers = {"Content-Type": "application/json", "Authorization": key}
        request = urllib.request.Request(f"{self.api}{path}", data, headers, method=method)
        while True:
            try:
                with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                    return json.loads(response.read() or "null")
            except urllib.error.HTTPError as error:
                if error.code != 503:
                    raise
                time.sleep(1)

    def start(self, deployment: str = "post-train", **parameters: Any) -> str:
        """Start a run of a deployment; returns the flow run's id."""
        found = self.ask(f"/deployments/name/{deployment}/{deployment}")
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return str(self.ask(f"/deployments/{found['id']}/create_flow_run", body)["id"])

    def retry(self, run: str) -> None:
        """What the UI's Retry does."""
        state = {"type": "SCHEDULED", "name": "AwaitingRetry"}
        self.ask(f"/flow_runs/{run}/set_state", {"state": state, "force": True})

    def cancel(self, run: str) -> None:
        """What the UI's Cancel does."""
        state = {"type": "CANCELLING", "name": "Cancelling"}
        self.ask(f"/flow_runs/{run}/set_state", {"state": state})

    def state(self, run: str) -> dict[str, Any]:
        state = self.ask(f"/flow_runs/{run}")["state"]
        assert isinstance(state, dict)
        return state

    def ended(self, run: str) -> dict[str, Any]:
        """The state in which a run ends."""
        until(lambda: self.state(run)["type"] in FINAL)
        return self.state(run)

    def stages(self, run: str) -> dict[str, str]:
        """The newest state of every stage of a run, by name, e.g. `Cached`."""
        body = {"flow_runs": {"id": {"any_": [run]}}, "sort": "EXPECTED_START_TIME_ASC"}
        return {one["name"]: one["state_name"] for one in self.ask("/task_runs/filter", body)}

    def logs(self, run: str) -> str:
        body = {"logs": {"flow_run_id": {"any_": [run]}}, "sort": "TIMESTAMP_ASC", "limit": 200}
        return "\n".join(line["message"] for line in self.ask("/logs/filter", body))

    def artifacts(self, run: str) -> dict[str, Any]:
        """Prefect artifacts of a run: key -> data."""
        body = {"artifacts": {"flow_run_id": {"any_": [run]}}, "sort": "CREATED_DESC"}
        found = self.ask("/artifacts/filter", body)
        return {one["key"]: one["data"] for one in reversed(found)}

    def records(self) -> list[RunRecord]:
        """The store's run records, the oldest first."""
        return sorted(read_runs(self.store), key=lambda one: one.started)


class Run:
    """`lyceum run` of a recipe as a process tree of its own, which can be found by a mark."""

    def __init__(self, recipe: Path, root: Path, *arguments: str, **environment: str) -> None:
        self.store_path, self.log = root / "store", root / "run.log"
        self._mark = f"LYCEUM_TEST_MARK={root}"
        command = [sys.executable, "-m", "flows.cli.main", "run", str(recipe), "--json"]
        command += ["--store", str(self.store_path), *arguments]
        where = environment_of(root) | {"LYCEUM_TEST_MARK": str(root), **environment}
        self._began = time.monotonic()
        with self.log.open("w") as log:
            out = {"stdout": subprocess.PIPE, "stderr": log, "text": True}
            self.process = subprocess.Popen(command, cwd=ROOT, env=where, **out)

    @property
    def said(self) -> str:
        """What it has written to standard error."""
        return self.log.read_text(encoding="utf-8")

    def pids(self, what: re.Pattern[str] = re.compile("")) -> list[int]:
        """Its processes with such a command line."""
        return [pid for pid, command in marked(self._mark).items() if what.search(command)]

    def end(self, code: int = 0) -> tuple[dict[str, Any], float]:
        """What it prints in the end, and the seconds that it took."""
        out, _ = self.process.communicate(timeout=PATIENCE)
        assert self.process.returncode == code, self.said
        assert "Traceback" not in self.said
        assert self.pids() == []
        return json.loads(out or "{}"), time.monotonic() - self._began

    def files(self, store: Path | None = None) -> dict[str, Any]:
        """What its stages, or those in another store, have made."""
        made = open_store(store or self.store_path, write=False).artifacts()
        return {one.kind: one.files for one in made}


def environment_of(root: Path, *without: str) -> dict[str, str]:
    """Ours, with a Prefect home below `root` and nothing of another API."""
    left_out = ("PREFECT_API_URL", *without)
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return {**kept, "PREFECT_HOME": str(root / "prefect")}


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until something holds."""
    process.until(condition, seconds=seconds)
