"""Trees on their way out of a bucket: what arrives is what was stored, and nothing is fetched
twice."""

import errno
import fcntl
import json
import os
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from infra.gcs import download
from infra.gcs.bucket import Bucket
from infra.settings import Settings
from infra.store.objects import Damaged
from schemas.artifact import FileEntry
from schemas.base import InputError
from tests.end_to_end.infra.gcs.trees import (
    BROKEN_BODIES,
    MB,
    PASSING,
    SLICE,
    Entries,
    Tree,
    are_intact,
    label,
)
from tests.fakes.gcs_emulator import Emulator
from tests.fakes.process import printed, python, until


def test_only_what_is_wanted_is_transferred(bucket: Bucket, tree: Tree, gcs: Emulator) -> None:
    directory, entries = tree()
    bucket.put_tree(directory, "t", entries)
    gcs.forget_requests()
    local = bucket.get_tree("t", entries, ["deep/er/small"])
    assert [path.name for path in local.iterdir()] == ["deep"]
    assert gcs.requests() == {"GET list": 1, "GET download": 1}


# What is wrong with a tree


def test_what_check_tree_finds(bucket: Bucket, tree: Tree, gcs: Emulator, gcs_bucket: str) -> None:
    directory, entries = tree(flipped=10, gone=10, short=10, good=10)
    bucket.put_tree(directory, "t", entries)
    gcs.corrupt(gcs_bucket, "p/t/flipped", recompute=True)
    gcs.delete(gcs_bucket, "p/t/gone")
    bucket.write("t/short", b"123")
    bucket.write("t/more", b"")
    bucket.upload("p/t/folder/", b"")
    bucket.upload("p/t/", b"")
    flipped, gone, *others = bucket.check_tree("t", entries)
    assert flipped.startswith("flipped: has crc32c ")
    assert gone == "gone: is missing"
    assert others == ["more: is not in the manifest", "short: has 3 bytes instead of 10"]
    with pytest.raises(Damaged) as damaged:
        bucket.get_tree("nowhere", entries)
    missing = sorted(f"{entry.path}: is missing" for entry in entries)
    assert sorted(damaged.value.problems) == bucket.check_tree("nowhere", entries) == missing


@pytest.mark.parametrize(
    "recompute", [False, True], ids=["rot behind the service's back", "another content"]
)
def test_wrong_bytes_never_arrive(bucket, tree, gcs, gcs_bucket, recompute):
    directory, entries = tree(good=100, bad=100)
    bucket.put_tree(directory, "t", entries)
    gcs.corrupt(gcs_bucket, "p/t/bad", recompute=recompute)
    with pytest.raises(Damaged, match=r"bad: has (sha256|crc32c)") as damaged:
        bucket.get_tree("t", entries)
    assert len(damaged.value.problems) == 1
    assert not [path for path in bucket.cache.rglob("*") if path.name.startswith("bad")]
    assert bucket.get_tree("t", entries, ["good"])


# Faults


@pytest.mark.parametrize("fault", [*PASSING, *BROKEN_BODIES], ids=label)
def test_get_tree_outlasts_a_passing_fault(bucket, gcs, tree, fault):
    """Only one slice is fetched again, except where its bytes were changed: the file's sha256
    tells, not which slice."""
    directory, entries = tree()
    bucket.put_tree(directory, "t", entries)
    number = gcs.faults.add(kind="download", name="large", skip=2, times=1, **fault)
    gcs.forget_requests()
    assert are_intact(bucket.get_tree("t", entries), entries)
    assert gcs.faults.fired(number) == 1
    assert gcs.requests().get("GET metadata", 0) == (fault["action"] == "flip")


def test_a_storm(bucket: Bucket, gcs: Emulator, tree: Tree) -> None:
    """A third of all requests fails in one way or another, again and again."""
    directory, entries = tree()
    storm = {"status": 0.1, "reset_before": 0.1, "reset_after": 0.1}
    storm |= {"truncate": 0.2, "partial": 0.2, "duplicate": 0.1}
    for seed, (action, probability) in enumerate(storm.items(), 1):
        gcs.faults.add(action, probability=probability, seed=seed)
    for number in range(5):
        bucket.put_tree(directory, f"t/{number}", entries)
        assert bucket.check_tree(f"t/{number}", entries) == []
        directory = bucket.get_tree(f"t/{number}", entries)
        assert are_intact(directory, entries)


def test_a_listing_that_lags_behind_deceives_nobody(bucket, gcs, gcs_bucket, tree, tmp_path):
    """It lacks what has just come and shows what has just gone, and of a file that was replaced by
    the same bytes the generation that is gone; one look corrects each. A file that has just gone is
    missed by the second look."""
    directory, entries = tree()
    content = (directory / "large").read_bytes()
    bucket.put_tree(directory, "t", entries)
    gcs.faults.add("stale", changes=3)
    gcs.forget_requests()
    assert bucket.check_tree("t", entries) == []
    assert gcs.requests() == {"GET list": 1, "GET metadata": 3}
    assert are_intact(bucket.get_tree("t", entries), entries)
    gcs.faults.clear()
    bucket.write("t/large", content)
    gcs.faults.add("stale", changes=1)
    bucket.cache = tmp_path / "another"
    assert are_intact(bucket.get_tree("t", entries), entries)
    gcs.faults.clear()
    bucket.write("t/extra", b"x")
    bucket.remove("t/extra")
    gcs.faults.add("stale", changes=1)
    assert bucket.check_tree("t", entries) == []
    gcs.delete(gcs_bucket, "p/t/deep/er/small")
    bucket.cache = tmp_path / "elsewhere"
    with pytest.raises(Damaged, match="small: is missing"):
        bucket.get_tree("t", entries)


def test_one_generation_is_read(bucket: Bucket, gcs: Emulator, tree: Tree) -> None:
    """The object is replaced by the same bytes while it is read: the second attempt reads the new
    generation alone."""
    directory, entries = tree()
    content = (directory / "large").read_bytes()
    bucket.put_tree(directory, "t", entries)
    examine, replaced = Bucket.examine, []

    def replace_after_the_listing(self: Bucket, *arguments: Any, **options: Any) -> Any:
        result = examine(self, *arguments, **options)
        if not replaced:
            replaced.append(True)
            bucket.write("t/large", content)
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bucket, "examine", replace_after_the_listing)
        gcs.forget_requests()
        assert are_intact(bucket.get_tree("t", entries), entries)
    assert gcs.requests()["GET list"] == 1


# Copies on this machine


@pytest.mark.parametrize(
    "damage", [b"", b"x" * 100, b"x" * 101], ids=["emptied", "changed", "longer"]
)
def test_a_damaged_copy_is_downloaded_again(bucket, tree, gcs, damage):
    directory, entries = tree(one=100, two=100)
    bucket.put_tree(directory, "t", entries)
    local = bucket.get_tree("t", entries)
    (local / "two").write_bytes(damage)
    gcs.forget_requests()
    assert are_intact(bucket.get_tree("t", entries), entries)
    assert gcs.requests() == {"GET list": 1, "GET download": 1}


def test_stores_do_not_share_copies(gcs, gcs_bucket, tmp_path, tree):
    other = gcs.create_bucket(f"{gcs_bucket}-a")
    places = [(gcs_bucket, "a"), (gcs_bucket, "a/b"), (gcs_bucket, ""), (other, "")]
    roots = set()
    for number, (name, prefix) in enumerate(places):
        bucket = Bucket(name, prefix, tmp_path / "cache", Settings(store_seconds=5))
        directory, entries = tree(f"tree-{number}", file=10)
        bucket.put_tree(directory, "b/t", entries)
        roots.add(bucket.get_tree("b/t", entries))
    assert len(roots) == len(places)
    assert not any(one.is_relative_to(other) for one in roots for other in roots if one != other)


def test_a_part_file_that_is_too_long_or_wrong_is_begun_anew(bucket: Bucket, tree: Tree) -> None:
    directory, entries = tree(long=100, wrong=100, complete=100)
    complete = (directory / "complete").read_bytes()
    bucket.put_tree(directory, "t", entries)
    (bucket.cache / "parts" / "t").mkdir(parents=True)
    for entry, data in zip(entries, (b"x" * 101, b"x" * 50, complete), strict=True):
        part_of(bucket, entry).write_bytes(data)
    assert are_intact(bucket.get_tree("t", entries), entries)


def test_a_cache_that_cannot_take_a_copy_is_explained(bucket, tree, monkeypatch):
    """A file is in its way; its file system has no locks, as Lustre often; its disk is full."""
    directory, entries = tree()
    bucket.put_tree(directory, "t", entries)
    bucket.cache.parent.mkdir(exist_ok=True)
    bucket.cache.write_bytes(b"a file is in the way")
    with pytest.raises(InputError, match="LYCEUM_CACHE"):
        bucket.get_tree("t", entries)
    bucket.cache.unlink()
    with monkeypatch.context() as patch:
        lockless = OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        patch.setattr(fcntl, "flock", Mock(side_effect=lockless))
        with pytest.raises(InputError, match=r"without locks.*LYCEUM_CACHE"):
            bucket.get_tree("t", entries)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(Path, "replace", Mock(side_effect=full))
    with pytest.raises(InputError, match=r"no space is left on its disk.*LYCEUM_CACHE"):
        bucket.get_tree("t", entries)


def part_of(bucket: Bucket, entry: FileEntry) -> Path:
    """Where a file of the tree `t` lies while it arrives."""
    return download.Receiver(bucket, "t", Path(), bucket.cache / "parts" / "t").part(entry)


# Processes

RECEIVE = """
import json, sys
from pathlib import Path
from infra.gcs import download
from infra.gcs.bucket import Bucket
from infra.settings import Settings
from schemas.artifact import FileEntry
name, cache, entries, slice, parallel = sys.argv[1:]
download.SLICE, download.PARALLEL = int(slice), int(parallel)
bucket = Bucket(name, "p", Path(cache), Settings(store_seconds=20))
print(bucket.get_tree("t", [FileEntry(**entry) for entry in json.loads(entries)]))
"""


def receive(bucket: Bucket, name: str, entries: Entries, parallel: int) -> subprocess.Popen[str]:
    """A process that gets the tree `t` of a bucket, and prints where it is."""
    given = json.dumps([entry.model_dump() for entry in entries])
    return python("-c", RECEIVE, name, bucket.cache.parent, given, SLICE, parallel)


def test_a_killed_download_is_continued(bucket, gcs, gcs_bucket, tree):
    """SIGKILL after two of five slices: the successor fetches the other three."""
    directory, entries = tree(large=5 * SLICE)
    bucket.put_tree(directory, "t", entries)
    gcs.faults.add("slow", kind="download", skip=2, delay=60.0)
    process = receive(bucket, gcs_bucket, entries, parallel=1)
    part = part_of(bucket, entries[0])
    until(lambda: part.exists() and part.stat().st_size == 2 * SLICE)
    process.kill()
    process.communicate()
    gcs.faults.clear()
    gcs.forget_requests()
    assert are_intact(bucket.get_tree("t", entries), entries)
    assert gcs.requests() == {"GET list": 1, "GET download": 3}


def test_processes_that_want_the_same_tree_download_it_once(bucket, gcs, gcs_bucket, tree):
    directory, entries = tree(large=2 * SLICE, small=10)
    bucket.put_tree(directory, "t", entries)
    gcs.faults.add("slow", kind="download", delay=1.0)
    gcs.forget_requests()
    both = [receive(bucket, gcs_bucket, entries, parallel=8) for _ in range(2)]
    (place,) = {process.communicate(timeout=60)[0].strip() for process in both}
    assert are_intact(Path(place), entries)
    assert gcs.requests()["GET download"] == 3


MEMORY = """
import json, sys
from pathlib import Path
from infra.gcs import download
from infra.store.local_objects import file_entry
from infra.gcs.bucket import Bucket
from infra.settings import Settings
name, directory, cache, slice = sys.argv[1:]
download.SLICE = int(slice)
bucket = Bucket(name, "", Path(cache), Settings())
bucket.prepare()
status = lambda: Path("/proc/self/status").read_text()
peak = lambda: int(status().partition("VmHWM:")[2].split()[0]) / 1024
before, entries = peak(), [file_entry(Path(directory), name) for name in ("large", "small")]
bucket.put_tree(Path(directory), "t", entries)
up = peak() - before
bucket.get_tree("t", entries)
print(json.dumps([up, peak() - before]))
"""


def test_memory_is_bounded(gcs_bucket: str, tmp_path: Path, tree: Tree) -> None:
    """A process that moves a file of 64 MB in slices of 1 MB grows by little more than the slices
    in flight."""
    directory, _ = tree(large=64 * MB, small=MB)
    up, both = json.loads(printed(MEMORY, gcs_bucket, directory, tmp_path / "cache", MB))
    assert up < 20
    assert both < 20 + 12
