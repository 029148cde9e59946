"""A process is killed before its TPU is there, or beside others: the next one finds the job again,
and pays for nothing twice."""

import pytest

from infra.backend import JobHandle
from infra.store.remote import host_status
from infra.tpu.job import record_name
from schemas.base import InputError
from tests.infra.tpu.workshop import KEY, Workshop, booted, running, until


def test_only_the_newest_job_that_may_succeed_is_taken_over_and_the_others_are_deleted(shop):
    """11 has failed; 12 is of another type; of 13 the machine was preempted."""
    handles = {attempt: shop.orphan(attempt=attempt) for attempt in ("2", "10", "10-1", "11", "13")}
    handles["12"] = shop.orphan(attempt="12", target="v6e-8", zone="us-central1-b")
    for attempt in ("2", "10", "10-1"):
        shop.says("running", attempt=attempt)
    shop.says("failed", attempt="11", error="no", exit_code=1)
    names = {attempt: shop.record(handle).resources[-1] for attempt, handle in handles.items()}
    shop.tpu.strike("preempt", names["13"])
    shop.tpu.wait(names["13"], "SUSPENDED")
    backend = shop.backend()
    assert shop.attach(backend) == handles["10-1"]
    for attempt in names.keys() - {"10-1"}:
        shop.tpu.wait(names[attempt], "GONE")
    assert shop.tpu.resource(names["10-1"]).state == "ACTIVE"
    until(lambda: shop.record(handles["13"]).state == "deleted")


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
    before = record.model_copy(update={"state": "requested", "active": None})
    shop.store.write_json(record_name(handle), before)
    second = shop.backend()
    assert second.submit(shop.spec()) == handle
    booted(shop, second, handle)
    assert shop.attach(second, "ef" * 32) is None


def test_a_handle_from_elsewhere_is_followed_or_refused(shop: Workshop) -> None:
    handle, backend = shop.orphan(), shop.backend()
    shop.says("running")
    until(lambda: backend.poll(handle).state == "running")
    with pytest.raises(InputError, match="no TPU was asked for"):
        backend.poll(JobHandle(handle.store, KEY, "77"))


def test_a_request_that_is_there_is_not_sent_again(shop: Workshop) -> None:
    """Its process was killed before it could note that it was heard. Who sent it again, after the
    machine had worked and gone, asked for another one."""
    handle, backend = shop.orphan(state="requested"), shop.backend()
    assert shop.attach(backend) == handle
    until(lambda: shop.record(handle).state == "booting")
    assert shop.tpu.requests()["CreateQueuedResource"] == 1
