"""A bucket is a place for objects: every method of the contract, against the fake of Cloud Storage,
whatever the service or the network does to single requests."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.cloud.storage.client import Client

from infra.gcs import bucket_objects, requests
from infra.gcs.bucket import Bucket
from infra.gcs.bucket_objects import crc32c
from infra.settings import Settings
from schemas.artifact import FileEntry
from schemas.base import InputError
from tests.end_to_end.infra.gcs.trees import BROKEN_BODIES, PASSING, Tree, label
from tests.fakes.gcs_emulator import Emulator


@pytest.mark.parametrize("same", [False, True], ids=["different bytes", "the same bytes"])
def test_of_sixteen_creators_one_wins_whatever_is_lost(bucket, gcs, same):
    gcs.faults.add("reset_after", kind="upload", probability=0.4, seed=1)
    gcs.faults.add("duplicate", kind="upload", probability=0.3, seed=2)
    gcs.faults.add("status", code=503, probability=0.3, seed=3)
    barrier = threading.Barrier(16)

    def race(number: int) -> bool:
        barrier.wait()
        return bucket.create("won", b"same" if same else b"%d" % number)

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(race, range(16)))
    assert won.count(True) == 1
    assert bucket.read("won") == (b"same" if same else b"%d" % won.index(True))


def test_the_bytes_of_others_are_no_victory(bucket: Bucket, gcs: Emulator) -> None:
    """Not even when they are ours, letter by letter, and our first request came to nothing."""
    bucket.write("x", b"same")
    gcs.faults.add("reset_before", kind="upload", times=1)
    assert not bucket.create("x", b"same")


@pytest.mark.parametrize("fault", PASSING, ids=label)
def test_every_method_outlasts_a_passing_fault(bucket, gcs, gcs_bucket, fault):
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
    # a request that was given up may be executed all the same, later
    assert len(left) == 1 or fault["action"] == "slow"


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
        patch.setattr(bucket_objects, "crc32c", damaged_and_replaced)
        assert bucket.read("lease.json") == b"new"


# Setting aside


def test_set_aside_renames_only_the_expected_bytes(bucket: Bucket, gcs: Emulator) -> None:
    """Also when the acknowledgement of the deletion is lost."""
    bucket.write("m.json", b"now")
    assert not bucket.set_aside("m.json", "m.old.json", b"before")
    assert not bucket.set_aside("gone.json", "m.old.json", b"now")
    assert bucket.read("m.old.json") is None
    gcs.faults.add("reset_after", kind="delete", times=1)
    assert bucket.set_aside("m.json", "m.old.json", b"now")
    assert (bucket.read("m.json"), bucket.read("m.old.json")) == (None, b"now")


def test_set_aside_never_removes_what_came_between_two_attempts(bucket, gcs):
    bucket.write("m.json", b"old")
    gcs.faults.add("status", code=503, kind="delete", times=1)
    delay = requests.random.uniform

    def replaced(low: float, high: float) -> float:
        patch.undo()
        bucket.write("m.json", b"new")
        return delay(low, high)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(requests.random, "uniform", replaced)
        assert not bucket.set_aside("m.json", "m.old.json", b"old")
    assert bucket.read("m.json") == b"new"


# Listing and removing


def test_children_and_objects(bucket: Bucket, gcs: Emulator) -> None:
    for name in ("a/x.json", "a/deep/y", "a/deep/z", "ab/no", "a/b+c=d@1.0-2"):
        bucket.write(name, b"12345")
    bucket.upload("p/a/.hidden", b"")
    bucket.upload("p/a/folder/", b"")
    assert bucket.children("a") == ["b+c=d@1.0-2", "deep", "folder", "x.json"]
    assert bucket.children("nothing") == []
    bucket.write("a/b+c=d@1.0-2", b"12345")
    gcs.forget_requests()
    found = list(bucket.objects("a"))
    assert [one.name for one in found] == ["a/b+c=d@1.0-2", "a/deep/y", "a/deep/z", "a/x.json"]
    assert {one.size for one in found} == {5}
    assert found[0].written >= found[1].written > 1.7e9, "when the bytes were written"
    assert gcs.requests() == {"GET list": 1}


def test_remove_takes_the_object_and_all_below_it_and_nothing_else(bucket, gcs, gcs_bucket):
    for name in ("r", "r/1", "r/2/3", "ra", "other/r"):
        bucket.write(name, b"")
    bucket.upload("p/r/.hidden", b"")
    bucket.remove("r")
    bucket.remove("r")
    assert set(gcs.objects(gcs_bucket)) == {"p/ra", "p/other/r"}


def test_more_objects_than_a_page_holds(bucket, gcs, gcs_bucket, monkeypatch):
    """The listing breaks between its pages, too, and is complete all the same."""
    two = functools.partialmethod(Client.list_blobs, page_size=2)
    monkeypatch.setattr(Client, "list_blobs", two)
    names = ["many/a", "many/b", "many/c/1", "many/c/2", "many/c/3", "many/d", "many/e"]
    for name in names:
        bucket.write(name, b"1")
    same = {"size": 1, "sha256": "", "crc32c": crc32c(b"1")}
    entries = [FileEntry(path=name.removeprefix("many/"), **same) for name in names]
    gcs.forget_requests()
    assert bucket.check_tree("many", entries) == []
    assert gcs.requests() == {"GET list": 4}
    gcs.faults.add("status", code=503, kind="list", skip=1, times=2)
    assert bucket.children("many") == ["a", "b", "c", "d", "e"]
    gcs.faults.add("reset_after", kind="list", skip=2, times=1)
    assert [one.name for one in bucket.objects("many")] == names
    gcs.faults.add("reset_before", kind="list", skip=1, times=1)
    gcs.faults.add("reset_after", kind="delete", times=2)
    bucket.remove("many")
    assert gcs.objects(gcs_bucket) == {}


@pytest.mark.parametrize("name", ["../x", "a//b", ".x", "gs://other/x"])
def test_names_that_leave_the_prefix_are_refused(bucket: Bucket, gcs: Emulator, name: str) -> None:
    more = {"write": [b""], "create": [b""], "set_aside": ["x", b""], "check_tree": [[]]}
    for method in ("read", "children", "objects", "remove", "get_tree", *more):
        with pytest.raises(InputError, match="is not allowed"):
            list(getattr(bucket, method)(name, *more.get(method, [[]] * (method == "get_tree"))))
    assert gcs.requests() == {}


# The bucket


def test_prepare_leaves_nothing_behind(bucket: Bucket, gcs: Emulator, gcs_bucket: str) -> None:
    bucket.prepare()
    assert gcs.requests() == {"POST upload": 1, "GET list": 1, "DELETE delete": 1}
    assert gcs.objects(gcs_bucket) == {}
    gcs.forget_requests()
    bucket.require()
    assert gcs.requests() == {"GET list": 1}


def test_names_of_buckets(tmp_path: Path) -> None:
    """The impossible ones are refused without a request."""
    for name in ("abc", "team-store_1", "models.example.com", "a" * 63):
        assert Bucket(name, "a/b", tmp_path, Settings()).uri == f"gs://{name}/a/b"
        assert Bucket(name, "", tmp_path, Settings()).uri == f"gs://{name}"
    wrong = ("Team", "ab", "a/b", "-ab", "a" * 64, "a..b")
    for name, prefix in [*((name, "") for name in wrong), ("team", "../x"), ("team", "a//b")]:
        with pytest.raises(InputError, match="store gs://"):
            Bucket(name, prefix, tmp_path, Settings())


def test_the_location_of_a_bucket(gcs: Emulator, gcs_bucket: str, tmp_path: Path) -> None:
    both = {"dataLocations": ["US-EAST1", "US-WEST1"]}
    dual = {"location": "US", "locationType": "dual-region", "customPlacementConfig": both}
    for expected, resource in {
        "EUROPE-WEST4": {"location": "europe-west4"},
        "US": {"location": "US"},
        "NAM4": {"location": "NAM4", "locationType": "dual-region"},
        "US-EAST1+US-WEST1": dual,
    }.items():
        name = gcs.create_bucket(f"{gcs_bucket}-{expected.lower().replace('+', '-')}", **resource)
        assert Bucket(name, "", tmp_path, Settings()).location() == expected


def test_who_pays_is_named(gcs: Emulator, gcs_bucket: str, tmp_path: Path, tree: Tree) -> None:
    """Every kind of request names the billing project; without one the message says which variable
    to set."""
    name = gcs.create_bucket(f"{gcs_bucket}-pays", billing={"requesterPays": True})
    with pytest.raises(InputError, match="LYCEUM_BILLING_PROJECT"):
        Bucket(name, "", tmp_path / "cache", Settings()).prepare()
    who = Settings(billing_project="we-pay", store_seconds=5)
    paying = Bucket(name, "", tmp_path / "cache", who)
    paying.prepare()
    paying.require()
    paying.create("a", b"")
    paying.set_aside("a", "b", b"")
    directory, entries = tree()
    paying.put_tree(directory, "t", entries)
    assert paying.check_tree("t", entries) == []
    paying.get_tree("t", entries)
    paying.remove("t")
    assert paying.location() == "US-CENTRAL1"
