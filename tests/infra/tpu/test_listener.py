"""How long the hosts of a machine have been silent, by looks that the store answered."""

import time
from typing import Any

import pytest

from infra.backend import JobHandle
from infra.store.remote import host_status
from infra.tpu.listener import Listener
from schemas.job import JobStatus


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
