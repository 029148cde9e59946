"""The TPU backend when time passes: silence, requests that are stuck, deletions that take long, an
API that fails for a while."""

import time

import pytest

import infra.tpu.api
import infra.tpu.job
from infra.backend import FINAL
from tests.infra.tpu.workshop import KEY, REF, Workshop, booted, final, running, until


def test_each_host_of_a_slice_must_live(shop: Workshop) -> None:
    backend = shop.backend("v5e-16", tpu_silence_seconds=5.0)
    handle = backend.submit(shop.spec())
    booted(shop, backend, handle)
    shop.says("running", 2)

    def over() -> bool:
        for host in (0, 1, 3):
            shop.says("running", host)
        return backend.poll(handle).state in FINAL

    until(over)
    assert "host 2 of 4 was not heard of" in str(backend.poll(handle).error)


def test_a_request_that_is_stuck_is_given_up(shop: Workshop) -> None:
    shop.tpu.faults.add("stuck", state="PROVISIONING")
    backend = shop.backend(tpu_boot_seconds=1.0, tpu_queue_seconds=1.0)
    status = final(backend, backend.submit(shop.spec()))
    assert status.lost
    assert "PROVISIONING" in str(status.error)


def test_a_job_that_is_cancelled_before_it_was_asked_for_never_is(shop, monkeypatch):
    backend = shop.backend()
    monkeypatch.setattr(shop.store, "write_json", lambda *_: (_ for _ in ()).throw(OSError("503")))
    handle = backend.submit(shop.spec())
    until(lambda: "does not answer" in backend.poll(handle).phase)
    backend.cancel(handle)
    assert backend.poll(handle).state == "cancelled"
    assert "CreateQueuedResource" not in shop.tpu.requests()


def test_after_its_end_nobody_waits_for_the_deletion_but_close(shop: Workshop) -> None:
    shop.tpu.set_seconds(DELETING=5.0)
    backend = shop.backend()
    handle = backend.submit(shop.spec())
    running(shop, backend, handle)
    shop.says("succeeded", artifact=REF.model_dump())
    assert final(backend, handle).state == "succeeded"
    backend.cancel(handle)
    assert shop.tpu.leaked() != []
    assert backend.close() == []
    assert shop.tpu.leaked() == []


def test_what_cannot_be_deleted_is_reported_with_the_command_that_deletes_it(shop, monkeypatch):
    monkeypatch.setattr(infra.tpu.job, "ACCEPT_SECONDS", 1.0)
    backend = shop.backend(tpu_delete_seconds=1.0)
    handle = backend.submit(shop.spec())
    resource = running(shop, backend, handle)
    shop.tpu.faults.add("status", method="DeleteQueuedResource", code="PERMISSION_DENIED")
    shop.says("succeeded", artifact=REF.model_dump())
    assert final(backend, handle).state == "succeeded"
    [left] = backend.close()
    assert resource.name in left
    command = f"gcloud compute tpus queued-resources delete {resource.id} --zone=us-central1-a"
    assert command in left
    shop.tpu.forget()
    shop.backends.remove(backend)


def test_a_deletion_that_is_refused_for_long_goes_on_as_long_as_the_flow_does(shop, monkeypatch):
    """For longer than anybody waits for it: the flow has its next stages to run, and the machine is
    paid for until somebody asks again."""
    monkeypatch.setattr(infra.tpu.job, "ACCEPT_SECONDS", 1.0)
    monkeypatch.setattr(infra.tpu.api, "CALL_SECONDS", 0.1)
    backend = shop.backend(tpu_delete_seconds=0.5)
    handle = backend.submit(shop.spec())
    running(shop, backend, handle)
    shop.tpu.faults.add("status", method="DeleteQueuedResource", code="INTERNAL")
    shop.says("failed", error="it failed")
    assert final(backend, handle).state == "failed"
    assert "it was not gone after 0 s" in backend.close()[0]
    refused_until = time.time()
    shop.tpu.faults.clear()
    until(lambda: shop.tpu.leaked() == [])
    until(lambda: shop.record(handle).state == "deleted")
    assert (shop.record(handle).ended or 0.0) > refused_until - 15.0, "it counts for the budget"


def test_a_request_that_waits_is_not_sent_when_the_budget_is_spent_meanwhile(shop, monkeypatch):
    """By a machine of the same run that has ended, and whose deletion is refused."""
    monkeypatch.setattr(infra.tpu.api, "CALL_SECONDS", 0.1)
    backend = shop.backend(max_usd=600.0, tpu_usd_per_chip_hour=450.0)  # a dollar a second
    handle = backend.submit(shop.spec())
    running(shop, backend, handle)
    for method in ("DeleteQueuedResource", "CreateQueuedResource"):
        shop.tpu.faults.add("status", method=method, code="UNAVAILABLE")
    shop.says("failed", error="it failed")
    paid = final(backend, handle).cost_usd or 0.0
    until(lambda: (backend.poll(handle).cost_usd or 0.0) > paid + 0.5)
    waiting = backend.submit(shop.spec("1", "cd" * 32))
    until(lambda: "does not answer" in backend.poll(waiting).phase)
    backend._settings = backend._settings.model_copy(update={"max_usd": paid + 0.5})
    assert "no more are started" in str(final(backend, waiting).error)
    asked = shop.tpu.requests()["CreateQueuedResource"]
    shop.tpu.faults.clear()
    backend.cancel(waiting)
    assert shop.tpu.requests()["CreateQueuedResource"] == asked


@pytest.mark.parametrize("action", ["status", "lost", "reset_after"])
def test_an_api_that_fails_for_a_while_delays_and_leaks_nothing(shop, action, monkeypatch):
    """Half of all calls fail for longer than one is repeated; some of them were executed."""
    monkeypatch.setattr(infra.tpu.api, "CALL_SECONDS", 0.1)
    fault = shop.tpu.faults.add(action, method="*", probability=0.5, seed=1)
    backend = shop.backend()
    handle = backend.submit(shop.spec())
    shop.tpu.wait(KEY[:24], "READY")
    shop.says("running")
    until(lambda: backend.poll(handle).state == "running")
    shop.says("succeeded", artifact=REF.model_dump())
    assert final(backend, handle).state == "succeeded"
    assert backend.close() == []
    assert shop.tpu.faults.fired(fault) > 3
    assert len(shop.tpu.resources()) == 1


def test_two_stores_with_the_same_job_do_not_get_in_each_others_way(shop: Workshop) -> None:
    backend = shop.backend()
    other = shop.spec().model_copy(update={"store": shop.store.uri + "-2"})
    first, second = backend.submit(shop.spec()), backend.submit(other)
    assert first != second
    until(lambda: sum(one.node_state == "READY" for one in shop.tpu.resources()) == 2)
