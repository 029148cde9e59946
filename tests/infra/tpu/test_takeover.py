"""A process is killed while its TPU is asked for, boots or runs: the next one finds the job again,
and pays for nothing twice."""

import pytest

from schemas.base import StageFailed
from tests.infra.tpu.workshop import KEY, REF, Workshop, final, until


def test_a_job_of_a_killed_process_is_taken_over(shop: Workshop) -> None:
    """The second one follows it to its end, knows what it costs, and deletes it; nothing is asked
    for again."""
    handle = shop.orphan()
    shop.says("running")
    backend = shop.backend(tpu_usd_per_chip_hour=450.0)
    assert shop.attach(backend) == handle
    until(lambda: (backend.poll(handle).cost_usd or 0) > 0)
    assert backend.poll(handle).state == "running"
    shop.says("succeeded", artifact=REF.model_dump())
    assert final(backend, handle).artifact == REF
    assert backend.close() == []
    assert shop.tpu.requests()["CreateQueuedResource"] == 1
    assert shop.attach(backend) is None


def test_a_request_that_is_there_is_not_sent_again(shop: Workshop) -> None:
    """Its process was killed before it could note that it was heard. Who sent it again, after the
    machine had worked and gone, asked for another one."""
    handle, backend = shop.orphan(state="requested"), shop.backend()
    assert shop.attach(backend) == handle
    until(lambda: shop.record(handle).state == "booting")
    assert shop.tpu.requests()["CreateQueuedResource"] == 1


def test_a_run_pays_for_a_job_that_it_took_over(shop: Workshop) -> None:
    """From then on: it counted for the run that was killed, so the other one went on beyond its
    budget."""
    handle = shop.orphan()
    shop.says("running")
    backend = shop.backend(max_usd=0.5, tpu_usd_per_chip_hour=450.0)  # a dollar a second
    assert shop.attach(backend) == handle
    until(lambda: (backend.poll(handle).cost_usd or 0) > 1)
    with pytest.raises(StageFailed, match=r"may spend 0\.50"):
        backend.submit(shop.spec(key="cd" * 32, run="run-2"))
    backend.cancel(handle)
    assert backend.close() == []


def test_a_job_that_is_left_to_another_run_keeps_its_machine(shop: Workshop) -> None:
    handle, backend = shop.orphan(), shop.backend()
    shop.says("running")
    until(lambda: backend.poll(handle).state == "running")
    backend.leave(handle)
    assert backend.close() == []
    backend.cancel(handle)
    assert shop.tpu.resource(KEY[:24]).state == "ACTIVE"
    assert shop.record(handle).state != "deleted"
    other = shop.backend()
    assert shop.attach(other) == handle
    other.cancel(handle)
    assert other.close() == []
    assert shop.tpu.leaked() == []
