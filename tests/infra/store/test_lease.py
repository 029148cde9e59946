"""Leases: one runner at a time, dead ones are replaced, and none of it depends on clocks that
agree."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from infra.store.lease import Lease, LeaseRecord, _newest, _taken, attempts, hold, seize
from infra.store.store import Store, attempt_file
from schemas.base import Stopped
from tests.fakes.process import python, until

KEY = "ab" * 32

HOLDER = f"""
import sys
from infra.store.lease import hold
from infra.store.store import open_store
with hold(open_store(sys.argv[1]), {KEY!r}, "holder", seconds=30, poll_seconds=0.02) as lease:
    print(lease.attempt, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(store: Store) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lease until it reads a line."""
    with python("-c", HOLDER, store.uri, stdin=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == "1\n"
            yield process
        finally:
            process.kill()


def record(store: Store, generation: int) -> LeaseRecord:
    return store.read_json(attempt_file(KEY, str(generation), "lease.json"), LeaseRecord)


def elsewhere(store: Store, generation: int = 1) -> None:
    """A lease of another machine, whose processes cannot be looked up."""
    foreign = LeaseRecord(
        owner="other", nonce="0", host="elsewhere", namespace="", pid=1, renewed=4e9
    )
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
    assert len({record(store, generation).nonce for generation in (1, 2, 3)}) == 3


def test_a_second_runner_waits_until_the_lease_is_released(store, holder):
    messages: list[str] = []
    taken = threading.Event()
    waiter = threading.Thread(target=lambda: (take(store, messages, seconds=30), taken.set()))
    waiter.start()
    assert not taken.wait(0.3)
    holder.stdin.write("\n")
    holder.stdin.flush()
    assert taken.wait(60)
    waiter.join()
    assert messages == [
        f"holder (process {holder.pid} on {os.uname().nodename}) is running this stage; waiting"
        " for it"
    ]
    assert record(store, 2).owner == "me"


def test_a_killed_holder_on_this_machine_is_replaced_at_once(store, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    messages: list[str] = []
    started = time.monotonic()
    assert take(store, messages, seconds=600).attempt == "2"
    assert time.monotonic() - started < 300
    assert "is gone; taking over" in messages[-1]


def test_a_silent_holder_elsewhere_is_replaced_after_the_time_to_live_whatever_its_clock_said(
    store: Store,
) -> None:
    """Its last heartbeat lies 50 years in our future; only that it does not change counts."""
    elsewhere(store)
    started = time.monotonic()
    assert take(store, seconds=0.3).attempt == "2"
    assert time.monotonic() - started > 0.3


def test_a_heartbeat_keeps_a_lease_beyond_its_time_to_live(store, monkeypatch):
    """A process that is there is no proof of life: only the heartbeat keeps the waiter waiting
    three times as long as the time to live. The holder's clock stands still, which changes
    nothing."""
    monkeypatch.setattr(time, "time", lambda: 1.0)
    stop = threading.Event()
    with hold(store, KEY, "holder", seconds=1.0, poll_seconds=0.02):
        threading.Timer(3.0, stop.set).start()
        with pytest.raises(Stopped):
            with hold(store, KEY, "waiter", seconds=1.0, poll_seconds=0.02, stop=stop):
                pass
    assert store.children(f"work/{KEY}") == ["1"]


def test_a_holder_that_was_replaced_notices_and_leaves_the_new_lease_alone(store: Store) -> None:
    with hold(store, KEY, "slow", seconds=0.1, poll_seconds=0.02) as lease:
        elsewhere(store, generation=2)
        assert lease.lost.wait(60)
    assert record(store, 2).owner == "other"
    assert not record(store, 1).released


@pytest.mark.parametrize(("name", "content"), [("lease.json", b"{"), ("job.json", b"{}")])
def test_a_damaged_lease_and_a_half_deleted_attempt_leave_the_next_number(store, name, content):
    """Of the latter the lease is gone and job.json is not: a job submitted under that number would
    be taken for the old one."""
    store.write_bytes(attempt_file(KEY, "1", name), content)
    assert take(store).attempt == "2"


def test_of_many_racers_one_holds_the_lease_at_a_time(store: Store) -> None:
    inside = threading.Lock()

    def race(_: int) -> int:
        with hold(store, KEY, "racer", seconds=30, poll_seconds=0.01) as lease:
            assert inside.acquire(blocking=False)
            time.sleep(0.02)
            inside.release()
        return int(lease.attempt)

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(race, range(8))) == list(range(1, 9))


def test_a_listing_that_lags_behind_hides_no_holder(store, monkeypatch):
    for generation in (1, 2, 3):
        elsewhere(store, generation)
    monkeypatch.setattr(store, "children", lambda name: [])
    assert take(store, seconds=0.1).attempt == "4"


def test_a_listing_that_lags_behind_hides_no_job_that_was_submitted_again(store, monkeypatch):
    elsewhere(store, 1)
    for attempt in ("1", "1-1", "1-2"):
        store.write_bytes(attempt_file(KEY, attempt, "job.json"), b"{}")
    monkeypatch.setattr(store, "children", lambda name: [])
    assert attempts(store, KEY) == ["1-2", "1-1", "1"]


def test_whoever_cannot_create_the_next_generation_waits_before_it_tries_again(store, monkeypatch):
    tries: list[float] = []
    stop = threading.Event()

    def refused(*_: object) -> None:
        tries.append(time.monotonic())
        if len(tries) == 3:
            stop.set()

    monkeypatch.setattr(store, "create_json", refused)
    with pytest.raises(Stopped, match="waiting for another run"):
        with hold(store, KEY, "me", seconds=30, poll_seconds=0.1, stop=stop):
            pass
    assert all(later - earlier > 0.05 for earlier, later in pairwise(tries))


def test_a_holder_survives_an_outage_longer_than_the_time_to_live(store, monkeypatch, caplog):
    """The work goes on. When the store answers again the lease is renewed, or, if it was taken over
    meanwhile, lost."""

    tries = []

    def fail(*_: object) -> None:
        tries.append(time.monotonic())
        raise OSError("503")

    def outage(taken: bool) -> Lease:
        tries.clear()
        with hold(store, KEY, "me", seconds=0.15, poll_seconds=0.02) as lease:
            with monkeypatch.context() as patched:
                patched.setattr(store, "write_json", fail)
                until(lambda: len(tries) > 1 and tries[-1] - tries[0] > 0.3)
            if taken:
                elsewhere(store, lease.generation + 1)
                assert lease.lost.wait(60)
            else:
                until(lambda: record(store, lease.generation).beats > 1)
                assert not lease.lost.is_set()
        return lease

    outage(taken=False)
    assert record(store, 1).released
    assert [line for line in caplog.messages if "cannot be renewed" in line] == [
        f"the lease of {KEY} cannot be renewed; the work goes on and it is tried again: 503"
    ]
    outage(taken=True)
    assert not record(store, 2).released


def test_no_question_of_a_holder_holds_its_heart_up(store: Store, monkeypatch) -> None:
    """The store goes away between a heartbeat and the look whether somebody has taken over, which
    was repeated for as long as a store is asked, with pauses of up to 30 s: a lease ran out after
    an outage that was shorter than its time to live."""
    read, over = store.read_bytes, threading.Event()

    def away(name: str, seconds: float | None = None) -> bytes | None:
        if name != attempt_file(KEY, "2", "lease.json"):
            return read(name)
        if seconds is None:
            over.wait(60)
        raise ConnectionError("503")

    with hold(store, KEY, "me", seconds=0.3, poll_seconds=0.02):
        monkeypatch.setattr(store, "read_bytes", away)
        try:
            until(lambda: record(store, 1).beats > 3, seconds=20)
        finally:
            over.set()


def test_time_in_which_the_store_did_not_answer_is_not_counted_against_the_holder(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The holder could not renew either: it has the whole time to live again once the store
    answers."""
    elsewhere(store)
    read = store.read_bytes
    answered: list[float] = []

    def slow_once(name: str, seconds: float | None = None) -> bytes | None:
        if len(answered) == 2:
            time.sleep(0.5)
        answered.append(time.monotonic())
        return read(name)

    monkeypatch.setattr(store, "read_bytes", slow_once)
    assert take(store, seconds=0.3).attempt == "2"
    assert time.monotonic() - answered[2] > 0.3


def test_generations_begin_anew_for_whoever_waited_as_for_everybody(store, monkeypatch):
    """We wait for garbage collection, which removes all that belongs to the key and gives the lease
    back; somebody else takes generation 1. We wait for that, and do not take 3 beside it."""
    elsewhere(store, 1)
    with seize(store, KEY, 1, "gc", seconds=30) as mine:
        assert mine()
        waited = _newest(store, KEY)
        store.remove(attempt_file(KEY, "1", "lease.json"))
    assert waited[0] == 2
    assert _newest(store, KEY, known=2) == (0, None)
    assert take(store).attempt == "1"
    late = Lease(KEY, 3, waited[1] or pytest.fail("gc held it"))
    assert not _taken(store, late), "its look was before the removal"
    assert store.children(f"work/{KEY}") == ["1"]


def test_a_seized_lease_keeps_others_out_and_leaves_no_trace(store: Store) -> None:
    stop = threading.Event()
    stop.set()
    with seize(store, KEY, 0, "gc", seconds=30) as mine:
        assert mine()
        with seize(store, KEY, 0, "another gc", seconds=30) as theirs:
            assert not theirs()
        with (
            pytest.raises(Stopped, match="gc"),
            hold(store, KEY, "me", seconds=30, poll_seconds=0.02, stop=stop),
        ):
            pass
    assert take(store).attempt == "1"


def test_a_seized_lease_that_was_taken_over_is_not_ours_and_stays(store: Store) -> None:
    """gc stood still for longer than its lease lives: somebody has taken over; or another gc has
    removed all that belongs to the key, and generations have begun anew."""
    elsewhere(store, 1)
    with seize(store, KEY, 1, "gc", seconds=30) as mine:
        assert mine()
        elsewhere(store, 3)
        assert not mine()
        for generation in (1, 2, 3):
            store.remove(attempt_file(KEY, str(generation), "lease.json"))
        assert not mine()
        elsewhere(store, 1)
        elsewhere(store, 2)
        assert not mine()
    assert record(store, 2).host == "elsewhere"


def test_the_lease_is_released_when_the_work_fails(store: Store) -> None:
    with pytest.raises(RuntimeError, match="boom"):
        with hold(store, KEY, "me", seconds=30, poll_seconds=0.02):
            raise RuntimeError("boom")
    assert record(store, 1).released
