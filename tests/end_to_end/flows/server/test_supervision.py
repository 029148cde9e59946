"""A server is started again when it is killed, when it hangs, and not for ever."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from flows.server import process_tree, supervision
from flows.server.prefect_api import answers, free_port
from flows.server.supervision import supervised
from schemas.base import StageFailed
from tests.fakes.process import until

SERVER = """
import http.server, sys
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Healthy).serve_forever()
"""


class Lab:
    """A small server with the health of Prefect's, kept up; what was said, and every process that
    was started."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.program, self.said, self.gone = SERVER, list[str](), list[str]()
        self.started: list[subprocess.Popen[bytes]] = []

    def start(self, stop: threading.Event) -> "subprocess.Popen[bytes]":
        process = subprocess.Popen(
            [sys.executable, "-c", self.program, str(self.port)],
            start_new_session=True,
            stderr=subprocess.DEVNULL,
        )
        self.started.append(process)
        while not answers(self.url):
            if process.poll() is not None:
                raise StageFailed(
                    f"the server did not start (exit code {process.poll()}). Its log ends:\nlong"
                )
            time.sleep(0.02)
        return process

    @contextmanager
    def supervised(self) -> Iterator[None]:
        told = self.said.append, self.gone.append
        with supervised(self.start, lambda: answers(self.url), threading.Event(), *told):
            yield


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(supervision, "LOOK_SECONDS", 0.02)
    return Lab()


def test_a_killed_server_is_started_again_on_its_port_each_time(lab: Lab) -> None:
    with lab.supervised():
        for number in (1, 2):
            os.kill(lab.started[-1].pid, signal.SIGKILL)
            until(lambda number=number: len(lab.started) == number + 1 and answers(lab.url))
        said = [one.partition("; ") for one in lab.said]
        # the second kill may come before the supervisor has seen that the server answers
        assert said[0][0] == "the Prefect server was killed by signal 9"
        again = [f"starting it again ({number} of at most 5 times)" for number in (1, 2)]
        assert [one[2] for one in said] == again
    assert not answers(lab.url)
    assert all(process.poll() is not None for process in lab.started)


def test_a_hanging_server_is_killed_and_started_again(lab, monkeypatch):
    monkeypatch.setattr(supervision, "HUNG_SECONDS", 3.0)
    with lab.supervised():
        os.kill(lab.started[0].pid, signal.SIGSTOP)
        until(lambda: len(lab.started) == 2 and answers(lab.url))
    assert lab.said == [
        "the Prefect server has not answered for 3 s; starting it again (1 of at most 5 times)"
    ]


def test_a_server_that_hangs_when_it_is_needed_no_more_is_not_waited_for(lab: Lab) -> None:
    with lab.supervised():
        os.kill(lab.started[0].pid, signal.SIGSTOP)
        began = time.monotonic()
    assert time.monotonic() - began < process_tree.STOP_SECONDS / 2
    assert lab.started[0].poll() is not None


def test_a_server_that_does_not_stay_up_is_given_up_after_five_tries(lab, monkeypatch):
    monkeypatch.setattr(supervision, "RESTART_SECONDS", 0.01)
    with lab.supervised():
        lab.program = "raise SystemExit(3)"
        os.kill(lab.started[0].pid, signal.SIGKILL)
        until(lambda: lab.gone)
    assert len(lab.started) == 1 + supervision.MOST_RESTARTS == len(lab.said) + 1
    failed = "the server did not start (exit code 3)"
    assert lab.said[1] == f"{failed}; starting it again (2 of at most 5 times)"
    assert lab.gone == [f"{failed}; after 5 restarts it is not started again"]


def test_a_server_that_is_killed_while_it_starts_is_started_once_more(lab: Lab) -> None:
    lab.program = "raise SystemExit(3)"
    with pytest.raises(StageFailed), lab.supervised():
        pass
    assert len(lab.started) == 2
