"""Where a store can be: paths and URIs, and one clear message for a place that is a file, read-only
or full."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from infra.store.store import open_store
from schemas.base import InputError
from tests.infra.store.test_store import KEY, committed, draft, everything_below, output


def test_a_path_and_its_file_uri_are_one_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    odd = tmp_path / "a b%20ä"
    committed(open_store("a b%20ä"))
    for location in (
        odd,
        str(odd),
        odd.as_uri(),
        odd.as_uri().replace("file://", "file://localhost"),
    ):
        assert open_store(location).valid("sft", KEY) is not None
        assert open_store(location).uri == odd.as_uri()


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("s3://bucket/x", "scheme 's3' is not supported"),
        ("file://relative/x", "Write file:///relative/x instead"),
        ("", "--store"),
    ],
)
def test_an_impossible_location_is_named_with_the_fix(location, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        open_store(location)
    assert list(tmp_path.iterdir()) == []


def test_a_working_directory_that_was_removed_is_told(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InputError, match="store 'x': the working directory was removed; change"):
        open_store("x")


def test_a_store_that_is_a_file_or_below_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    for write in (True, False):
        with pytest.raises(InputError, match=r"file.* is a file, and a store is a directory"):
            open_store(file, write=write)
    with pytest.raises(InputError, match=r"a part of it, is a file"):
        open_store(file / "store")
    assert file.read_text() == "mine"


def test_looking_at_a_store_creates_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store", write=False)
    assert store.lookup("sft", KEY) is None
    assert store.valid("sft", KEY) is None
    assert list(store.artifacts()) == store.list_runs() == []
    assert not (tmp_path / "store").exists()


def refuse(error: int) -> Mock:
    return Mock(side_effect=OSError(error, os.strerror(error)))


@pytest.mark.parametrize(
    ("error", "message"),
    [(errno.EROFS, "Read-only file system"), (errno.ENOSPC, "no space is left")],
)
def test_a_store_that_cannot_be_written_is_refused_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, message: str
) -> None:
    monkeypatch.setattr(os, "fsync", refuse(error))
    with pytest.raises(InputError, match=rf"store file://.*{message}.*--store"):
        open_store(tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("failing", ["rename", "link", "fsync"])
def test_a_disk_that_fills_up_during_a_commit_leaves_nothing_of_it(store, monkeypatch, failing):
    out = output(store)
    with monkeypatch.context() as patched:
        if failing == "rename":
            patched.setattr(Path, "rename", refuse(errno.ENOSPC))
        else:
            patched.setattr(os, failing, refuse(errno.ENOSPC))
        with pytest.raises(InputError, match="no space is left"):
            store.commit(draft(), out)
    assert everything_below(store.path("artifacts")) == []


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, where mounting one is allowed (root)."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(place)]
    if (
        not Path("/bin/mount").exists()
        or subprocess.run(mount, capture_output=True, check=False).returncode
    ):
        pytest.skip("mounting a tmpfs is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_refused_when_the_store_is_opened(tmpfs: Path) -> None:
    with (tmpfs / "filler").open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(4096))
    with pytest.raises(InputError, match="no space is left"):
        open_store(tmpfs / "store")
    assert [path.name for path in tmpfs.iterdir()] == ["filler"]


def test_an_artifact_that_does_not_fit_another_disk_leaves_nothing_there(tmpfs, tmp_path):
    """The output is on another file system, so the move is a copy."""
    store, out = open_store(tmpfs / "store"), tmp_path / "out"
    out.mkdir()
    (out / "big").write_bytes(bytes(1 << 20))
    with pytest.raises(InputError, match="no space is left"):
        store.commit(draft(), out)
    assert everything_below(tmpfs) == []
    (out / "big").write_bytes(bytes(1 << 10))
    assert store.verify(store.commit(draft(), out)) == []
    assert not out.exists()


def test_a_read_only_disk_is_refused_for_writing_and_can_be_looked_at(tmpfs: Path) -> None:
    manifest = committed(open_store(tmpfs / "store"))
    subprocess.run(["mount", "-o", "remount,ro", str(tmpfs)], check=True)
    with pytest.raises(InputError, match="Read-only file system"):
        open_store(tmpfs / "store")
    assert open_store(tmpfs / "store", write=False).valid("sft", KEY) == manifest
