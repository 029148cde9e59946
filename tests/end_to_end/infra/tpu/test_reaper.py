"""The reaper beside a flow that begins, an API that is silent, and deletions that hang."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from infra.store.lease import seize, unheld
from infra.store.store import Store, attempt_file
from schemas.base import InputError
from tests.infra.tpu.test_reaper import held, reaper
from tests.infra.tpu.workshop import KEY, Workshop


def test_a_flow_that_begins_meanwhile_wins(shop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lease is taken between the look at the leases and the removal."""
    shop.orphan()
    with ExitStack() as flow:

        def look(store: Store, keys: Mapping[str, int], **timing: Any) -> dict[str, int]:
            free = unheld(store, keys, **timing)
            flow.enter_context(held(shop, KEY))
            return free

        with monkeypatch.context() as patched:
            patched.setattr("infra.tpu.reaper.unheld", look)
            found = reaper(shop).reap(shop.store, delete=True)
    assert [(one.removable, one.removed) for one in found] == [(True, False)]
    assert shop.tpu.resource(KEY[:24]).state == "ACTIVE"
    assert [one.removed for one in reaper(shop).reap(shop.store, delete=True)] == [True]


def test_a_reaper_that_stood_still_leaves_the_machine_of_a_flow_that_took_over(shop, monkeypatch):
    """A laptop's lid is shut after the reaper has taken the lease, and when it is opened again a
    run has taken it over, and follows the machine."""
    shop.orphan()

    @contextmanager
    def slept(store: Store, key: str, generation: int, *rest: Any, **more: Any) -> Iterator[Any]:
        with seize(store, key, generation, *rest, **more) as mine:
            lease = store.read_bytes(attempt_file(key, str(generation + 1), "lease.json")) or b""
            store.write_bytes(attempt_file(key, str(generation + 2), "lease.json"), lease)
            yield mine
            store.remove(attempt_file(key, str(generation + 2), "lease.json"))

    with monkeypatch.context() as patched:
        patched.setattr("infra.tpu.reaper.seize", slept)
        assert [one.removed for one in reaper(shop).reap(shop.store, delete=True)] == [False]
        said: list[str] = []
        release_backend = reaper(shop)
        release_backend.release(shop.store, KEY, said.append)
        assert release_backend.close() == []
    assert shop.tpu.resource(KEY[:24]).state == "ACTIVE"
    assert [one.removed for one in reaper(shop).reap(shop.store, delete=True)] == [True]


def test_a_zone_that_may_not_be_used_is_passed_over_and_an_api_that_is_silent_is_an_error(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.orphan()
    denied = {"code": "PERMISSION_DENIED", "message": "Location us-west4-a is not found"}
    shop.tpu.faults.add("status", method="ListQueuedResources", name="us-west4-a", **denied)
    assert [one.removed for one in reaper(shop).reap(shop.store, delete=True)] == [True]
    monkeypatch.setattr("infra.tpu.api.CALL_SECONDS", 0.3)
    shop.tpu.faults.add("status", method="ListNodes", name="us-south1-a", code="UNAVAILABLE")
    said = "TPUs in us-south1-a cannot be listed: the Cloud TPU API does not answer"
    with pytest.raises(InputError, match=said):
        reaper(shop).reap(shop.store, delete=True)


def test_what_does_not_go_away_is_not_reported_as_removed(shop: Workshop) -> None:
    shop.orphan()
    shop.tpu.faults.add("stuck", state="DELETING")
    backend = shop.backend(lease_seconds=0.6, poll_seconds=0.05, tpu_delete_seconds=0.5)
    found = backend.reap(shop.store, delete=True)
    assert [(one.removable, one.removed) for one in found] == [(True, False)]
    [left] = reaper(shop).reap(shop.store, delete=False)
    assert left.why == "it is being deleted"
    shop.tpu.faults.clear()
    shop.tpu.wait(KEY[:24], "GONE")
