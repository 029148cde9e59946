"""What is left over of TPUs is found in every zone and removed, and nothing that a flow holds, or
that is not ours, is touched."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from flows.cli import gc
from infra.backend import Leftover
from infra.context import context
from infra.settings import Settings, TpuSettings
from infra.store.lease import hold
from infra.tpu.api import TpuApi
from infra.tpu.backend import CloudTpuBackend
from infra.tpu.types import TPU_TYPES
from tests.infra.tpu.workshop import KEY, Workshop

OTHER, THIRD = "cd" * 32, "ef" * 32


@contextmanager
def held(shop: Workshop, key: str) -> Iterator[None]:
    """Another flow holds the lease of a stage, and lives."""
    with hold(shop.store, key, "a run", seconds=0.6, poll_seconds=0.05, stop=threading.Event()):
        yield


def reaper(shop: Workshop) -> CloudTpuBackend:
    return shop.backend(lease_seconds=0.6, poll_seconds=0.05)


def by_key(found: list[Leftover]) -> dict[str, Leftover]:
    return {one.key: one for one in found}


def test_orphans_of_all_zones_are_shown_then_removed_and_what_a_flow_holds_is_left_alone(shop):
    for key, zone in ((KEY, "us-central1-a"), (OTHER, "us-west4-a"), (THIRD, "us-south1-a")):
        shop.orphan(key, zone=zone)
    with held(shop, OTHER):
        found = by_key(reaper(shop).reap(shop.store, delete=False))
        assert set(found) == {KEY, OTHER, THIRD}
        mine = found[KEY]
        assert (mine.attempt, mine.state) == ("1", "ACTIVE READY")
        assert (mine.removable, mine.removed) == (True, False)
        assert "lyceum-test/locations/us-central1-a/queuedResources/lyceum-" in mine.name
        assert "no run follows it" in mine.why
        assert (found[OTHER].removable, found[OTHER].why) == (False, "a run follows it")
        assert len(shop.tpu.leaked()) > 0
        found = by_key(reaper(shop).reap(shop.store, delete=True))
        removed = {key: one.removed for key, one in found.items()}
        assert removed == {KEY: True, OTHER: False, THIRD: True}
        assert by_key(reaper(shop).reap(shop.store, delete=True)).keys() == {OTHER}
    assert by_key(reaper(shop).reap(shop.store, delete=True))[OTHER].removed
    assert reaper(shop).reap(shop.store, delete=True) == []
    assert shop.tpu.leaked() == []


def test_requests_that_hold_quota_for_nothing_are_removed_even_while_a_flow_lives(shop):
    handle = shop.orphan()
    shop.tpu.strike("preempt", handle.key[:24])
    shop.tpu.wait(handle.key[:24], "SUSPENDED")
    with held(shop, KEY):
        found = reaper(shop).reap(shop.store, delete=True)
    assert [(one.removable, one.removed, one.why) for one in found] == [
        (True, True, "its request is SUSPENDED and holds quota")
    ]
    assert shop.tpu.leaked() == []


def test_a_node_without_a_request_is_removed(shop: Workshop) -> None:
    handle = shop.orphan()
    shop.tpu.strike("vanish", handle.key[:24], what="request")
    found = reaper(shop).reap(shop.store, delete=True)
    assert [(one.name.split("/")[-2], one.state, one.removed) for one in found] == [
        ("nodes", "READY", True)
    ]
    assert shop.tpu.leaked() == []


def test_what_belongs_to_other_stores_is_shown_and_what_is_not_ours_is_not(shop: Workshop) -> None:
    handle = shop.orphan()
    mine = TpuApi(TPU_TYPES["v5e-8"], TpuSettings.from_environment())
    mine.create(mine.name("us-central1-a", "my-own-tpu"), {"team": "x"}, {}, 60)
    other = context().store(f"{shop.store.uri}-2")
    found = reaper(shop).reap(other, delete=True)
    assert [(one.key, one.attempt, one.removable, one.removed) for one in found] == [
        (handle.key[:24], "1", False, False)
    ]
    assert found[0].why == f"it belongs to {shop.store.uri}; look from there (--store)"
    assert [one.removed for one in reaper(shop).reap(shop.store, delete=True)] == [True]
    assert len(shop.tpu.leaked()) > 0
    while not mine.remove(mine.name("us-central1-a", "my-own-tpu")):
        pass


def test_what_is_known_of_a_machine_goes_after_it(shop, monkeypatch):
    """A run was dropped whose machine still worked: nobody found that any more, the next run asked
    for another one beside it, and it was paid for until its job was done."""
    shop.orphan()
    monkeypatch.setattr(gc, "open_backend", lambda target: reaper(shop))
    settings = Settings(lease_seconds=0.6, poll_seconds=0.05)
    denied = {"code": "PERMISSION_DENIED", "message": "Permission 'tpu.nodes.get' denied"}
    shop.tpu.faults.add("status", method="GetQueuedResource", name=KEY[:24], **denied)
    said: list[str] = []
    [work] = gc.collect_garbage(shop.store, (), True, settings, said.append)
    assert (work.kind, work.deleted) == ("work", False)
    assert "a machine of an earlier run may still be there" in said[-1]
    shop.tpu.faults.clear()
    [work] = gc.collect_garbage(shop.store, (), True, settings, said.append)
    assert work.deleted
    shop.tpu.wait(KEY[:24], "GONE")
    assert not [*shop.store.objects("work")]
