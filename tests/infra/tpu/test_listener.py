"""What the hosts of a machine have said, and how long they have been silent, by looks that the
store answered."""

import threading
import time
from typing import Any
from unittest.mock import Mock

import pytest

from infra.backend import JobHandle
from infra.store.remote import host_status
from infra.tpu.listener import Listener
from schemas.job import JobStatus
from tests.fakes.process import until


class Told:
    """A store that knows the statuses of hosts, and nothing else."""

    def __init__(self) -> None:
        self.statuses: dict[str, JobStatus] = {}

    def read_json(self, name: str, _: Any) -> JobStatus | None:
        return self.statuses.get(name)

    def read_bytes(self, _: str) -> None:
        return None


def test_hosts_are_not_silent_while_the_store_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: of a slice of 64 hosts, minutes without the store counted, since a
    host's turn comes seldom, and the first that had not reported again was taken for dead."""
    clock, store = [1000.0], Told()
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    listener = Listener(store, JobHandle("", "ab", "1"), 64, 5.0, lambda: True, lambda: None)  # type: ignore[arg-type]

    def silent(seconds: float, speaking: bool) -> float:
        for _ in range(round(seconds)):
            clock[0] += 1.0
            for host in range(64) if speaking else ():
                said = JobStatus(state="running", heartbeat=clock[0])
                store.statuses[host_status("ab", "1", host)] = said
            listener._hear(False)
        return max(host.silent for host in listener.hosts())

    assert silent(40, speaking=True) == 0
    clock[0] += 200.0  # the store is away
    assert silent(20, speaking=False) < 21
    assert silent(40, speaking=False) > 40
    assert silent(40, speaking=True) == 0


def test_a_look_is_one_that_began_after_it_was_asked_for() -> None:
    """A flow stood still within a look while its machine worked and went: what that look had found
    before counted as the last word, and another machine was asked for."""
    reading, goes_on = threading.Event(), threading.Event()

    class Slow(Told):
        def read_json(self, name: str, model: Any) -> JobStatus | None:
            found = super().read_json(name, model)
            reading.set()
            assert goes_on.wait(60)
            return found

    store, answers = Slow(), list[bool]()
    listener = Listener(store, JobHandle("", "ab", "1"), 1, 60.0, lambda: True, lambda: None)  # type: ignore[arg-type]
    listener.start()
    assert reading.wait(60)
    store.statuses[host_status("ab", "1", 0)] = JobStatus(state="succeeded", heartbeat=1.0)
    asks = threading.Thread(target=lambda: answers.append(listener.look(60)))
    asks.start()
    until(lambda: listener._asked)
    goes_on.set()
    asks.join()
    said = listener.hosts()[0].status
    listener.stop()
    assert answers == [True]
    assert said.state == "succeeded"


def test_a_look_that_the_store_does_not_answer_says_so() -> None:
    store = Told()
    store.read_json = Mock(side_effect=ConnectionError("it does not answer"))  # type: ignore[method-assign]
    listener = Listener(store, JobHandle("", "ab", "1"), 1, 60.0, lambda: True, lambda: None)  # type: ignore[arg-type]
    listener.start()
    assert not listener.look(0.1)
    listener.stop()
