"""A process is killed before its TPU is there, or beside others: the next one finds the job again,
and pays for nothing twice."""

import pytest

from infra.backend import JobHandle
from infra.store.remote import host_status
from infra.tpu.backend import _short_name
from infra.tpu.job import record_name
from schemas.base import InputError
from tests.infra.tpu.workshop import KEY, REF, Workshop, booted, final, forgotten, running, until


@pytest.mark.parametrize("state", ["CREATING", "WAITING_FOR_RESOURCES", "PROVISIONING", "READY"])
def test_a_job_whose_tpu_is_not_there_yet_is_taken_over_too(shop: Workshop, state: str) -> None:
    shop.tpu.faults.add("stuck", state=state)
    first = shop.backend()
    handle = first.submit(shop.spec())
    shop.tpu.wait(KEY[:24], state)
    until(lambda: shop.record(handle).state != "requested")
    forgotten(first)
    second = shop.backend()
    assert second.attach(shop.store, KEY) == handle
    shop.tpu.faults.clear()
    booted(shop, second, handle)
    shop.says("succeeded", artifact=REF.model_dump())
    assert final(second, handle).state == "succeeded"
    assert shop.tpu.requests()["CreateQueuedResource"] == 1


def test_only_the_newest_job_that_may_succeed_is_taken_over_and_the_others_are_deleted(
    shop: Workshop,
) -> None:
    first = shop.backend()
    handles = {attempt: first.submit(shop.spec(attempt)) for attempt in ("2", "10", "10-1", "11")}
    for handle in handles.values():
        running(shop, first, handle)
    shop.says("failed", attempt="11", error="no", exit_code=1)
    shop.tpu.faults.add("stuck", state="DELETING")
    forgotten(first)
    second = shop.backend()
    assert second.attach(shop.store, KEY) == handles["10-1"]
    shop.tpu.faults.clear()
    for attempt in ("2", "10", "11"):
        shop.tpu.wait(_short_name(handles[attempt]), "GONE")
    assert shop.tpu.resource(_short_name(handles["10-1"])).state == "ACTIVE"


def test_a_job_of_another_type_or_one_that_was_lost_is_deleted_not_taken_over(
    shop: Workshop,
) -> None:
    first, other = shop.backend(), shop.backend("v6e-8", zones=("us-central1-b",))
    running(shop, other, other.submit(shop.spec("2")))
    handle = first.submit(shop.spec("1"))
    resource = running(shop, first, handle)
    forgotten(first)
    forgotten(other)
    shop.tpu.strike("preempt", resource.id)
    shop.tpu.wait(resource.id, "PREEMPTED")
    second = shop.backend()
    assert second.attach(shop.store, KEY) is None
    assert second.close() == []
    assert shop.tpu.leaked() == []
    assert shop.record(handle).state == "deleted"


def test_a_record_without_a_request_begins_where_the_killed_process_ended(shop: Workshop) -> None:
    """It was killed between writing the record and sending the request: the same attempt sends
    it."""
    backend = shop.backend()
    handle = backend.submit(shop.spec())
    running(shop, backend, handle)
    record = shop.record(handle)
    backend.cancel(handle)
    assert backend.close() == []
    shop.store.remove(host_status(KEY, "1", 0))
    shop.store.write_json(
        record_name(handle), record.model_copy(update={"state": "requested", "active": None})
    )
    second = shop.backend()
    assert second.submit(shop.spec()) == handle
    booted(shop, second, handle)
    assert second.attach(shop.store, "ef" * 32) is None


def test_a_handle_from_elsewhere_is_followed_or_refused(shop: Workshop) -> None:
    first = shop.backend()
    handle = first.submit(shop.spec())
    running(shop, first, handle)
    forgotten(first)
    second = shop.backend()
    until(lambda: second.poll(handle).state == "running")
    with pytest.raises(InputError, match="no TPU was asked for"):
        second.poll(JobHandle(handle.store, KEY, "77"))
