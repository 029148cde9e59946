"""A judge behind an endpoint that is down for 30 real seconds: no ruling changes."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from infra.process import ROOT
from tests.fakes.chat_server import ChatServer, Fault, Request, echo
from tests.tasks.judging.test_endpoint_judge import (
    expected,
    free_port,
    judge,  # noqa: F401
    questions,
    rating,
    texts,
    until,
)


def test_a_real_outage_of_30_seconds_changes_no_ruling(judge: Any) -> None:
    """With the settings as they are: 503 to everything."""
    asked, began = questions(200), time.monotonic()
    ends: list[float] = []

    def fault(request: Request) -> Fault | None:
        if request.number == 80:
            ends.append(time.monotonic() + 30)
        return Fault("status", 503) if ends and time.monotonic() < ends[0] else None

    with ChatServer(fault, reply=rating, latency=0.2) as server:
        one = judge(server.url)
        assert texts(one.ask(asked)) == expected(asked)
    assert 30 < time.monotonic() - began < 50
    assert one.values()["abstained"] == 0


def test_a_real_server_that_is_killed_and_back_after_30_seconds_changes_no_ruling(judge):
    port, asked = free_port(), questions(200)
    one = judge(f"http://127.0.0.1:{port}/v1")

    def server() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.fakes.chat_server", f"--port={port}"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    running = server()
    try:
        with ThreadPoolExecutor(1) as threads:
            rulings = threads.submit(one.ask, asked)
            until(lambda: one.values()["requests"] >= 150)
            running.kill()
            time.sleep(30)
            running = server()
            assert texts(rulings.result(60)) == [
                echo({"messages": [{"role": "user", "content": one.text}]}) for one in asked
            ]
    finally:
        running.kill()
        running.wait()
    assert one.values()["abstained"] == 0
    assert one.values()["waited_seconds"] >= 29
