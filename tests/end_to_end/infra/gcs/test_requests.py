"""A bucket when the service or the network does not answer, or refuses: patience, its end, and what
a person is told."""

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from google.auth.exceptions import RefreshError, TransportError

from infra.gcs import requests
from infra.gcs.bucket import Bucket
from infra.settings import Settings
from schemas.base import InputError
from tests.end_to_end.infra.gcs.trees import Tree, are_intact, label
from tests.fakes.gcs_emulator import Emulator
from tests.fakes.process import until


def every_request(bucket: Bucket, tree: Tree) -> list[Callable[[], object]]:
    """Every method that asks the service, with its kind of request."""
    directory, entries = tree()
    return [
        bucket.prepare,
        bucket.require,
        bucket.location,
        lambda: bucket.read("x"),
        lambda: bucket.write("x", b""),
        lambda: bucket.create("x", b""),
        lambda: bucket.children("x"),
        lambda: bucket.remove("x"),
        lambda: bucket.put_tree(directory, "t", entries),
        lambda: bucket.check_tree("t", entries),
        lambda: bucket.get_tree("t", entries),
    ]


@pytest.mark.parametrize("code", [408, 429, 500, 502, 504])
def test_what_may_pass_is_asked_again(bucket: Bucket, gcs: Emulator, code: int) -> None:
    gcs.faults.add("status", code=code, times=1)
    bucket.write("x", b"")


# Outages


def test_an_outage_is_told_once_and_so_is_its_end(bucket, gcs, caplog, monkeypatch):
    """Eight writers see it, one speaks. What passes within `OUTAGE_SECONDS` is not worth a word."""
    gcs.faults.add("status", code=503, times=3)
    bucket.write("x", b"")
    assert not caplog.records
    monkeypatch.setattr(requests, "OUTAGE_SECONDS", 0.05)
    for _ in range(2):
        gcs.faults.add("status", code=503)
        with ThreadPoolExecutor(8) as pool:
            writes = [pool.submit(bucket.write, f"x/{number}", b"") for number in range(8)]
            until(lambda: caplog.records)
            gcs.faults.clear()
            for write in writes:
                write.result()
        begin, *again, end = caplog.records
        assert len(again) % 2 == 0  # one may have heard of the end before another has spoken
        said = f"{bucket.uri} does not answer (503 Service Unavailable); trying again for up to"
        assert begin.message == f"{said} 60 s"
        assert end.message.startswith(f"{bucket.uri} answers again after ")
        assert begin.levelno == end.levelno == logging.WARNING
        caplog.clear()


def test_patience_ends(hasty: Bucket, gcs: Emulator, tree: Tree) -> None:
    gcs.faults.add("status", code=503)
    said = r"did not answer for 0.5 s \(503 Service Unavailable\)"
    for action in every_request(hasty, tree):
        started = time.monotonic()
        with pytest.raises(ConnectionError, match=said):
            action()
        assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    "fault", [{"action": "status", "code": 503}, {"action": "slow", "delay": 30.0}], ids=label
)
def test_a_writer_may_have_less_patience(bucket, gcs, fault):
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
    said = r"gs://team-store/p did not answer for 0.3 s \(Connection refused\)"
    with pytest.raises(ConnectionError, match=said):
        Bucket("team-store", "p", tmp_path, Settings(store_seconds=0.3)).require()


@pytest.mark.parametrize("action", ["reset_before", "slow", "status"])
def test_the_secret_of_an_upload_is_not_told(hasty, gcs, tree, caplog, action):
    """The URL of a resumable upload lets anybody write: neither an outage nor a refusal may quote
    it."""
    caplog.set_level(logging.DEBUG, "lyceum")
    more = {"slow": {"delay": 5.0}, "status": {"code": 418}}
    gcs.faults.add(action, method="PUT", **more.get(action, {}))
    directory, entries = tree()
    with pytest.raises((ConnectionError, InputError)) as failed:
        hasty.put_tree(directory, "t", entries)
    assert are_intact(directory, entries)
    assert "upload_id" not in f"{failed.value} {caplog.text}"


# What a person must put right


REFUSALS = """
404 |  | there is no bucket | gcloud storage buckets create gs://lyceum-test-
403 | ada@example.com does not have storage.objects.create access. | ada@example.com lacks
    | --member=user:ada@example.com --role=roles/storage.objectAdmin
403 | a@b.gserviceaccount.com does not have storage.buckets.get access
    | --member=serviceAccount:a@b.gserviceaccount.com --role=roles/storage.bucketViewer
403 |  | the account in use lacks | --role=roles/storage.objectAdmin
403 | Request had insufficient authentication scopes. | --scopes=cloud-platform
401 |  | no valid Google Cloud credentials | application-default login
400 |  | requester pays | LYCEUM_BILLING_PROJECT=PROJECT
403 | ada does not have serviceusage.services.use access to the project. | LYCEUM_BILLING_PROJECT
    | serviceUsageConsumer
507 |  | full or over its quota | lyceum gc
403 | Quota exceeded for this bucket. | full or over its quota
403 | The billing account is closed. | billing is disabled
403 | Object 'b/o' is subject to bucket's retention policy and cannot be deleted until 2027.
    | no role helps | a bucket without retention
403 | Request is prohibited by organization's policy. | no role helps
418 | I am a teapot. | refuses the request | I am a teapot
"""
"""Code, the service's own words, and parts of what a person is told."""


def test_refusals_say_what_to_do(bucket: Bucket, gcs: Emulator) -> None:
    """At once, on one line, with the store's name and without the request's URL."""
    lines = REFUSALS.replace("\n    |", " |").strip().splitlines()
    assert len(lines) == 14
    for line in lines:
        code, words, *parts = (part.strip() for part in line.split("|"))
        gcs.faults.clear()
        gcs.faults.add("status", code=int(code), message=words or None)
        with pytest.raises(InputError) as refused:
            bucket.write("x", b"")
        message = str(refused.value)
        assert [part for part in (f"store {bucket.uri}: ", *parts) if part not in message] == []
        assert "http://" not in message
        assert "\n" not in message


def test_every_request_may_be_refused(bucket: Bucket, gcs: Emulator, tree: Tree) -> None:
    gcs.faults.add("status", code=403)
    for action in every_request(bucket, tree):
        with pytest.raises(InputError, match=r"roles/storage\.objectAdmin"):
            action()


def test_a_bucket_that_does_not_exist(gcs_bucket: str, tmp_path: Path, tree: Tree) -> None:
    """For every method, because `read` tells a missing object from a missing bucket."""
    missing = Bucket("no-such-bucket", "p", tmp_path / "cache", Settings(store_seconds=5))
    for action in [*every_request(missing, tree), lambda: missing.set_aside("x", "y", b"")]:
        with pytest.raises(InputError, match="there is no bucket no-such-bucket"):
            action()


def test_credentials_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(InputError, match="gcloud auth application-default login"):
        Bucket("team-store", "", tmp_path, Settings(store_seconds=1)).require()


def refreshed_from_afar() -> Exception:
    error = RefreshError("from the metadata server")
    error.__cause__ = TransportError("no answer")
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RefreshError("('invalid_grant: Token has been expired or revoked.', ...)"), InputError),
        (RefreshError("the token endpoint answered 503", retryable=True), ConnectionError),
        (TransportError("no route to the token endpoint"), ConnectionError),
        (refreshed_from_afar(), ConnectionError),
    ],
    ids=["expired", "asked again", "unreachable", "metadata server"],
)
def test_credentials_that_cannot_be_refreshed(bucket, error, expected):
    def call(timeout: object) -> None:
        raise error

    with pytest.raises(expected) as failed:
        bucket.ask(call, seconds=0.1)
    advised = "gcloud auth application-default login" in str(failed.value)
    assert advised == (expected is InputError)


def test_an_emulator_without_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9000")
    with pytest.raises(InputError, match="STORAGE_EMULATOR_HOST"):
        Bucket("team-store", "", tmp_path, Settings(store_seconds=1)).require()
