"""A stage that is taken from the cache leaves no machine behind: one whose flow died while its job
finished is deleted, by the next run."""

import threading
import time
from pathlib import Path

from infra.context import context
from infra.store.lease import hold
from infra.store.store import attempt_file
from tasks.running.backends import close_backends
from tasks.running.execution import adopt
from tasks.running.watch import Watch
from tests.infra.store.test_store import draft
from tests.infra.tpu.workshop import KEY, Workshop, until


def released(shop: Workshop, **settings: object) -> tuple[list[str], list[str], float]:
    """What a run that takes the stage from the cache says meanwhile, what it says at its end, and
    how long that took."""
    backend = shop.backend(lease_seconds=0.6, poll_seconds=0.05, **settings)
    said, began = [], time.monotonic()
    backend.release(shop.store, KEY, said.append)
    assert time.monotonic() - began < 100
    left = backend.close()
    return said, left, time.monotonic() - began


def test_the_machine_of_a_dead_flow_is_deleted_and_that_is_said_once(shop: Workshop) -> None:
    handle = shop.orphan()
    said, left, _ = released(shop)
    assert (len(said), left) == (1, [])
    assert "its deletion is asked for" in said[0]
    assert shop.tpu.leaked() == []
    assert (shop.record(handle).state, shop.record(handle).reason) == (
        "deleted",
        "no run followed it",
    )
    asked = sum(shop.tpu.requests().values())
    assert released(shop)[:2] == ([], [])
    assert sum(shop.tpu.requests().values()) == asked, (
        "what is on record as deleted is not asked for again"
    )


def test_a_machine_that_deleted_itself_needs_no_word(shop: Workshop) -> None:
    handle = shop.orphan()
    shop.tpu.strike("vanish", handle.key[:24])
    until(lambda: shop.tpu.leaked() == [])
    assert released(shop)[:2] == ([], [])
    assert shop.record(handle).state == "deleted"


def test_what_a_live_run_follows_is_left_alone(shop: Workshop) -> None:
    shop.orphan()
    with hold(shop.store, KEY, "a run", seconds=0.6, poll_seconds=0.05, stop=threading.Event()):
        assert released(shop)[:2] == ([], [])
        assert shop.tpu.resource(KEY[:24]).state == "ACTIVE"
    assert len(released(shop)[0]) == 1


def test_an_api_that_does_not_answer_costs_seconds_and_one_line(shop, monkeypatch):
    shop.orphan()
    shop.tpu.faults.add("status", method="GetQueuedResource", code="UNAVAILABLE")
    with monkeypatch.context() as patch:
        patch.setattr("infra.tpu.api.CALL_SECONDS", 0.3)
        said, left, seconds = released(shop)
    assert (len(said), left) == (1, [])
    assert "a machine of an earlier run may still be there" in said[0]
    assert f"`lyceum gc --target v5e-8 --store {shop.store.uri}`" in said[0]
    assert seconds < 150  # a deletion is followed for 300
    shop.tpu.faults.clear()
    assert len(released(shop)[0]) == 1


def test_a_deletion_that_hangs_is_not_waited_for(shop, monkeypatch):
    handle = shop.orphan()
    monkeypatch.setattr("infra.tpu.reaper.RELEASE_SECONDS", 0.5)
    shop.tpu.faults.add("stuck", state="DELETING")
    said, left, seconds = released(shop)
    assert (len(said), left) == (1, [])
    assert seconds < 150  # a deletion is followed for 300
    assert shop.record(handle).state != "deleted", "the next run looks again"
    shop.tpu.faults.clear()
    shop.tpu.wait(KEY[:24], "GONE")
    assert released(shop)[:2] == ([], [])
    assert shop.record(handle).state == "deleted"


def committed(shop: Workshop, tmp_path: Path) -> None:
    """The artifact of the orphan's stage is there."""
    (tmp_path / "out").mkdir()
    shop.store.commit(draft(key=KEY), tmp_path / "out")


def test_a_stage_that_is_taken_from_the_cache_deletes_it(shop, tmp_path, monkeypatch):
    shop.orphan()
    committed(shop, tmp_path)
    monkeypatch.setattr(context(), "backends", {"v5e-8": shop.backend(lease_seconds=0.6)})
    said: list[str] = []
    assert adopt(shop.spec(), shop.store, Watch(), said.append) is not None
    assert close_backends() == []
    assert ["its deletion is asked for" in line for line in said] == [True]
    assert shop.tpu.leaked() == []


def test_gc_says_that_the_stage_is_done(shop, tmp_path, lyceum):
    shop.orphan()
    shop.store.create_json(attempt_file(KEY, "1", "job.json"), shop.spec())
    committed(shop, tmp_path)
    gc = "gc", "--target", "v5e-8", "--store", shop.store.uri
    assert "its stage is done, and no run follows it" in " ".join(lyceum(*gc).out.split())
    lyceum(*gc, "--delete")
    assert shop.tpu.leaked() == []
