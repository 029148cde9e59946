"""Whether somebody alive holds a lease, as garbage collection and a flow that stops find it."""

import threading
import time

import pytest

from infra.process_identity import this_process
from infra.store.lease import LeaseRecord, hold, taken_over, unheld
from infra.store.store import Store, attempt_file

KEY = "ab" * 32


def test_leases_are_watched_together_and_those_nobody_renews_are_unheld(store: Store) -> None:
    """Free, released, of a dead process and silent ones, in one time to live; not the one whose
    heart beats, nor one that is taken over."""
    free, released, dead, silent, beating = (digit * 64 for digit in "01234")
    with hold(store, released, "me", seconds=30, poll_seconds=0.02):
        pass
    process = {**this_process().model_dump(), "pid": 2**22 + 1}
    gone = LeaseRecord(**process, owner="dead", nonce="0", renewed=0.0)
    away = gone.model_copy(update={"host": "elsewhere"})
    store.create_json(attempt_file(dead, "1", "lease.json"), gone)
    store.create_json(attempt_file(silent, "7", "lease.json"), away)
    messages: list[str] = []
    with hold(store, beating, "me", seconds=2.0, poll_seconds=0.02):
        began = time.monotonic()
        known = {free: 0, released: 1, dead: 1, silent: 7, beating: 1}
        found = unheld(store, known, seconds=2.0, poll_seconds=0.05, waiting=messages.append)
        took = time.monotonic() - began
    assert found == {free: 0, released: 1, dead: 1, silent: 7}
    assert took > 2.0
    assert messages == ["2 leases may be held; watching for up to 2 s whether they are renewed"]


@pytest.mark.parametrize("where", ["within a look", "between two looks"])
def test_a_holder_that_the_store_did_not_answer_either_is_not_unheld(store, monkeypatch, where):
    """The store is away for a minute while leases are watched, or who watches stands still for that
    time, between two looks; the holder's next heartbeat comes a second after it is back. To remove
    what it works on would delete a TPU at work."""
    name, clock, real = attempt_file(KEY, "1", "lease.json"), [0.0], store.read_bytes
    process = this_process().model_copy(update={"host": "elsewhere"})
    record = LeaseRecord(**process.model_dump(), owner="alive", nonce="0", renewed=0.0)
    store.create_json(name, record)

    def passes(seconds: float) -> None:
        stands_still = where == "between two looks" and not clock[0]
        clock[0] += 60.0 if stands_still else seconds
        if clock[0] > 61.0:
            store.write_json(name, record.model_copy(update={"beats": 1}))

    def read(wanted: str) -> bytes | None:
        if wanted == name and 0 < clock[0] < 60.0:
            passes(60.0 - clock[0])
        return real(wanted)

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", passes)
    monkeypatch.setattr(store, "read_bytes", read)
    assert unheld(store, {KEY: 1}, seconds=30.0, poll_seconds=0.5) == {}


def test_a_lease_is_taken_over_by_whoever_lives_and_by_nobody_when_the_store_is_silent(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(generation: int, **more: object) -> None:
        found = LeaseRecord(**this_process().model_dump(), owner="b", nonce="0", renewed=0.0)
        name = attempt_file(KEY, str(generation), "lease.json")
        store.write_json(name, found.model_copy(update=more))

    with hold(store, KEY, "slow", seconds=30, poll_seconds=0.02) as lease:
        assert not taken_over(store, lease, 60)
        other(2, host="elsewhere")
        assert taken_over(store, lease, 60)
        other(2, released=True)
        assert not taken_over(store, lease, 60), "it has ended"
        other(3, pid=2**22 + 1)
        assert not taken_over(store, lease, 60), "its process is gone"
        other(4)
        answers = threading.Event()
        with monkeypatch.context() as silent:
            silent.setattr(store, "read_bytes", lambda name: answers.wait(60) and None)
            assert not taken_over(store, lease, 0.05)
            answers.set()
