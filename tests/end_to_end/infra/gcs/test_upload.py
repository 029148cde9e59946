"""Trees on their way into a bucket: complete or not there at all, whatever breaks."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from infra.gcs.bucket import Bucket
from infra.store.objects import Damaged
from schemas.base import InputError
from tests.end_to_end.infra.gcs.trees import KB, MB, PASSING, Tree, are_intact, label
from tests.fakes.gcs_emulator import Emulator


def test_a_tree_goes_there_and_back(bucket, tree, gcs, gcs_bucket):
    directory, entries = tree()
    bucket.put_tree(directory, "data/1", entries)
    assert not directory.exists()
    names = {"p/data/1/large", "p/data/1/deep/er/small", "p/data/1/empty"}
    assert set(gcs.objects(gcs_bucket)) == names
    assert bucket.check_tree("data/1", entries) == []
    local = bucket.get_tree("data/1", entries)
    assert are_intact(local, entries)
    gcs.forget_requests()
    assert bucket.get_tree("data/1", entries) == local
    assert gcs.requests() == {}


def test_large_files_go_in_pieces(bucket: Bucket, tree: Tree, gcs: Emulator) -> None:
    """Chunks of 512 kB there, slices of 256 kB back."""
    directory, entries = tree(exact=1536 * KB, odd=1280 * KB + 1, small=100 * KB)
    bucket.put_tree(directory, "t", entries)
    assert gcs.requests() == {"POST upload": 3, "PUT upload": 3 + 3}
    gcs.forget_requests()
    assert are_intact(bucket.get_tree("t", entries), entries)
    assert gcs.requests() == {"GET list": 1, "GET download": 6 + 6 + 1}


@pytest.mark.parametrize(
    ("fault", "strike"),
    [
        *((fault, {}) for fault in PASSING),
        *((fault, {"name": "large", "method": "PUT", "skip": 2}) for fault in PASSING),
        ({"action": "partial"}, {"name": "large"}),
        ({"action": "partial", "keep": 0}, {"name": "large"}),
    ],
    ids=lambda value: label(value) or "the first request",
)
def test_put_tree_outlasts_a_passing_fault(bucket, gcs, gcs_bucket, tree, fault, strike):
    """It strikes the first request, or the last chunk of the large file."""
    directory, entries = tree()
    number = gcs.faults.add(kind="upload", times=1, **strike, **fault)
    bucket.put_tree(directory, "t", entries)
    assert gcs.faults.fired(number) == 1
    assert not directory.exists()
    gcs.faults.clear()
    assert len(gcs.objects(gcs_bucket)) == 3
    assert are_intact(bucket.get_tree("t", entries), entries)


@pytest.mark.parametrize(
    ("fault", "begun"), [({"code": 503}, 1), ({"code": 404, "message": "Not Found"}, 2)]
)
def test_a_broken_upload_goes_on_where_it_ended_and_one_that_was_forgotten_begins_anew(
    bucket: Bucket, gcs: Emulator, tree: Tree, fault: Any, begun: int
) -> None:
    """The second of three chunks is refused: the service is asked how much it has, and gets the
    rest. From the beginning it would take six requests."""
    directory, entries = tree()
    gcs.faults.add("status", method="PUT", skip=1, times=1, **fault)
    bucket.put_tree(directory, "t", entries[:1])
    assert gcs.requests() == {"POST upload": begun, "PUT upload": 5}
    assert bucket.check_tree("t", entries[:1]) == []


def test_an_upload_of_which_nothing_arrives_is_given_up(hasty, gcs, tree):
    gcs.faults.add("partial", keep=0)
    directory, entries = tree()
    with pytest.raises(ConnectionError, match="nothing of what was sent has arrived"):
        hasty.put_tree(directory, "t", entries)


def test_a_failed_put_leaves_nothing(bucket, gcs, gcs_bucket, tree, caplog):
    """The last chunk of the large file is refused when the others are there already; clean-up
    outlasts a fault of its own."""
    directory, entries = tree()
    gcs.faults.add("status", code=507, method="PUT", name="large", skip=2)
    gcs.faults.add("slow", method="PUT", delay=0.2)
    gcs.faults.add("status", code=503, kind="delete", times=2)
    with pytest.raises(InputError, match=r"full or over its quota .*exhausted"):
        bucket.put_tree(directory, "t", entries)
    assert gcs.objects(gcs_bucket) == {}
    assert are_intact(directory, entries)
    assert not caplog.records


def test_what_a_failed_put_may_leave_is_told(bucket, gcs, tree, caplog):
    directory, entries = tree()
    gcs.faults.add("status", code=507, method="PUT", name="large")
    gcs.faults.add("status", code=403, kind="delete")
    with pytest.raises(InputError, match="quota"):
        bucket.put_tree(directory, "t", entries)
    assert "may be left there" in caplog.text


def test_a_failure_ends_the_other_uploads(bucket, gcs, gcs_bucket, tree):
    """The large file has sixteen chunks."""
    directory, entries = tree(large=8 * MB, refused=1)
    gcs.faults.add("slow", name="large", delay=0.1)
    gcs.faults.add("status", code=507, kind="upload", name="refused")
    with pytest.raises(InputError, match="quota"):
        bucket.put_tree(directory, "t", entries)
    assert gcs.requests().get("PUT upload", 0) < 8
    assert gcs.objects(gcs_bucket) == {}


@pytest.mark.parametrize("size", [100, MB], ids=["small", "large"])
def test_nothing_is_put_over_another_file(bucket: Bucket, tree: Tree, size: int) -> None:
    directory, entries = tree(other=10, taken=size)
    bucket.write("t/taken", b"mine")
    with pytest.raises(InputError, match="is another file"):
        bucket.put_tree(directory, "t", entries)
    assert [(one.name, one.size) for one in bucket.objects("t")] == [("t/taken", 4)]
    assert directory.exists()


@pytest.mark.parametrize(("size", "attempts"), [(100, 1), (MB, 3)], ids=["small", "large"])
def test_a_file_that_changed_after_it_was_entered_is_not_stored(bucket, tree, gcs, size, attempts):
    """The service refuses to make an object of a large one, which might have been damaged on its
    way."""
    directory, entries = tree(file=size)
    (directory / "file").write_bytes(b"x" * size)
    with pytest.raises(Damaged, match="file: "):
        bucket.put_tree(directory, "t", entries)
    assert gcs.requests()["POST upload"] == attempts
    assert not list(bucket.objects("t"))


def test_a_tree_that_was_sent_is_there_whatever_becomes_of_its_directory(bucket, tree, monkeypatch):
    """NFS keeps files that are open in their directory, which cannot be removed then."""
    directory, entries = tree()
    real = os.rmdir

    def rmdir(path: str, **more: object) -> None:
        if Path(path).name == directory.name:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
        real(path, **more)

    monkeypatch.setattr(os, "rmdir", rmdir)
    bucket.put_tree(directory, "t", entries)
    assert bucket.check_tree("t", entries) == []
