"""A bucket is a place for objects: every method of the contract, against the fake of Cloud Storage,
beside another client library."""

import errno
import functools
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from google.cloud.storage.client import Client

from infra.gcs import download as gcs_download
from infra.gcs import requests as gcs_requests
from infra.gcs import upload as gcs_upload
from infra.gcs.bucket import Bucket
from infra.gcs.objects import crc32c
from infra.settings import Settings
from infra.store.files import file_entry
from infra.store.objects import Damaged
from schemas.artifact import FileEntry
from schemas.base import InputError
from tests.fakes.gcs_emulator import ROOT, Emulator

MB = 1 << 20
NAMES = ("config.json", "deep/er/weights.bin", "empty")


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gcs_requests, "FIRST_DELAY", 0.01)


@pytest.fixture
def bucket(gcs_bucket: str, tmp_path: Path) -> Bucket:
    return Bucket(gcs_bucket, "team/lyceum", tmp_path / "cache", Settings(store_seconds=20))


Tree = Callable[..., tuple[Path, Sequence[FileEntry]]]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Makes a directory of files, by default three small ones; returns it and its entries."""

    def make(directory: str = "tree", **sizes: int) -> tuple[Path, Sequence[FileEntry]]:
        files = {name: os.urandom(size) for name, size in sizes.items()} or dict(
            zip(NAMES, (b"{}", os.urandom(5000), b""), strict=True)
        )
        for name, data in files.items():
            path = tmp_path / directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return tmp_path / directory, [file_entry(tmp_path / directory, name) for name in files]

    return make


def digests(directory: Path, entries: Sequence[FileEntry]) -> list[str]:
    return [hashlib.sha256((directory / entry.path).read_bytes()).hexdigest() for entry in entries]


# Single objects


def test_what_is_written_is_read(bucket: Bucket, gcs: Emulator, gcs_bucket: str) -> None:
    assert bucket.read("a/b.json") is None
    bucket.write("a/b.json", b"one")
    bucket.write("a/b.json", b"two")
    bucket.write("empty", b"")
    assert (bucket.read("a/b.json"), bucket.read("empty")) == (b"two", b"")
    assert gcs.objects(gcs_bucket) == {"team/lyceum/a/b.json": 3, "team/lyceum/empty": 0}


def test_create_wins_once_and_changes_nothing_after(bucket: Bucket) -> None:
    assert bucket.create("x", b"first")
    assert not bucket.create("x", b"second")
    assert not bucket.create("x", b"first")
    assert bucket.read("x") == b"first"


@pytest.mark.parametrize("same", [False, True], ids=["different bytes", "the same bytes"])
def test_of_sixteen_creators_one_wins(bucket: Bucket, same: bool) -> None:
    barrier = threading.Barrier(16)

    def race(number: int) -> bool:
        barrier.wait()
        return bucket.create("won", b"same" if same else b"%d" % number)

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(race, range(16)))
    assert won.count(True) == 1
    assert bucket.read("won") == (b"same" if same else b"%d" % won.index(True))


def test_set_aside_renames_only_the_expected_bytes(bucket: Bucket) -> None:
    bucket.write("m.json", b"now")
    assert not bucket.set_aside("m.json", "m.old.json", b"before")
    assert not bucket.set_aside("gone.json", "m.old.json", b"now")
    assert bucket.read("m.old.json") is None
    assert bucket.set_aside("m.json", "m.old.json", b"now")
    assert (bucket.read("m.json"), bucket.read("m.old.json")) == (None, b"now")


def test_set_aside_never_removes_what_came_meanwhile(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody replaces the object after it was read: the new one stays."""
    bucket.write("m.json", b"old")
    upload = Bucket.upload

    def replaced_first(self: Bucket, path: str, data: bytes, **options: Any) -> None:
        upload(self, path.replace("m.old", "m"), b"new")
        upload(self, path, data, **options)

    monkeypatch.setattr(Bucket, "upload", replaced_first)
    assert not bucket.set_aside("m.json", "m.old.json", b"old")
    assert bucket.read("m.json") == b"new"


def test_children_and_objects(bucket: Bucket, gcs: Emulator) -> None:
    for name in ("a/x.json", "a/deep/y", "a/deep/z", "ab/no", "a/b+c=d@1.0-2"):
        bucket.write(name, b"12345")
    bucket.upload("team/lyceum/a/.hidden", b"")
    bucket.upload("team/lyceum/a/folder/", b"")
    assert bucket.children("a") == ["b+c=d@1.0-2", "deep", "folder", "x.json"]
    assert bucket.children("nothing") == []
    gcs.forget_requests()
    found = list(bucket.objects("a"))
    assert [one.name for one in found] == ["a/b+c=d@1.0-2", "a/deep/y", "a/deep/z", "a/x.json"]
    assert {one.size for one in found} == {5}
    assert 0 <= found[-1].written - found[-1].written // 1 < 1
    assert gcs.requests() == {"GET list": 1}


def test_written_is_when_the_bytes_were_written(bucket: Bucket) -> None:
    bucket.write("w/1", b"a")
    bucket.write("w/2", b"b")
    bucket.write("w/1", b"c")
    first, second = bucket.objects("w")
    assert first.written >= second.written > 1.7e9


def test_remove_takes_the_object_and_all_below_it_and_nothing_else(bucket: Bucket) -> None:
    for name in ("r", "r/1", "r/2/3", "ra", "other/r"):
        bucket.write(name, b"")
    bucket.upload("team/lyceum/r/.hidden", b"")
    bucket.remove("r")
    bucket.remove("r")
    assert bucket.read("ra") == b""
    assert bucket.read("other/r") == b""
    assert not list(bucket.objects("r"))
    assert [bucket.read(name) for name in ("r", "r/1", "r/2/3")] == [None] * 3
    assert not any(".hidden" in blob.name for blobs, _ in bucket._pages("") for blob in blobs)


def test_more_objects_than_a_page_holds(
    bucket: Bucket, gcs: Emulator, gcs_bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Client, "list_blobs", functools.partialmethod(Client.list_blobs, page_size=2)
    )
    names = ["many/a", "many/b", "many/c/1", "many/c/2", "many/c/3", "many/d", "many/e"]
    for name in names:
        bucket.write(name, b"1")
    assert bucket.children("many") == ["a", "b", "c", "d", "e"]
    assert [one.name for one in bucket.objects("many")] == names
    entries = [
        FileEntry(path=name.removeprefix("many/"), size=1, sha256="", crc32c=crc32c(b"1"))
        for name in names
    ]
    gcs.forget_requests()
    assert bucket.check_tree("many", entries) == []
    assert gcs.requests() == {"GET list": 4}
    bucket.remove("many")
    assert gcs.objects(gcs_bucket) == {}


@pytest.mark.parametrize(
    "name", ["../x", "/x", "a//b", "", "a/../b", ".x", "a/", "x\n", "gs://other/x"]
)
def test_names_that_leave_the_prefix_are_refused(bucket: Bucket, gcs: Emulator, name: str) -> None:
    actions: list[Callable[[], object]] = [
        lambda: bucket.read(name),
        lambda: bucket.write(name, b""),
        lambda: bucket.create(name, b""),
        lambda: bucket.set_aside(name, "x", b""),
        lambda: bucket.children(name),
        lambda: list(bucket.objects(name)),
        lambda: bucket.remove(name),
        lambda: bucket.check_tree(name, []),
        lambda: bucket.get_tree(name, []),
    ]
    for action in actions:
        with pytest.raises(InputError, match="is not allowed"):
            action()
    assert gcs.requests() == {}


# The bucket


def test_prepare_leaves_nothing_behind(bucket: Bucket, gcs: Emulator, gcs_bucket: str) -> None:
    bucket.prepare()
    assert gcs.requests() == {"POST upload": 1, "GET list": 1, "DELETE delete": 1}
    assert gcs.objects(gcs_bucket) == {}
    gcs.forget_requests()
    bucket.require()
    assert gcs.requests() == {"GET list": 1}


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("Team", ""),
        ("ab", ""),
        ("a/b", ""),
        ("-ab", ""),
        ("a" * 64, ""),
        ("a..b", ""),
        ("team", "../x"),
        ("team", "a//b"),
    ],
)
def test_impossible_buckets_are_refused_without_a_request(
    tmp_path: Path, name: str, prefix: str
) -> None:
    with pytest.raises(InputError, match="store gs://"):
        Bucket(name, prefix, tmp_path, Settings())


@pytest.mark.parametrize("name", ["abc", "team-store_1", "models.example.com", "a" * 63])
def test_possible_buckets(tmp_path: Path, name: str) -> None:
    assert Bucket(name, "a/b", tmp_path, Settings()).uri == f"gs://{name}/a/b"
    assert Bucket(name, "", tmp_path, Settings()).uri == f"gs://{name}"


def test_the_location_of_a_bucket(gcs: Emulator, gcs_bucket: str, tmp_path: Path) -> None:
    for name, resource in {
        "region": {"location": "europe-west4"},
        "multi": {"location": "US"},
        "dual": {"location": "NAM4", "locationType": "dual-region"},
        "two": {
            "location": "US",
            "locationType": "dual-region",
            "customPlacementConfig": {"dataLocations": ["US-EAST1", "US-WEST1"]},
        },
    }.items():
        gcs._post("/storage/v1/b", {"name": f"{gcs_bucket}-{name}", **resource})
    found = [
        Bucket(f"{gcs_bucket}-{name}", "", tmp_path, Settings()).location()
        for name in ("region", "multi", "dual", "two")
    ]
    assert found == ["EUROPE-WEST4", "US", "NAM4", "US-EAST1+US-WEST1"]


def test_who_pays_is_named(gcs: Emulator, gcs_bucket: str, tmp_path: Path, tree: Tree) -> None:
    """Every kind of request names the billing project; without one the message says which variable
    to set."""
    name = gcs.create_bucket(f"{gcs_bucket}-pays", requester_pays=True)
    with pytest.raises(InputError, match="LYCEUM_BILLING_PROJECT"):
        Bucket(name, "", tmp_path / "cache", Settings()).prepare()
    paying = Bucket(
        name, "", tmp_path / "cache", Settings(billing_project="we-pay", store_seconds=5)
    )
    paying.prepare()
    paying.require()
    paying.create("a", b"")
    paying.set_aside("a", "b", b"")
    directory, entries = tree(small=10, large=5 * MB)
    paying.put_tree(directory, "t", entries)
    assert paying.check_tree("t", entries) == []
    paying.get_tree("t", entries)
    paying.remove("t")
    assert paying.location() == "US-CENTRAL1"


# Trees


def test_a_tree_goes_there_and_back(
    bucket: Bucket, tree: Tree, gcs: Emulator, gcs_bucket: str
) -> None:
    directory, entries = tree()
    expected = digests(directory, entries)
    bucket.put_tree(directory, "data/1", entries)
    assert not directory.exists()
    assert set(gcs.objects(gcs_bucket)) == {f"team/lyceum/data/1/{name}" for name in NAMES}
    assert bucket.check_tree("data/1", entries) == []
    local = bucket.get_tree("data/1", entries)
    assert digests(local, entries) == expected
    gcs.forget_requests()
    assert bucket.get_tree("data/1", entries) == local
    assert gcs.requests() == {}


def test_large_files_go_in_pieces(
    bucket: Bucket, tree: Tree, gcs: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_upload, "CHUNK", 2 * MB)
    monkeypatch.setattr(gcs_download, "SLICE", MB)
    directory, entries = tree(**{"exact": 6 * MB, "odd": 5 * MB + 1, "small": 4 * MB})
    expected = digests(directory, entries)
    bucket.put_tree(directory, "t", entries)
    assert gcs.requests() == {"POST upload": 3, "PUT upload": 6}
    gcs.forget_requests()
    assert digests(bucket.get_tree("t", entries), entries) == expected
    assert gcs.requests() == {"GET list": 1, "GET download": 6 + 6 + 4}


def test_a_tree_without_files(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    bucket.put_tree(tmp_path / "none", "t", [])
    assert bucket.check_tree("t", []) == []
    assert list(bucket.get_tree("t", []).iterdir()) == []


def test_only_what_is_wanted_is_transferred(bucket: Bucket, tree: Tree, gcs: Emulator) -> None:
    directory, entries = tree()
    bucket.put_tree(directory, "t", entries)
    gcs.forget_requests()
    local = bucket.get_tree("t", entries, ["config.json"])
    assert [path.name for path in local.iterdir()] == ["config.json"]
    assert gcs.requests() == {"GET list": 1, "GET download": 1}


@pytest.mark.parametrize("size", [100, 5 * MB], ids=["small", "large"])
def test_nothing_is_put_over_another_file(bucket: Bucket, tree: Tree, size: int) -> None:
    directory, entries = tree("tree", other=10, taken=size)
    bucket.write("t/taken", b"mine")
    with pytest.raises(InputError, match="is another file"):
        bucket.put_tree(directory, "t", entries)
    assert [(one.name, one.size) for one in bucket.objects("t")] == [("t/taken", 4)]
    assert directory.exists()


@pytest.mark.parametrize(("size", "attempts"), [(100, 1), (5 * MB, 3)], ids=["small", "large"])
def test_a_file_that_changed_after_it_was_entered_is_not_stored(
    bucket: Bucket, tree: Tree, gcs: Emulator, size: int, attempts: int
) -> None:
    """The service refuses to make an object of a large one, which might have been damaged on its
    way."""
    directory, entries = tree("tree", file=size)
    (directory / "file").write_bytes(b"x" * size)
    with pytest.raises(Damaged, match="file: "):
        bucket.put_tree(directory, "t", entries)
    assert gcs.requests()["POST upload"] == attempts
    assert not list(bucket.objects("t"))


def test_what_check_tree_finds(bucket: Bucket, tree: Tree, gcs: Emulator, gcs_bucket: str) -> None:
    directory, entries = tree("tree", flipped=10, gone=10, short=10, good=10)
    bucket.put_tree(directory, "t", entries)
    gcs.corrupt(gcs_bucket, "team/lyceum/t/flipped", recompute=True)
    gcs.delete(gcs_bucket, "team/lyceum/t/gone")
    bucket.write("t/short", b"123")
    bucket.write("t/more", b"")
    bucket.upload("team/lyceum/t/folder/", b"")
    bucket.upload("team/lyceum/t/", b"")
    flipped, gone, more, short = bucket.check_tree("t", entries)
    assert flipped.startswith("flipped: has crc32c ")
    assert (gone, more, short) == (
        "gone: is missing",
        "more: is not in the manifest",
        "short: has 3 bytes instead of 10",
    )


def test_a_tree_that_is_gone_is_damaged(bucket: Bucket, tree: Tree) -> None:
    _, entries = tree()
    assert bucket.check_tree("t", entries) == [f"{name}: is missing" for name in NAMES]
    with pytest.raises(Damaged) as damaged:
        bucket.get_tree("t", entries)
    assert damaged.value.problems == [f"{name}: is missing" for name in NAMES]


@pytest.mark.parametrize(
    "recompute", [False, True], ids=["rot behind the service's back", "another content"]
)
def test_wrong_bytes_never_arrive(
    bucket: Bucket, tree: Tree, gcs: Emulator, gcs_bucket: str, recompute: bool
) -> None:
    directory, entries = tree("tree", good=100, bad=100)
    bucket.put_tree(directory, "t", entries)
    gcs.corrupt(gcs_bucket, "team/lyceum/t/bad", recompute=recompute)
    with pytest.raises(Damaged, match=r"bad: has (sha256|crc32c)") as damaged:
        bucket.get_tree("t", entries)
    assert len(damaged.value.problems) == 1
    assert not list((bucket.cache / "trees/t").glob("bad*"))
    assert not list((bucket.cache / "parts/t").glob("*.part"))
    assert bucket.get_tree("t", entries, ["good"])


@pytest.mark.parametrize(
    "damage", [b"", b"x" * 100, b"x" * 101], ids=["emptied", "changed", "longer"]
)
def test_a_damaged_copy_is_downloaded_again(
    bucket: Bucket, tree: Tree, gcs: Emulator, damage: bytes
) -> None:
    directory, entries = tree("tree", one=100, two=100)
    expected = digests(directory, entries)
    bucket.put_tree(directory, "t", entries)
    local = bucket.get_tree("t", entries)
    (local / "two").write_bytes(damage)
    gcs.forget_requests()
    assert digests(bucket.get_tree("t", entries), entries) == expected
    assert gcs.requests() == {"GET list": 1, "GET download": 1}


def test_stores_do_not_share_copies(
    gcs: Emulator, gcs_bucket: str, tmp_path: Path, tree: Tree
) -> None:
    places = [
        (gcs_bucket, "a"),
        (gcs_bucket, "a/b"),
        (gcs_bucket, ""),
        (gcs.create_bucket(f"{gcs_bucket}-a"), ""),
    ]
    roots = set()
    for number, (name, prefix) in enumerate(places):
        bucket = Bucket(name, prefix, tmp_path / "cache", Settings(store_seconds=5))
        directory, entries = tree(f"tree-{number}", file=10)
        bucket.put_tree(directory, "b/t", entries)
        roots.add(bucket.get_tree("b/t", entries))
    assert len(roots) == len(places)
    assert not any(one.is_relative_to(other) for one in roots for other in roots if one != other)


def test_a_part_file_that_is_too_long_or_wrong_is_begun_anew(bucket: Bucket, tree: Tree) -> None:
    directory, entries = tree("tree", long=100, wrong=100, complete=100)
    contents = {entry.path: (directory / entry.path).read_bytes() for entry in entries}
    bucket.put_tree(directory, "t", entries)
    receiver = gcs_download.Receiver(bucket, bucket.cache, "t")
    receiver._parts.mkdir(parents=True)
    for entry, data in zip(entries, (b"x" * 101, b"x" * 50, contents["complete"]), strict=True):
        receiver._part(entry).write_bytes(data)
    local = bucket.get_tree("t", entries)
    assert {entry.path: (local / entry.path).read_bytes() for entry in entries} == contents


def test_a_cache_that_cannot_be_written_is_explained(bucket: Bucket, tree: Tree) -> None:
    directory, entries = tree()
    bucket.put_tree(directory, "t", entries)
    bucket.cache.parent.mkdir(exist_ok=True)
    bucket.cache.write_bytes(b"a file is in the way")
    with pytest.raises(InputError, match="LYCEUM_CACHE"):
        bucket.get_tree("t", entries)


def test_a_full_cache_disk_is_explained(
    bucket: Bucket, tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, entries = tree()
    bucket.put_tree(directory, "t", entries)

    def full(self: object, entry: FileEntry, slices: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(gcs_download.Receiver, "_assemble", full)
    with pytest.raises(InputError, match=r"no space is left on its disk.*LYCEUM_CACHE"):
        bucket.get_tree("t", entries)


# Two client libraries


def test_gcsfs_reads_and_writes_the_same_objects(
    bucket: Bucket, gcs_fs: Any, gcs_bucket: str, tmp_path: Path, tree: Tree
) -> None:
    root = f"{gcs_bucket}/team/lyceum"
    bucket.create("ours.json", b"ours")
    assert gcs_fs.cat_file(f"{root}/ours.json") == b"ours"
    with pytest.raises(FileExistsError):
        gcs_fs.pipe_file(f"{root}/ours.json", b"theirs", mode="create")
    gcs_fs.pipe_file(f"{root}/theirs.json", b"theirs")
    assert bucket.read("theirs.json") == b"theirs"
    assert not bucket.create("theirs.json", b"theirs")
    directory, entries = tree("theirs", small=10, large=9 * MB)
    expected = digests(directory, entries)
    gcs_fs.put(f"{directory}/", f"{root}/t/", recursive=True)
    assert bucket.check_tree("t", entries) == []
    assert digests(bucket.get_tree("t", entries), entries) == expected
    bucket.put_tree(directory, "u", entries)
    gcs_fs.get(f"{root}/u/", f"{tmp_path}/back/", recursive=True)
    assert digests(tmp_path / "back", entries) == expected
    assert bucket.children("t") == ["large", "small"]


# Processes


def run(script: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_importing_it_loads_no_client_library() -> None:
    loaded = (
        "sorted({'google.cloud.storage', 'google.auth', 'google.api_core', 'requests', 'urllib3',"
        " 'gcsfs'} & set(sys.modules))"
    )
    output, _ = run(f"import sys, infra.gcs.bucket; print({loaded})").communicate(timeout=60)
    assert output.strip() == "[]"


RECEIVE = """
import json, sys
from pathlib import Path
from infra.gcs import download as gcs_download
from infra.gcs.bucket import Bucket
from infra.settings import Settings
from schemas.artifact import FileEntry
name, cache, entries, gcs_download.PARALLEL = *sys.argv[1:4], int(sys.argv[4])
bucket = Bucket(name, "", Path(cache), Settings(store_seconds=20))
print(bucket.get_tree("t", [FileEntry(**entry) for entry in json.loads(entries)]))
"""


def receive(
    name: str, cache: Path, entries: Sequence[FileEntry], parallel: int = gcs_download.PARALLEL
) -> subprocess.Popen[str]:
    """A process that gets the tree `t` of a bucket, and prints where it is."""
    return run(
        RECEIVE,
        name,
        str(cache),
        json.dumps([entry.model_dump() for entry in entries]),
        str(parallel),
    )


def test_a_killed_download_is_continued(
    gcs: Emulator, gcs_bucket: str, tmp_path: Path, tree: Tree
) -> None:
    """SIGKILL after two of five slices: the successor fetches the other three."""
    bucket = Bucket(gcs_bucket, "", tmp_path / "cache", Settings(store_seconds=20))
    directory, entries = tree("tree", large=5 * gcs_download.SLICE)
    expected = digests(directory, entries)
    bucket.put_tree(directory, "t", entries)
    gcs.faults.add("slow", kind="download", skip=2, delay=60.0)
    process = receive(gcs_bucket, tmp_path / "cache", entries, parallel=1)
    part = gcs_download.Receiver(bucket, bucket.cache, "t")._part(entries[0])
    wait_until(lambda: part.exists() and part.stat().st_size == 2 * gcs_download.SLICE)
    process.kill()
    process.communicate()
    gcs.faults.clear()
    gcs.forget_requests()
    assert digests(bucket.get_tree("t", entries), entries) == expected
    assert gcs.requests() == {"GET list": 1, "GET download": 3}


def test_processes_that_want_the_same_tree_download_it_once(
    gcs: Emulator, gcs_bucket: str, tmp_path: Path, tree: Tree
) -> None:
    directory, entries = tree("tree", large=2 * gcs_download.SLICE, small=10)
    expected = digests(directory, entries)
    Bucket(gcs_bucket, "", tmp_path / "cache", Settings(store_seconds=20)).put_tree(
        directory, "t", entries
    )
    gcs.faults.add("slow", kind="download", delay=1.0)
    gcs.forget_requests()
    places = [
        process.communicate(timeout=60)[0].strip()
        for process in [receive(gcs_bucket, tmp_path / "cache", entries) for _ in range(2)]
    ]
    assert len(set(places)) == 1
    assert digests(Path(places[0]), entries) == expected
    assert gcs.requests()["GET download"] == 3


MEMORY = """
import json, sys
from pathlib import Path
from infra.gcs import download as gcs_download
from infra.store.files import file_entry
from infra.gcs.bucket import Bucket
from infra.settings import Settings
name, directory, cache, slice_mb = sys.argv[1:]
gcs_download.SLICE = int(slice_mb) << 20
bucket = Bucket(name, "", Path(cache), Settings())
bucket.prepare()
peak = lambda: int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1024
before, entries = peak(), [file_entry(Path(directory), "large"), file_entry(Path(directory), "small")]
bucket.put_tree(Path(directory), "t", entries)
up = peak() - before
bucket.get_tree("t", entries)
print(json.dumps([up, peak() - before]))
"""


def test_memory_is_bounded(gcs_bucket: str, tmp_path: Path) -> None:
    """A process that moves a file of 64 MB in slices of 1 MB grows by little more than the slices
    in flight."""
    directory = tmp_path / "tree"
    directory.mkdir()
    block = os.urandom(MB)
    (directory / "small").write_bytes(block)
    with (directory / "large").open("wb") as out:
        for _ in range(64):
            out.write(block)
    output, _ = run(MEMORY, gcs_bucket, str(directory), str(tmp_path / "cache"), "1").communicate(
        timeout=120
    )
    up, both = json.loads(output)
    assert up < 20
    assert both < 20 + 12


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
