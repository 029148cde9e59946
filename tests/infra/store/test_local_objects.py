"""Directories of other kinds than a disk of this machine: network and exchange file systems, and
disks that begin to fail."""

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from infra.store.store import Store
from schemas.base import InputError
from tests.infra.store.test_store import KEY, committed, draft, output


def refusing(
    monkeypatch: pytest.MonkeyPatch, call: str, number: int, concerned: Callable[[Any], bool]
) -> None:
    """Let a call of the system end with an error where its first argument is `concerned`."""
    real = getattr(os, call)

    def refuse(what: Any, *rest: Any, **more: Any) -> Any:
        if concerned(what):
            raise OSError(number, os.strerror(number), str(what))
        return real(what, *rest, **more)

    monkeypatch.setattr(os, call, refuse)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_holds_a_store(store, monkeypatch, number) -> None:
    """As exFAT says it, Google Drive in Colab, and a bucket that is mounted."""
    refusing(monkeypatch, "link", number, lambda path: True)
    first = committed(store)
    assert store.commit(draft("2"), output(store, "2")) == first
    with ThreadPoolExecutor(8) as pool:
        made = pool.map(lambda number: store.create_bytes("runs/one", b"%d" % number), range(32))
        assert sum(made) == 1


def test_a_link_whose_answer_was_lost_counts_as_made(store: Store, monkeypatch) -> None:
    """NFS sends a request again when its answer was lost, and hears that the name is taken: by
    itself."""
    real = os.link

    def link(path: Path, target: Path) -> None:
        real(path, target)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))

    monkeypatch.setattr(os, "link", link)
    assert store.create_bytes("runs/one", b"1")
    monkeypatch.setattr(os, "link", real)
    assert not store.create_bytes("runs/one", b"2")


def test_directories_that_cannot_be_synced_are_not(store: Store, monkeypatch) -> None:
    """As SMB and some others say it; files are synced, or it is an error."""
    refusing(monkeypatch, "fsync", errno.EINVAL, lambda number: os.path.isdir(f"/dev/fd/{number}"))
    assert committed(store) == store.valid("sft", KEY)
    refusing(monkeypatch, "fsync", errno.EIO, lambda number: True)
    with pytest.raises(OSError, match="Input/output"):
        store.commit(draft("2", key="1" * 64), output(store, "2"))


def test_an_artifact_that_may_not_be_read_is_not_taken_for_a_damaged_one(store, monkeypatch):
    """Of a shared store's artifact nobody may say that its files are missing who may not look."""
    first = committed(store)
    deep = str(store.path(f"artifacts/sft/{KEY}/data/1/deep"))
    with monkeypatch.context() as patch:
        refusing(patch, "scandir", errno.EACCES, lambda path: str(path) == deep)
        with pytest.raises(InputError, match="deep: Permission denied"):
            store.valid("sft", KEY)
    with monkeypatch.context() as patch:
        refusing(patch, "scandir", errno.ESTALE, lambda path: str(path) == deep)
        with pytest.raises(OSError, match="Stale file handle"):
            store.valid("sft", KEY)
    assert store.valid("sft", KEY) == first


def test_files_of_an_unreadable_directory_are_not_left_out_of_an_artifact(store, monkeypatch):
    out = output(store)
    refusing(monkeypatch, "scandir", errno.EIO, lambda path: str(path) == str(out / "deep"))
    with pytest.raises(OSError, match="Input/output"):
        store.commit(draft(), out)
    assert store.lookup("sft", KEY) is None


@pytest.mark.parametrize("number", [errno.EIO, errno.EBADMSG, errno.ENOENT])
def test_a_file_that_the_disk_cannot_give_is_damage(store: Store, monkeypatch, number) -> None:
    """File systems with checksums answer so for a block that has rotted."""
    committed(store)
    real = Path.open

    def opened(path: Path, *rest: Any, **more: Any) -> Any:
        if path.name == "weights.bin":
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *rest, **more)

    said: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened)
        assert store.valid("sft", KEY, said.append) is None
    assert said == [f"deep/weights.bin: cannot be read ({os.strerror(number)})"]
    assert store.commit(draft("2"), output(store, "2")).attempt == "2"


@pytest.mark.parametrize(
    "name", [".DS_Store", "._model.json", ".nfs00000000a1b2c3d4", ".fuse_hidden0001"]
)
def test_what_the_system_leaves_beside_files_damages_nothing(store: Store, name: str) -> None:
    """A look by the Finder costs no training."""
    first = committed(store)
    store.path(f"artifacts/sft/{KEY}/data/1/deep").joinpath(name).write_bytes(b"x")
    assert store.valid("sft", KEY) == first


def test_an_artifact_of_others_is_never_away_while_an_old_one_is_set_aside(store, monkeypatch):
    """A process that is killed between two calls of the system would leave none."""
    first = committed(store)
    name = f"artifacts/sft/{KEY}/manifest.json"
    moved: list[str] = []
    refusing(monkeypatch, "rename", errno.EIO, lambda path: moved.append(str(path)) or False)
    assert not store._objects.set_aside(name, f"artifacts/sft/{KEY}/aside.json", b"the old one")
    assert (store.valid("sft", KEY), moved) == (first, [])


def test_an_output_on_another_disk_that_cannot_be_cleared_away_is_committed(store, monkeypatch):
    """`work/` may be a link to a scratch disk, and NFS keeps open files in their directory."""
    out = output(store)
    refusing(monkeypatch, "rename", errno.EXDEV, lambda path: Path(path) == out)
    refusing(monkeypatch, "rmdir", errno.ENOTEMPTY, lambda path: Path(path).name == "out")
    first = store.commit(draft(), out)
    assert store.valid("sft", KEY) == first
