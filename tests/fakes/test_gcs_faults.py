"""Each fault of the fake of Cloud Storage does what it says, to the requests it names and to no others."""

import http.client
import json
import os
import time
from contextlib import suppress
from typing import Any

import pytest
from google.api_core import exceptions as gcs_errors
from google.cloud.storage.bucket import Bucket
from google.cloud.storage.exceptions import DataCorruption
from google.cloud.storage.retry import DEFAULT_RETRY

from tests.fakes.gcs_emulator import Emulator
from tests.fakes.gcs_requests import ask, path, session, upload

CHUNK = 1 << 18
QUICK = DEFAULT_RETRY.with_delay(initial=0.01, maximum=0.02)


@pytest.mark.parametrize(
    ("code", "parameters", "reason", "message"),
    [
        (503, {"retry_after": 7}, "backendError", "internal error"),
        (500, {}, "internalError", "internal error"),
        (429, {}, "rateLimitExceeded", "reduce your request rate"),
        (408, {}, "requestTimeout", "Timeout"),
        (401, {}, "authError", "Invalid Credentials"),
        (403, {}, "forbidden", "Permission denied"),
        (403, {"reason": "quotaExceeded", "message": "The bucket is full."}, "quotaExceeded", "bucket is full"),
        (404, {}, "notFound", "The specified bucket does not exist."),
        (400, {}, "required", "Bucket is a requester pays bucket but no user project provided."),
        (507, {}, "quotaExceeded", "exhausted"),
    ],
)
def test_status(gcs: Emulator, gcs_bucket: str, code: int, parameters: dict[str, Any], reason: str, message: str) -> None:
    fault = gcs.faults.add("status", code=code, kind="upload", times=1, **parameters)
    create = upload(gcs, gcs_bucket, "x", b"data", ifGenerationMatch=0)
    status, headers, body = create()
    error = json.loads(body)["error"]
    assert (status, error["code"], error["errors"][0]["reason"]) == (code, code, reason)
    assert message in error["message"]
    assert headers.get("retry-after") == (str(parameters["retry_after"]) if "retry_after" in parameters else None)
    assert (gcs.objects(gcs_bucket), gcs.faults.fired(fault)) == ({}, 1)
    assert create()[0] == 200


def test_clients_outlast_passing_troubles(gcs: Emulator, gcs_client: Bucket) -> None:
    gcs.faults.add("status", code=503, times=1)
    gcs.faults.add("reset_before", skip=1, times=1)
    gcs_client.blob("x").upload_from_string(b"data", if_generation_match=0, retry=QUICK)
    assert gcs.requests() == {"POST upload": 3}


def test_reset_before_executes_nothing(gcs: Emulator, gcs_bucket: str) -> None:
    gcs.faults.add("reset_before", times=1)
    with pytest.raises(ConnectionResetError):
        upload(gcs, gcs_bucket, "x", b"data")()
    assert gcs.objects(gcs_bucket) == {}


def test_reset_after_loses_the_acknowledgement(gcs: Emulator, gcs_client: Bucket) -> None:
    """The official client asks again and is told that it lost, though it won."""
    gcs.faults.add("reset_after", times=1)
    with pytest.raises(gcs_errors.PreconditionFailed):
        gcs_client.blob("x").upload_from_string(b"data", if_generation_match=0, retry=QUICK)
    assert gcs.read(gcs_client.name, "x") == b"data"


def test_duplicate_delivers_twice_and_sends_the_second_answer(gcs: Emulator, gcs_bucket: str) -> None:
    gcs.faults.add("duplicate", times=3)
    assert upload(gcs, gcs_bucket, "x", b"data", ifGenerationMatch=0)()[0] == 412
    assert gcs.read(gcs_bucket, "x") == b"data"
    assert ask(gcs, "PATCH", path(gcs_bucket, "x"), b"{}")[0] == 200
    assert json.loads(ask(gcs, "GET", path(gcs_bucket, "x"))[2])["metageneration"] == "3"
    assert gcs.requests() == {"POST upload": 1, "PATCH metadata": 1, "GET metadata": 1}


def test_truncate_sends_less_than_it_promised(gcs: Emulator, gcs_client: Bucket) -> None:
    data = os.urandom(100_000)
    gcs_client.blob("x").upload_from_string(data)
    gcs.faults.add("truncate", keep=30_000, times=1)
    with pytest.raises(http.client.IncompleteRead) as failed:
        ask(gcs, "GET", path(gcs_client.name, "x", alt="media"))
    assert failed.value.partial == data[:30_000]
    gcs.faults.add("truncate", times=1)
    assert gcs_client.blob("x").download_as_bytes(retry=QUICK) == data
    assert gcs.requests()["GET download"] == 3


def test_flip_changes_one_bit_in_flight(gcs: Emulator, gcs_client: Bucket, gcs_fs: Any) -> None:
    data = os.urandom(3_000_000)
    gcs_client.blob("x").upload_from_string(data)
    flipped = data[:7] + bytes([data[7] ^ 1]) + data[8:]
    gcs.faults.add("flip", offset=7, times=2)
    assert gcs_fs.cat_file(f"{gcs_client.name}/x") == flipped
    with pytest.raises(DataCorruption):
        gcs_client.blob("x").download_as_bytes(retry=None)
    assert gcs_client.blob("x").download_as_bytes() == data


def test_slow_waits_and_trickles(gcs: Emulator, gcs_client: Bucket) -> None:
    gcs_client.blob("x").upload_from_string(bytes(30_000))
    gcs.faults.add("slow", delay=0.2, rate=100_000)
    start = time.monotonic()
    assert gcs_client.blob("x").download_as_bytes() == bytes(30_000)
    assert 0.45 < time.monotonic() - start < 3
    gcs.faults.clear()
    start = time.monotonic()
    gcs_client.blob("x").download_as_bytes()
    assert time.monotonic() - start < 0.2


def test_stale_lists_the_past(gcs: Emulator, gcs_client: Bucket, gcs_fs: Any) -> None:
    """The past of two changes ago: what was written since is missing, what was deleted since is there."""
    for name in ("a", "b"):
        gcs_client.blob(name).upload_from_string(name)
    gcs_client.blob("b").delete()
    gcs_client.blob("c").upload_from_string("c")
    gcs.faults.add("stale", changes=2)
    assert [blob.name for blob in gcs_client.list_blobs()] == ["a", "b"]
    assert gcs_fs.ls(gcs_client.name) == [f"{gcs_client.name}/a", f"{gcs_client.name}/b"]
    assert not gcs_client.blob("b").exists()
    gcs.faults.clear()
    assert [blob.name for blob in gcs_client.list_blobs()] == ["a", "c"]


def test_partial_takes_whole_units_of_a_chunk(gcs: Emulator, gcs_client: Bucket) -> None:
    """The first chunk is taken by half, the second by one unit and a bit: 308 tells, and the client sends the rest again."""
    data = os.urandom(8 * CHUNK + 5)
    half, unit = gcs.faults.add("partial", times=1), gcs.faults.add("partial", keep=CHUNK + 9, skip=1, times=1)
    location = session(gcs, gcs_client.name, "x")
    first = ask(gcs, "PUT", location, data[: 4 * CHUNK], Content_Range=f"bytes 0-{4 * CHUNK - 1}/*")
    assert (first[0], first[1]["range"]) == (308, f"bytes=0-{2 * CHUNK - 1}")
    second = ask(gcs, "PUT", location, data[2 * CHUNK :], Content_Range=f"bytes {2 * CHUNK}-{len(data) - 1}/{len(data)}")
    assert (second[0], second[1]["range"]) == (308, f"bytes=0-{3 * CHUNK - 1}")
    last = ask(gcs, "PUT", location, data[3 * CHUNK :], Content_Range=f"bytes {3 * CHUNK}-{len(data) - 1}/{len(data)}")
    assert (last[0], gcs.read(gcs_client.name, "x") == data) == (200, True)
    assert (gcs.faults.fired(half), gcs.faults.fired(unit)) == (1, 1)


def test_corrupt_is_told_by_the_metadata_or_not(gcs: Emulator, gcs_client: Bucket) -> None:
    gcs_client.blob("x").upload_from_string(b"0000")
    before = gcs_client.get_blob("x")
    gcs.corrupt(gcs_client.name, "x", offset=1)
    with pytest.raises(DataCorruption):
        gcs_client.blob("x").download_as_bytes(retry=None)
    assert gcs_client.get_blob("x").crc32c == before.crc32c
    gcs.corrupt(gcs_client.name, "x", recompute=True)
    assert gcs_client.blob("x").download_as_bytes() == gcs.read(gcs_client.name, "x") == b"0110"
    after = gcs_client.get_blob("x")
    assert (after.crc32c != before.crc32c, after.md5_hash != before.md5_hash, after.generation) == (True, True, before.generation)
    gcs.delete(gcs_client.name, "x")
    assert not gcs_client.blob("x").exists()


def test_a_fault_strikes_what_it_names(gcs: Emulator, gcs_client: Bucket) -> None:
    gcs_client.blob("logs/x").upload_from_string(b"x")
    gcs.faults.add("status", kind="delete")
    gcs.faults.add("status", method="PUT")
    gcs.faults.add("status", name="logs/y")
    gcs.faults.add("status", name=f"{gcs_client.name}/x")
    gcs.faults.add("status", kind="list", name="logs/")
    gcs_client.get_blob("logs/x").download_as_bytes()
    list(gcs_client.list_blobs())
    with pytest.raises(gcs_errors.ServiceUnavailable):
        list(gcs_client.list_blobs(prefix="logs/", retry=None))
    with pytest.raises(gcs_errors.ServiceUnavailable):
        gcs_client.blob("logs/x").delete(retry=None)
    with pytest.raises(gcs_errors.ServiceUnavailable):
        gcs_client.blob("logs/y").upload_from_string(b"", retry=None)


@pytest.mark.parametrize(("action", "kind"), [("flip", "download"), ("truncate", "download"), ("stale", "list"), ("partial", "upload")])
def test_a_fault_waits_for_a_request_it_can_strike(gcs: Emulator, gcs_bucket: str, action: str, kind: str) -> None:
    fault = gcs.faults.add(action, times=1)
    requests = {
        "metadata": lambda: ask(gcs, "GET", path(gcs_bucket, "x")),
        "upload": upload(gcs, gcs_bucket, "x", b"data", "resumable"),
        "list": lambda: ask(gcs, "GET", f"/storage/v1/b/{gcs_bucket}/o"),
        "download": lambda: ask(gcs, "GET", path(gcs_bucket, "x", alt="media")),
    }
    fired = {}
    for each, request in requests.items():
        before = gcs.faults.fired(fault)
        with suppress(http.client.IncompleteRead):
            request()
        fired[each] = gcs.faults.fired(fault) - before
    assert fired == {**dict.fromkeys(requests, 0), kind: 1}


def test_chance_is_seeded(gcs: Emulator, gcs_bucket: str) -> None:
    def statuses(seed: int) -> list[int]:
        gcs.faults.clear()
        gcs.faults.add("status", code=503, probability=0.4, seed=seed)
        return [ask(gcs, "GET", f"/storage/v1/b/{gcs_bucket}")[0] for _ in range(40)]

    first = statuses(1)
    assert 5 < first.count(503) < 30
    assert statuses(1) == first != statuses(2)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"action": "flood"}, "there are status, reset_before"),
        ({"action": "flip", "kind": "get"}, "there are upload"),
        ({"action": "stale", "n": 1}, "it has changes"),
    ],
)
def test_an_unknown_fault_is_refused(gcs: Emulator, wish: dict[str, Any], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        gcs.faults.add(**wish)
