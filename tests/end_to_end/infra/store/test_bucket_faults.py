"""A bucket keeps its promises when the service or the network does not: lost answers, outages,
broken bodies, refusals."""

import hashlib
import logging
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
from google.auth.exceptions import RefreshError, TransportError
from google.cloud.storage.client import Client

from infra.gcs import download as gcs_download
from infra.gcs import objects as infra_gcs
from infra.gcs import requests as gcs_requests
from infra.gcs import upload as gcs_upload
from infra.gcs.bucket import Bucket
from infra.settings import Settings
from infra.store.files import file_entry
from infra.store.objects import Damaged
from schemas.artifact import FileEntry
from schemas.base import InputError
from tests.fakes.gcs_emulator import Emulator

KB, MB = 1 << 10, 1 << 20
PASSING: list[dict[str, Any]] = [
    {"action": "status", "code": 408},
    {"action": "status", "code": 429},
    {"action": "status", "code": 500},
    {"action": "status", "code": 502},
    {"action": "status", "code": 503},
    {"action": "status", "code": 504},
    {"action": "status", "code": 403, "message": "Rate limit exceeded."},
    {"action": "reset_before"},
    {"action": "reset_after"},
    {"action": "duplicate"},
    {"action": "slow", "delay": 0.6},
]


def label(fault: dict[str, Any]) -> str:
    return "-".join(str(value) for value in fault.values())


@pytest.fixture(autouse=True)
def _small_and_quick(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Files of a megabyte are large, delays are short, and where answers are slow they are not
    waited for."""
    monkeypatch.setattr(gcs_requests, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(gcs_upload, "SMALL", 100 * KB)
    monkeypatch.setattr(gcs_upload, "CHUNK", 512 * KB)
    monkeypatch.setattr(gcs_download, "SLICE", 256 * KB)
    if "slow" in request.node.name:
        monkeypatch.setattr(gcs_requests, "ATTEMPT_SECONDS", 0.3)


@pytest.fixture
def bucket(gcs_bucket: str, tmp_path: Path) -> Bucket:
    return Bucket(gcs_bucket, "p", tmp_path / "cache", Settings(store_seconds=60))


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, Sequence[FileEntry]]:
    directory = tmp_path / "tree"
    directory.mkdir()
    for name, size in (("large", MB + 1), ("small", 1000), ("empty", 0)):
        (directory / name).write_bytes(os.urandom(size))
    return directory, [file_entry(directory, name) for name in ("large", "small", "empty")]


def are_intact(directory: Path, entries: Sequence[FileEntry]) -> bool:
    return all(
        hashlib.sha256((directory / entry.path).read_bytes()).hexdigest() == entry.sha256
        for entry in entries
    )


# Single objects


@pytest.mark.parametrize("fault", PASSING, ids=label)
def test_every_method_outlasts_a_passing_fault(
    bucket: Bucket, gcs: Emulator, gcs_bucket: str, fault: dict[str, Any]
) -> None:
    """The fault strikes the first request of each. A create whose acknowledgement was lost knows
    that it has won."""

    def struck(action: Callable[[], object]) -> object:
        gcs.faults.clear()
        number = gcs.faults.add(times=1, **fault)
        result = action()
        assert gcs.faults.fired(number) == 1
        return result

    assert struck(lambda: bucket.create("a/x", b"1")) is True
    assert struck(lambda: bucket.create("a/x", b"1")) is False
    struck(lambda: bucket.write("a/y", b"2"))
    assert struck(lambda: bucket.read("a/y")) == b"2"
    assert struck(lambda: bucket.read("a/z")) is None
    assert struck(lambda: bucket.children("a")) == ["x", "y"]
    assert struck(lambda: [one.name for one in bucket.objects("a")]) == ["a/x", "a/y"]
    assert struck(lambda: bucket.set_aside("a/x", "b", b"1")) is True
    struck(lambda: bucket.remove("a"))
    struck(bucket.prepare)
    struck(bucket.require)
    assert struck(bucket.location) == "US-CENTRAL1"
    left = set(gcs.objects(gcs_bucket))
    assert {name for name in left if "probe" not in name} == {"p/b"}
    assert (
        len(left) == 1 or fault["action"] == "slow"
    )  # a request that was given up may be executed all the same, later


def test_the_bytes_of_others_are_no_victory(bucket: Bucket, gcs: Emulator) -> None:
    """Not even when they are ours, letter by letter, and our first request came to nothing."""
    bucket.write("x", b"same")
    gcs.faults.add("reset_before", kind="upload", times=1)
    assert not bucket.create("x", b"same")


def test_of_sixteen_creators_one_wins_whatever_is_lost(bucket: Bucket, gcs: Emulator) -> None:
    gcs.faults.add("reset_after", kind="upload", probability=0.4, seed=1)
    gcs.faults.add("duplicate", kind="upload", probability=0.3, seed=2)
    gcs.faults.add("status", code=503, probability=0.3, seed=3)
    for round_ in range(3):
        barrier = threading.Barrier(16)

        def race(
            number: int, name: str = f"won-{round_}", barrier: threading.Barrier = barrier
        ) -> bool:
            barrier.wait()
            return bucket.create(name, b"%d" % number)

        with ThreadPoolExecutor(16) as pool:
            won = list(pool.map(race, range(16)))
        assert won.count(True) == 1
        assert bucket.read(f"won-{round_}") == b"%d" % won.index(True)


BROKEN_BODIES: list[dict[str, Any]] = [
    {"action": "flip"},
    {"action": "truncate"},
    {"action": "truncate", "keep": 0},
    {"action": "status", "code": 200},  # as from a proxy that wants one to log in
    {"action": "status", "code": 206},
]


@pytest.mark.parametrize("fault", BROKEN_BODIES, ids=label)
def test_a_broken_body_is_read_again(bucket: Bucket, gcs: Emulator, fault: dict[str, Any]) -> None:
    bucket.write("x", b"precious" * 1000)
    number = gcs.faults.add(times=2, **fault)
    assert bucket.read("x") == b"precious" * 1000
    assert gcs.faults.fired(number) == 2


def test_an_object_that_is_replaced_between_two_attempts_is_read(bucket: Bucket) -> None:
    """The second attempt must not ask for the generation that the first one saw: a heartbeat may
    have replaced it."""
    bucket.write("lease.json", b"old")

    def damaged_and_replaced(data: bytes) -> str:
        patch.undo()
        bucket.write("lease.json", b"new")
        return "the checksum of other bytes"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(infra_gcs, "crc32c", damaged_and_replaced)
        assert bucket.read("lease.json") == b"new"


def test_set_aside_outlasts_a_lost_acknowledgement_of_the_deletion(
    bucket: Bucket, gcs: Emulator
) -> None:
    bucket.write("m.json", b"old")
    gcs.faults.add("reset_after", kind="delete", times=1)
    assert bucket.set_aside("m.json", "m.old.json", b"old")
    assert (bucket.read("m.json"), bucket.read("m.old.json")) == (None, b"old")


def test_set_aside_never_removes_what_came_between_two_attempts(
    bucket: Bucket, gcs: Emulator
) -> None:
    bucket.write("m.json", b"old")
    gcs.faults.add("status", code=503, kind="delete", times=1)
    delay = random.uniform

    def replaced(low: float, high: float) -> float:
        patch.undo()
        bucket.write("m.json", b"new")
        return delay(low, high)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gcs_requests.random, "uniform", replaced)
        assert not bucket.set_aside("m.json", "m.old.json", b"old")
    assert bucket.read("m.json") == b"new"


def test_a_listing_that_breaks_in_the_middle_is_still_complete(
    bucket: Bucket, gcs: Emulator, gcs_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client, "list_blobs", partialmethod(Client.list_blobs, page_size=2))
    for name in "abcde":
        bucket.write(f"d/{name}", b"")
    gcs.faults.add("status", code=503, kind="list", skip=1, times=2)
    assert bucket.children("d") == list("abcde")
    gcs.faults.add("reset_after", kind="list", skip=2, times=1)
    assert [one.name for one in bucket.objects("d")] == [f"d/{name}" for name in "abcde"]
    gcs.faults.add("reset_before", kind="list", skip=1, times=1)
    gcs.faults.add("reset_after", kind="delete", times=2)
    bucket.remove("d")
    assert gcs.objects(gcs_bucket) == {}


# Trees


@pytest.mark.parametrize(
    "fault", [*PASSING, {"action": "partial"}, {"action": "partial", "keep": 0}], ids=label
)
@pytest.mark.parametrize("place", ["the first request", "the last chunk"])
def test_put_tree_outlasts_a_passing_fault(
    bucket: Bucket,
    gcs: Emulator,
    gcs_bucket: str,
    tree: tuple[Path, Sequence[FileEntry]],
    fault: dict[str, Any],
    place: str,
) -> None:
    directory, entries = tree
    strike = {"name": "large", "method": "PUT", "skip": 2} if place == "the last chunk" else {}
    if fault["action"] == "partial":
        strike = {"name": "large"}
    number = gcs.faults.add(kind="upload", times=1, **strike, **fault)
    bucket.put_tree(directory, "t", entries)
    assert gcs.faults.fired(number) == 1
    assert not directory.exists()
    gcs.faults.clear()
    assert {name: gcs.read(gcs_bucket, f"p/t/{name}") for name in ("small", "empty")}.keys() == {
        "small",
        "empty",
    }
    assert len(gcs.objects(gcs_bucket)) == 3
    assert are_intact(bucket.get_tree("t", entries), entries)


def test_a_broken_upload_goes_on_where_it_ended(
    bucket: Bucket,
    gcs: Emulator,
    tree: tuple[Path, Sequence[FileEntry]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second of three chunks is refused: the service is asked how much it has, and gets the
    rest."""
    directory, entries = tree
    ranges, put = [], gcs_upload._Upload._put

    def recorded(self: gcs_upload._Upload, body: Any, content_range: str, timeout: Any) -> Any:
        ranges.append(content_range.removeprefix("bytes "))
        return put(self, body, content_range, timeout)

    monkeypatch.setattr(gcs_upload._Upload, "_put", recorded)
    gcs.faults.add("status", code=503, method="PUT", skip=1, times=1)
    bucket.put_tree(directory, "t", entries[:1])
    second = "524288-1048575/1048577"
    assert ranges == ["0-524287/1048577", second, "*/1048577", second, "1048576-1048576/1048577"]


def test_an_upload_of_which_nothing_arrives_is_given_up(
    gcs: Emulator, gcs_bucket: str, tmp_path: Path, tree: tuple[Path, Sequence[FileEntry]]
) -> None:
    bucket = Bucket(gcs_bucket, "p", tmp_path / "cache", Settings(store_seconds=0.5))
    gcs.faults.add("partial", keep=0)
    with pytest.raises(ConnectionError, match="nothing of what was sent has arrived"):
        bucket.put_tree(tree[0], "t", tree[1])


def test_an_upload_that_the_service_forgot_begins_anew(
    bucket: Bucket, gcs: Emulator, tree: tuple[Path, Sequence[FileEntry]]
) -> None:
    directory, entries = tree
    gcs.faults.add("status", code=404, message="Not Found", method="PUT", skip=1, times=1)
    bucket.put_tree(directory, "t", entries[:1])
    assert gcs.requests() == {"POST upload": 2, "PUT upload": 5}
    assert bucket.check_tree("t", entries[:1]) == []


def test_a_failed_put_leaves_nothing(
    bucket: Bucket,
    gcs: Emulator,
    gcs_bucket: str,
    tree: tuple[Path, Sequence[FileEntry]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The last chunk of the large file is refused when the others are there already; clean-up
    outlasts a fault of its own."""
    directory, entries = tree
    gcs.faults.add("status", code=507, method="PUT", name="large", skip=2)
    gcs.faults.add("slow", method="PUT", delay=0.2)
    gcs.faults.add("status", code=503, kind="delete", times=2)
    with pytest.raises(InputError, match=r"full or over its quota .*exhausted"):
        bucket.put_tree(directory, "t", entries)
    assert gcs.objects(gcs_bucket) == {}
    assert are_intact(directory, entries)
    assert not caplog.records


def test_a_failure_ends_the_other_uploads(
    bucket: Bucket, gcs: Emulator, gcs_bucket: str, tmp_path: Path
) -> None:
    """The large file has sixteen chunks."""
    directory = tmp_path / "tree"
    directory.mkdir()
    for name, size in (("large", 8 * MB), ("refused", 1)):
        (directory / name).write_bytes(os.urandom(size))
    gcs.faults.add("slow", name="large", delay=0.1)
    gcs.faults.add("status", code=507, kind="upload", name="refused")
    with pytest.raises(InputError, match="quota"):
        bucket.put_tree(
            directory, "t", [file_entry(directory, name) for name in ("large", "refused")]
        )
    assert gcs.requests().get("PUT upload", 0) < 8
    assert gcs.objects(gcs_bucket) == {}


def test_what_a_failed_put_may_leave_is_told(
    bucket: Bucket,
    gcs: Emulator,
    tree: tuple[Path, Sequence[FileEntry]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    directory, entries = tree
    gcs.faults.add("status", code=507, method="PUT", name="large")
    gcs.faults.add("status", code=403, kind="delete")
    with pytest.raises(InputError, match="quota"):
        bucket.put_tree(directory, "t", entries)
    assert "files of a failed upload may be left there" in caplog.text


@pytest.mark.parametrize("fault", [*PASSING, *BROKEN_BODIES], ids=label)
def test_get_tree_outlasts_a_passing_fault(
    bucket: Bucket, gcs: Emulator, tree: tuple[Path, Sequence[FileEntry]], fault: dict[str, Any]
) -> None:
    """Only one slice is fetched again, except where its bytes were changed: the file's sha256
    tells, not which slice."""
    directory, entries = tree
    bucket.put_tree(directory, "t", entries)
    number = gcs.faults.add(kind="download", name="large", skip=2, times=1, **fault)
    gcs.forget_requests()
    assert are_intact(bucket.get_tree("t", entries), entries)
    assert gcs.faults.fired(number) == 1
    assert gcs.requests()["GET list"] == (2 if fault["action"] == "flip" else 1)


def test_a_storm(bucket: Bucket, gcs: Emulator, tree: tuple[Path, Sequence[FileEntry]]) -> None:
    """A third of all requests fails in one way or another, again and again."""
    directory, entries = tree
    gcs.faults.add("status", code=503, probability=0.1, seed=1)
    gcs.faults.add("reset_before", probability=0.1, seed=2)
    gcs.faults.add("reset_after", probability=0.1, seed=3)
    gcs.faults.add("truncate", probability=0.2, seed=4)
    gcs.faults.add("partial", probability=0.2, seed=5)
    gcs.faults.add("duplicate", probability=0.1, seed=6)
    for number in range(5):
        bucket.put_tree(directory, f"t/{number}", entries)
        assert bucket.check_tree(f"t/{number}", entries) == []
        directory = bucket.get_tree(f"t/{number}", entries)
        assert are_intact(directory, entries)


def test_a_listing_that_lags_behind_deceives_nobody(
    bucket: Bucket,
    gcs: Emulator,
    gcs_bucket: str,
    tree: tuple[Path, Sequence[FileEntry]],
    tmp_path: Path,
) -> None:
    """It lacks what has just come and shows what has just gone; one look corrects each. A file that
    has just gone is missed on reading."""
    directory, entries = tree
    bucket.put_tree(directory, "t", entries)
    gcs.faults.add("stale", changes=3)
    gcs.forget_requests()
    assert bucket.check_tree("t", entries) == []
    assert gcs.requests() == {"GET list": 1, "GET metadata": 3}
    assert are_intact(bucket.get_tree("t", entries), entries)
    gcs.faults.clear()
    bucket.write("t/extra", b"x")
    bucket.remove("t/extra")
    gcs.faults.add("stale", changes=1)
    assert bucket.check_tree("t", entries) == []
    gcs.delete(gcs_bucket, "p/t/small")
    bucket.cache = tmp_path / "elsewhere"
    with pytest.raises(Damaged, match="small: was removed"):
        bucket.get_tree("t", entries)


def test_one_generation_is_read(
    bucket: Bucket, gcs: Emulator, tree: tuple[Path, Sequence[FileEntry]], tmp_path: Path
) -> None:
    """The object is replaced by the same bytes while it is read: the second attempt reads the new
    generation alone."""
    directory, entries = tree
    content = (directory / "large").read_bytes()
    bucket.put_tree(directory, "t", entries)
    stored = Bucket.examine
    replaced = []

    def replace_after_the_listing(self: Bucket, *arguments: Any, **options: Any) -> Any:
        result = stored(self, *arguments, **options)
        if not replaced:
            replaced.append(True)
            bucket.write("t/large", content)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "examine", replace_after_the_listing)
        gcs.forget_requests()
        assert are_intact(bucket.get_tree("t", entries), entries)
    assert gcs.requests()["GET list"] == 2


# Outages


def test_an_outage_is_told_once_and_so_is_its_end(
    bucket: Bucket, gcs: Emulator, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight writers see it, one speaks. What passes within `OUTAGE_SECONDS` is not worth a word."""
    gcs.faults.add("status", code=503, times=3)
    bucket.write("x", b"")
    assert not caplog.records
    monkeypatch.setattr(gcs_requests, "OUTAGE_SECONDS", 0.05)
    for _ in range(2):
        gcs.faults.add("status", code=503)
        with ThreadPoolExecutor(8) as pool:
            writes = [pool.submit(bucket.write, f"x/{number}", b"") for number in range(8)]
            limit = time.monotonic() + 120
            while not caplog.records:
                assert time.monotonic() < limit
                time.sleep(0.01)
            gcs.faults.clear()
            for write in writes:
                write.result()
        begin, *again, end = caplog.records
        assert len(again) % 2 == 0  # one may have heard of the end before another has spoken
        assert (
            begin.message
            == f"{bucket.uri} does not answer (503 Service Unavailable); trying again for up to"
            " 60 s"
        )
        assert end.message.startswith(f"{bucket.uri} answers again after ")
        assert begin.levelno == end.levelno == logging.WARNING
        caplog.clear()


def test_patience_ends(
    gcs: Emulator, gcs_bucket: str, tmp_path: Path, tree: tuple[Path, Sequence[FileEntry]]
) -> None:
    bucket = Bucket(gcs_bucket, "p", tmp_path / "cache", Settings(store_seconds=0.5))
    directory, entries = tree
    gcs.faults.add("status", code=503)
    for action in (
        lambda: bucket.read("x"),
        lambda: bucket.create("x", b""),
        lambda: bucket.children("x"),
        lambda: bucket.remove("x"),
        lambda: bucket.put_tree(directory, "t", entries),
        lambda: bucket.check_tree("t", entries),
        lambda: bucket.get_tree("t", entries),
        bucket.prepare,
    ):
        started = time.monotonic()
        with pytest.raises(
            ConnectionError, match=r"did not answer for 0.5 s \(503 Service Unavailable\)"
        ):
            action()
        assert time.monotonic() - started < 30
    assert are_intact(directory, entries)


@pytest.mark.parametrize(
    "fault", [{"action": "status", "code": 503}, {"action": "slow", "delay": 30.0}], ids=label
)
def test_a_writer_may_have_less_patience(
    bucket: Bucket, gcs: Emulator, fault: dict[str, Any]
) -> None:
    gcs.faults.add(**fault)
    started = time.monotonic()
    with pytest.raises(OSError, match=r"did not answer for 0\.3 s"):
        bucket.write("x", b"", seconds=0.3)
    assert time.monotonic() - started < 20


def test_the_service_says_when_to_come_again(bucket: Bucket, gcs: Emulator) -> None:
    gcs.faults.add("status", code=429, retry_after=1, times=1)
    started = time.monotonic()
    bucket.write("x", b"")
    assert time.monotonic() - started > 1


def test_nobody_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(
        ConnectionError, match=r"gs://team-store/p did not answer for 0.3 s \(Connection refused\)"
    ):
        Bucket("team-store", "p", tmp_path, Settings(store_seconds=0.3)).require()


def test_the_secret_of_an_upload_is_not_told(
    gcs: Emulator,
    gcs_bucket: str,
    tmp_path: Path,
    tree: tuple[Path, Sequence[FileEntry]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The URL of a resumable upload lets anybody write: neither an outage nor a refusal may quote
    it."""
    bucket = Bucket(gcs_bucket, "p", tmp_path / "cache", Settings(store_seconds=0.5))
    caplog.set_level(logging.DEBUG, "lyceum")
    for fault in (
        {"action": "reset_before"},
        {"action": "slow", "delay": 5.0},
        {"action": "status", "code": 418},
    ):
        gcs.faults.clear()
        gcs.faults.add(method="PUT", **fault)
        with pytest.raises((ConnectionError, InputError)) as failed:
            bucket.put_tree(tree[0], "t", tree[1])
        assert "upload_id" not in f"{failed.value} {caplog.text}"


# What a person must put right


@pytest.mark.parametrize(
    ("fault", "parts"),
    [
        ({"code": 404}, ["there is no bucket", "gcloud storage buckets create gs://lyceum-test-"]),
        (
            {
                "code": 403,
                "message": (
                    "ada@example.com does not have storage.objects.create access to the Google"
                    " Cloud Storage object."
                ),
            },
            [
                "ada@example.com lacks the permission storage.objects.create",
                "--member=user:ada@example.com --role=roles/storage.objectAdmin",
            ],
        ),
        (
            {
                "code": 403,
                "message": (
                    "tpu@team.iam.gserviceaccount.com does not have storage.buckets.get access to"
                    " the bucket."
                ),
            },
            [
                "--member=serviceAccount:tpu@team.iam.gserviceaccount.com"
                " --role=roles/storage.bucketViewer"
            ],
        ),
        (
            {"code": 403},
            [
                "the account in use lacks a permission",
                "Permission denied",
                "--role=roles/storage.objectAdmin",
            ],
        ),
        (
            {"code": 403, "message": "Request had insufficient authentication scopes."},
            ["--scopes=cloud-platform"],
        ),
        (
            {"code": 401},
            ["no valid Google Cloud credentials", "gcloud auth application-default login"],
        ),
        ({"code": 400}, ["requester pays", "LYCEUM_BILLING_PROJECT=PROJECT"]),
        (
            {
                "code": 403,
                "message": (
                    "ada@example.com does not have serviceusage.services.use access to the Google"
                    " Cloud project."
                ),
            },
            ["LYCEUM_BILLING_PROJECT", "serviceUsageConsumer"],
        ),
        ({"code": 507}, ["full or over its quota", "lyceum gc"]),
        (
            {"code": 403, "message": "Quota exceeded for this bucket."},
            ["full or over its quota (Quota exceeded for this bucket.)"],
        ),
        (
            {
                "code": 403,
                "reason": "accountDisabled",
                "message": "The billing account for the owning project is disabled.",
            },
            ["billing is disabled for the project"],
        ),
        (
            {"code": 418, "reason": "odd", "message": "I am a teapot."},
            ["the service refuses the request (418: I am a teapot.)"],
        ),
    ],
    ids=lambda value: label(value)[:40] if isinstance(value, dict) else "",
)
def test_refusals_say_what_to_do(
    bucket: Bucket,
    gcs: Emulator,
    tree: tuple[Path, Sequence[FileEntry]],
    fault: dict[str, Any],
    parts: list[str],
) -> None:
    """At once, with the store's name, without a traceback's worth of URL, and from every kind of
    request."""
    directory, entries = tree
    gcs.faults.add("status", **fault)
    for action in (
        bucket.prepare,
        bucket.require,
        lambda: bucket.read("x"),
        lambda: bucket.write("x", b""),
        lambda: bucket.create("x", b""),
        lambda: bucket.children("x"),
        lambda: bucket.remove("x"),
        lambda: bucket.put_tree(directory, "t", entries),
        lambda: bucket.check_tree("t", entries),
        bucket.location,
    ):
        with pytest.raises(InputError) as refused:
            action()
        message = str(refused.value)
        for part in (f"store {bucket.uri}: ", *parts):
            assert part in message
        assert "http://" not in message
        assert "\n" not in message


def test_a_bucket_that_does_not_exist(
    gcs: Emulator, gcs_bucket: str, tmp_path: Path, tree: tuple[Path, Sequence[FileEntry]]
) -> None:
    """For every method, because `read` tells a missing object from a missing bucket."""
    bucket = Bucket("no-such-bucket", "p", tmp_path / "cache", Settings(store_seconds=5))
    for action in (
        bucket.prepare,
        bucket.require,
        bucket.location,
        lambda: bucket.read("x"),
        lambda: bucket.create("x", b""),
        lambda: bucket.set_aside("x", "y", b""),
        lambda: bucket.children("x"),
        lambda: bucket.remove("x"),
        lambda: bucket.put_tree(*tree[:1], "t", tree[1]),
        lambda: bucket.get_tree("t", tree[1]),
    ):
        with pytest.raises(InputError, match="there is no bucket no-such-bucket"):
            action()


def test_credentials_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="gcloud auth application-default login"):
        Bucket("team-store", "", tmp_path, Settings(store_seconds=1)).require()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RefreshError("('invalid_grant: Token has been expired or revoked.', ...)"), InputError),
        (RefreshError("the token endpoint answered 503", retryable=True), ConnectionError),
        (TransportError("no route to the token endpoint"), ConnectionError),
    ],
    ids=["expired", "asked again", "unreachable"],
)
def test_credentials_that_cannot_be_refreshed(
    bucket: Bucket, error: Exception, expected: type[Exception]
) -> None:
    def call(timeout: object) -> None:
        raise error

    with pytest.raises(expected) as failed:
        bucket.ask(call, seconds=0.1)
    assert ("gcloud auth application-default login" in str(failed.value)) == (
        expected is InputError
    )


def test_the_metadata_server_may_be_away_for_a_moment(bucket: Bucket) -> None:
    def call(timeout: object) -> None:
        raise RefreshError("from the metadata server") from TransportError("no answer")

    with pytest.raises(ConnectionError):
        bucket.ask(call, seconds=0.1)


def test_an_emulator_without_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9000")
    with pytest.raises(InputError, match="STORAGE_EMULATOR_HOST"):
        Bucket("team-store", "", tmp_path, Settings(store_seconds=1)).require()
