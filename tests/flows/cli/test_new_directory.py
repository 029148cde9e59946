"""A directory that a command makes: where it ends up, and where none can be made."""

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


def test_a_mount_point_is_refused_before_the_work(tmp_path: Path, monkeypatch) -> None:
    """As `/out` of a container, which no other directory can replace."""
    monkeypatch.setattr("os.path.ismount", lambda path: True)
    with pytest.raises(InputError, match="is a mount point"), new_directory(tmp_path):
        raise AssertionError
