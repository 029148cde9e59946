"""The TPU backend against the fake of Cloud TPU, over real gRPC, with a store in the fake of Cloud
Storage.

In most of these tests the VM does nothing, and the test says in its place what a host would say in
the store; so every fault strikes at a known moment. `tests/end_to_end/infra/tpu/test_vm.py` runs
the real startup script, agent and worker.
"""

import json
import re
import time
from pathlib import Path

import pytest

from infra.backend import pause_file
from infra.store.remote import log_chunk
from infra.store.store import attempt_file
from infra.tpu.job_record import store_label
from infra.tpu.types import TPU_TYPES
from schemas.base import InputError, StageFailed
from schemas.job import JobSpec, Progress
from tests.infra.tpu.workshop import KEY, REF, Workshop, booted, final, running, until


def test_a_job_is_asked_for_runs_ends_and_leaves_nothing(shop: Workshop) -> None:
    backend = shop.backend(tpu_usd_per_chip_hour=450.0)
    handle = backend.submit(shop.spec())
    until(lambda: shop.tpu.requests().get("CreateQueuedResource"))
    assert backend.submit(shop.spec()) == handle
    assert backend.poll(handle).state == "queued"
    resource = booted(shop, backend, handle)
    assert (resource.zone, resource.accelerator) == ("us-central1-a", "v5litepod-8")
    assert (resource.tier, resource.runtime) == ("spot", "v2-alpha-tpuv5-lite")
    shop.says("running", progress={"done": 3, "total": 9})
    shop.store.write_bytes(log_chunk(KEY, "1", 0), b"first\n")
    shop.store.write_bytes(log_chunk(KEY, "1", 6), b"second\n")
    until(lambda: backend.log(handle, 0)[1] == 13)
    assert backend.log(handle, 0) == ("first\nsecond\n", 13)
    assert backend.log(handle, 13) == ("", 13)
    status = backend.poll(handle)
    assert (status.state, status.progress) == ("running", Progress(done=3, total=9))
    assert 0 < status.cost_usd < 60  # a dollar a second
    shop.store.write_bytes(attempt_file(KEY, "1", "log.txt"), b"first\nsecond\nlast\n")
    shop.says("succeeded", artifact=REF.model_dump())
    status = final(backend, handle)
    assert status.artifact == REF
    assert backend.log(handle, 13) == ("last\n", 18)
    backend.cancel(handle)
    assert backend.close() == []
    assert shop.tpu.leaked() == []
    record = shop.record(handle)
    assert (record.state, record.reason) == ("deleted", "succeeded")
    assert (record.target, record.tier, record.run) == ("v5e-8", "spot", "run-1")
    assert backend.poll(handle).cost_usd == pytest.approx(record.cost_usd(0))
    assert record.cost_usd(0) == pytest.approx((record.ended - record.active) * 1.0, rel=1e-6)


# Zones


def test_a_job_that_pauses_before_a_deadline_gives_its_machine_back(shop: Workshop) -> None:
    """What the agent looks for lies in the store; of the machine nothing is left."""
    backend = shop.backend()
    handle = backend.submit(shop.spec())
    booted(shop, backend, handle)
    shop.says("running")
    backend.pause(handle)
    assert shop.store.read_bytes(pause_file(KEY, "1")) == b""
    shop.says("paused", error="after step 3")
    status = final(backend, handle)
    assert (status.state, status.error, status.lost) == ("paused", "after step 3", False)
    backend.cancel(handle)
    assert backend.close() == []
    assert shop.tpu.leaked() == []
    assert shop.attach(backend) is None, "the next session begins an attempt of its own"


def test_a_full_zone_gives_way_to_the_next_and_is_left_empty(shop: Workshop) -> None:
    """The first zone says so, the second keeps the request waiting, the third has a TPU."""
    shop.tpu.faults.add("fail", state="WAITING_FOR_RESOURCES", name="us-central1-a")
    shop.tpu.faults.add("stuck", state="WAITING_FOR_RESOURCES", name="us-west4-a")
    zones = ("us-central1-a", "us-west4-a", "us-south1-a")
    backend = shop.backend(zones=zones, far_bucket=True, tpu_queue_seconds=1.0)
    handle = backend.submit(shop.spec())
    assert booted(shop, backend, handle).zone == "us-south1-a"
    assert "us-south1-a" in backend.poll(handle).phase
    for zone in zones[:2]:
        shop.tpu.wait(f"{zone}/queuedResources", "GONE")
    assert [name.split("/")[3] for name in shop.record(handle).resources] == [*zones]
    shop.says("succeeded", artifact=REF.model_dump())
    assert final(backend, handle).state == "succeeded"


def test_when_no_zone_has_a_tpu_the_job_is_lost_and_each_zone_says_why(shop: Workshop) -> None:
    shop.tpu.faults.add("fail", state="WAITING_FOR_RESOURCES", name="us-central1-a")
    shop.tpu.set_quota("spot", 0, "us-west4-a")
    backend = shop.backend(zones=("us-central1-a", "us-west4-a"), far_bucket=True)
    status = final(backend, backend.submit(shop.spec()))
    assert (status.state, status.lost) == ("failed", True)
    assert (status.exit_code, status.cost_usd) == (1, 0.0)
    assert "v5e-8 (spot) in us-central1-a: the zone has no free TPUs" in status.error
    assert "v5e-8 (spot) in us-west4-a: project lyceum-test has no quota left" in status.error
    gc = f"`lyceum gc --target v5e-8 --store {shop.store.uri}`"
    assert f"Machines of earlier runs hold quota, too: {gc} lists them" in status.error


def test_zones_near_the_bucket_are_tried_and_others_only_if_that_is_allowed(shop: Workshop) -> None:
    assert shop.backend().zones(shop.store) == ("us-central1-a",)
    assert shop.backend(far_bucket=True).zones(shop.store) == TPU_TYPES["v5e-8"].zones
    assert shop.backend("v6e-8", far_bucket=True).zones(shop.store)[0] == "us-central1-b"
    far = r"v4-8 is offered in us-central2-b\. store gs://.* lies in the region us-central1"
    with pytest.raises(InputError, match=far):
        shop.backend("v4-8").submit(shop.spec())
    with pytest.raises(InputError, match="zone us-west4-a"):
        shop.backend(zones=("us-central1-a", "us-west4-a")).submit(shop.spec())
    assert shop.tpu.resources() == []


# What goes wrong with one TPU


def test_a_last_word_that_was_not_heard_yet_counts_more_than_the_death_after_it(shop, monkeypatch):
    """The machine succeeds, and is preempted before anybody has looked at the store again."""
    backend = shop.backend(tpu_poll_seconds=2.0)
    handle = backend.submit(shop.spec())
    resource = running(shop, backend, handle)
    monkeypatch.setattr("infra.tpu.listener.LISTEN_SECONDS", 60.0)
    time.sleep(1.0)  # the look that is under way
    shop.says("succeeded", artifact=REF.model_dump())
    shop.tpu.strike("preempt", resource.id)
    assert final(backend, handle).artifact == REF


def test_a_refusal_that_a_person_must_resolve_is_bad_input(shop: Workshop) -> None:
    shop.tpu.faults.add("status", method="CreateQueuedResource", code="PERMISSION_DENIED")
    backend = shop.backend()
    status = final(backend, backend.submit(shop.spec()))
    assert (status.state, status.lost, status.exit_code) == ("failed", False, 2)
    assert "roles/tpu.admin" in str(status.error)


# Cancelling


@pytest.mark.parametrize(
    "state", ["CREATING", "WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE", "running"]
)
def test_cancelling_deletes_in_every_state(shop: Workshop, state: str) -> None:
    if state in ("CREATING", "WAITING_FOR_RESOURCES", "PROVISIONING"):
        shop.tpu.faults.add("stuck", state=state)
    backend = shop.backend()
    handle = backend.submit(shop.spec())
    shop.tpu.wait(KEY[:24], state) if state != "running" else running(shop, backend, handle)
    backend.cancel(handle)
    assert shop.tpu.resource(KEY[:24]).state in ("DELETING", "GONE")
    assert backend.poll(handle).state == "cancelled"
    shop.tpu.faults.clear()
    assert backend.close() == []
    assert shop.tpu.leaked() == []
    backend.cancel(handle)  # may be called again


# Money


def test_a_run_that_has_spent_its_budget_starts_no_more(shop: Workshop) -> None:
    backend = shop.backend(max_usd=0.5, tpu_usd_per_chip_hour=450.0)
    handle = backend.submit(shop.spec())
    running(shop, backend, handle)
    until(lambda: (backend.poll(handle).cost_usd or 0) > 0.6)
    spent = r"has spent 0\.\d\d dollars .* may spend 0\.50 \(LYCEUM_MAX_USD\): .* from zero"
    with pytest.raises(StageFailed, match=spent):
        backend.submit(shop.spec("2"))
    assert backend.submit(shop.spec()) == handle
    other = backend.submit(shop.spec("1", "cd" * 32, run="run-2"))
    assert backend.poll(other).state == "queued"
    assert len(shop.tpu.requests()) > 0


# Stores, settings


def test_a_store_that_a_tpu_cannot_reach_is_refused(shop: Workshop, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--store gs://BUCKET/PREFIX"):
        shop.backend().submit(shop.spec().model_copy(update={"store": str(tmp_path)}))
    assert shop.tpu.resources() == []


def test_vms_are_told_what_they_need(shop, tmp_path, monkeypatch):
    monkeypatch.setenv("LYCEUM_CHECKPOINT_STEPS", "7")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows.jsonl").write_text("{}\n")
    backend = shop.backend(tpu_labels={"team": "nlp"})
    spec = shop.spec(run="2026 Run").model_copy(update={"data": str(tmp_path / "data")})
    handle = backend.submit(spec)
    resource = booted(shop, backend, handle)
    told = resource.metadata
    assert told["lyceum-store"] == shop.store.uri
    assert told["lyceum-job"] == f"work/{KEY}/1/job.json"
    assert shop.store.read_bytes(told["lyceum-source"]) is not None
    assert told["lyceum-resource"] == resource.name
    assert told["lyceum-silence"] == "60"
    settings = {"LYCEUM_CHECKPOINT_STEPS": "7", "LYCEUM_HEARTBEAT_SECONDS": "0.3"}
    assert json.loads(told["lyceum-environment"]).items() >= settings.items()
    labels = {"lyceum": "job", "lyceum-key": KEY[:24], "lyceum-attempt": "1"}
    labels |= {"lyceum-store": store_label(shop.store), "lyceum-run": "2026-run"}
    assert resource.labels == {**labels, "team": "nlp"}
    job = shop.store.read_json(told["lyceum-job"], JobSpec)
    assert re.fullmatch(r"data/[0-9a-f]{64}", str(job.data))
