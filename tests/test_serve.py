"""`lyceum serve` as people use it: a run started through Prefect's API runs, and Ctrl-C leaves no process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.prefect_api import answers, free_port

ROOT = Path(__file__).resolve().parent.parent


def ask_api(api: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request to Prefect's REST API, as its UI makes them."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{api}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as response:
        value = json.load(response)
    assert isinstance(value, dict)
    return value


def until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.2)


@pytest.mark.slow
def test_a_run_started_from_outside_runs_and_ctrl_c_stops_everything(tmp_path: Path, tiny_recipe: Path) -> None:
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"} | {
        "PREFECT_HOME": str(tmp_path / "prefect")
    }
    command = [sys.executable, "-m", "flows.cli", "serve", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    try:
        assert "Starting" in process.stderr.readline()
        assert f"http://127.0.0.1:{port} " in process.stderr.readline()
        until(lambda: deployment(api) is not None, seconds=120)
        parameters = {"recipe": str(tiny_recipe), "store": str(tmp_path / "store")}
        run = ask_api(api, f"/deployments/{deployment(api)}/create_flow_run", {"parameters": parameters, "state": {"type": "SCHEDULED"}})
        until(lambda: ask_api(api, f"/flow_runs/{run['id']}")["state_type"] == "COMPLETED", seconds=120)
        assert len(list((tmp_path / "store").glob("artifacts/*/*/manifest.json"))) == 2
    finally:
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(timeout=60) == 0
    assert not answers(api)


def deployment(api: str) -> str | None:
    try:
        return str(ask_api(api, "/deployments/name/post-train/local")["id"])
    except OSError:
        return None


def test_a_port_that_something_else_listens_on_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    assert f"--port {port} cannot be used" in capsys.readouterr().err
    assert main(["serve", "--port", "99999"]) == 2
    assert "is not a TCP port" in capsys.readouterr().err
