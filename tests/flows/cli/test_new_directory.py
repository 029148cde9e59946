"""A directory that a command makes: where it ends up, and where none can be made."""

import errno
import os
from pathlib import Path

import pytest

from flows.cli.new_directory import new_directory
from schemas.base import InputError


def test_what_is_made_is_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "to").symlink_to(tmp_path / "disk")
    with new_directory(tmp_path / "to") as partial:
        (partial / "file").touch()
    assert (tmp_path / "disk" / "file").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "to"]


def test_what_is_missing_elsewhere_is_not_said_of_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="weights"), new_directory(tmp_path / "to"):
        (tmp_path / "weights").read_bytes()
    with pytest.raises(InputError, match="to cannot be written"), new_directory(tmp_path / "to"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert not list(tmp_path.iterdir())


def test_a_mount_point_is_refused_before_the_work(tmp_path: Path, monkeypatch) -> None:
    """As `/out` of a container, which no other directory can replace."""
    monkeypatch.setattr("os.path.ismount", lambda path: True)
    with pytest.raises(InputError, match="is a mount point"), new_directory(tmp_path):
        raise AssertionError
