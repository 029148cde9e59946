"""A process is killed while its TPU is asked for, boots or runs: the next one finds the job again,
and pays for nothing twice."""

from tests.infra.tpu.workshop import KEY, REF, Workshop, final, forgotten, running, until


def test_a_job_of_a_killed_process_is_taken_over(shop: Workshop) -> None:
    """The second one follows it to its end, knows what it costs, and deletes it; nothing is asked
    for again."""
    first = shop.backend(tpu_usd_per_chip_hour=450.0)
    handle = first.submit(shop.spec())
    running(shop, first, handle)
    forgotten(first)
    second = shop.backend(tpu_usd_per_chip_hour=450.0)
    assert second.attach(shop.store, KEY) == handle
    until(lambda: second.poll(handle).state == "running")
    assert (second.poll(handle).cost_usd or 0) > 0
    shop.says("succeeded", artifact=REF.model_dump())
    assert final(second, handle).artifact == REF
    assert second.close() == []
    assert shop.tpu.requests()["CreateQueuedResource"] == 1
    assert second.attach(shop.store, KEY) is None
