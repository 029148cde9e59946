"""Leases: one runner at a time, dead ones are replaced, and none of it depends on clocks that agree."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.lease import Lease, LeaseRecord, hold
from infra.store import Store, attempt_file, open_store
from schemas.base import InputError, Stopped

KEY = "ab" * 32
ROOT = Path(__file__).resolve().parent.parent

HOLDER = """
import sys, time
from infra.lease import hold
from infra.store import open_store
with hold(open_store(sys.argv[1]), sys.argv[2], "holder", seconds=30, poll_seconds=0.02) as lease:
    print(lease.attempt, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(tmp_path / "store")


@pytest.fixture
def holder(store: Store) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lease until it reads a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, store.uri, KEY], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    yield process
    process.kill()
    process.wait()


def record(store: Store, generation: int) -> LeaseRecord:
    found = store.read_json(attempt_file(KEY, str(generation), "lease.json"), LeaseRecord)
    assert found is not None
    return found


def elsewhere(store: Store, generation: int = 1) -> None:
    """A lease of another machine, whose processes cannot be looked up."""
    foreign = LeaseRecord(owner="other", host="elsewhere", namespace="", pid=1, renewed=4e9)
    store.create_json(attempt_file(KEY, str(generation), "lease.json"), foreign)


def take(store: Store, messages: list[str] | None = None, seconds: float = 0.3) -> Lease:
    heard = messages if messages is not None else []
    with hold(store, KEY, "me", seconds=seconds, poll_seconds=0.02, waiting=heard.append) as lease:
        return lease


def test_a_free_lease_is_taken_at_once_and_each_holder_gets_its_own_attempt(store: Store) -> None:
    messages: list[str] = []
    assert [take(store, messages).attempt for _ in range(3)] == ["1", "2", "3"]
    assert messages == []
    assert record(store, 3).released


def test_a_second_runner_waits_until_the_lease_is_released(store: Store, holder: subprocess.Popen[str]) -> None:
    messages: list[str] = []
    taken = threading.Event()
    waiter = threading.Thread(target=lambda: (take(store, messages, seconds=30), taken.set()))
    waiter.start()
    assert not taken.wait(0.3)
    assert holder.stdin is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert taken.wait(5)
    waiter.join()
    assert messages == [f"holder (process {holder.pid} on {os.uname().nodename}) is running this stage; waiting for it"]
    assert record(store, 2).owner == "me"


def test_a_killed_holder_on_this_machine_is_replaced_at_once(store: Store, holder: subprocess.Popen[str]) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    messages: list[str] = []
    started = time.monotonic()
    assert take(store, messages, seconds=30).attempt == "2"
    assert time.monotonic() - started < 5
    assert "is gone; taking over" in messages[-1]


def test_a_silent_holder_elsewhere_is_replaced_after_the_time_to_live_whatever_its_clock_said(store: Store) -> None:
    """Its last heartbeat lies 50 years in our future; only that it does not change counts."""
    elsewhere(store)
    started = time.monotonic()
    assert take(store, seconds=0.3).attempt == "2"
    assert 0.3 < time.monotonic() - started < 3


def test_a_heartbeat_keeps_a_lease_beyond_its_time_to_live(store: Store) -> None:
    """A process that is there is no proof of life: only the heartbeat keeps the waiter waiting three times as long as the time to live."""
    with hold(store, KEY, "holder", seconds=0.3, poll_seconds=0.02):
        stop, stopped = threading.Event(), []

        def wait() -> None:
            with pytest.raises(Stopped):
                with hold(store, KEY, "waiter", seconds=0.3, poll_seconds=0.02, stop=stop):
                    pass
            stopped.append(True)

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(1.0)
        stop.set()
        waiter.join()
    assert stopped
    assert store.children(f"work/{KEY}") == ["1"]


def test_a_holder_that_was_replaced_notices_and_leaves_the_new_lease_alone(store: Store) -> None:
    with hold(store, KEY, "slow", seconds=0.1, poll_seconds=0.02) as lease:
        elsewhere(store, generation=2)
        assert lease.lost.wait(5)
    assert record(store, 2).owner == "other"
    assert not record(store, 1).released


def test_a_damaged_lease_counts_as_a_dead_holder(store: Store) -> None:
    store.write_text(attempt_file(KEY, "1", "lease.json"), "{")
    assert take(store).attempt == "2"


def test_of_many_racers_one_holds_the_lease_at_a_time(store: Store) -> None:
    inside, most, attempts = 0, 0, []
    lock = threading.Lock()

    def race() -> None:
        nonlocal inside, most
        with hold(store, KEY, "racer", seconds=30, poll_seconds=0.01) as lease:
            with lock:
                inside, attempts_now = inside + 1, lease.attempt
                most = max(most, inside)
                attempts.append(attempts_now)
            time.sleep(0.02)
            with lock:
                inside -= 1

    racers = [threading.Thread(target=race) for _ in range(8)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert most == 1
    assert sorted(map(int, attempts)) == list(range(1, 9))


def test_a_store_that_fails_for_a_moment_does_not_end_the_work(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise InputError("no space is left on the disk")

    with hold(store, KEY, "me", seconds=0.1, poll_seconds=0.02) as lease:
        with monkeypatch.context() as patched:
            patched.setattr(store, "write_json", fail)
            time.sleep(0.2)
        assert not lease.lost.is_set()
    assert record(store, 1).released


def test_the_lease_is_released_when_the_work_fails(store: Store) -> None:
    with pytest.raises(RuntimeError, match="boom"):
        with hold(store, KEY, "me", seconds=30, poll_seconds=0.02):
            raise RuntimeError("boom")
    assert record(store, 1).released
