"""The cache of this machine, which others use as well, and its disk."""

from pathlib import Path

import pytest

from infra.gcs import files
from infra.gcs.download import Receiver
from infra.settings import Settings
from infra.store.space import require_space, write_whole
from schemas.base import InputError, digest


def test_a_cache_that_cannot_be_made_says_which_variable_names_another(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="Not a directory; set LYCEUM_CACHE to a directory"):
        require_space(tmp_path / "file" / "cache", 1, "a model")


def test_nothing_stays_of_a_file_that_could_not_be_written(tmp_path: Path) -> None:
    write_whole(tmp_path / "cache" / "one", "größe")
    with pytest.raises(UnicodeEncodeError):
        write_whole(tmp_path / "cache" / "two", "half of a character: \ud800")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["one"]
    assert (tmp_path / "cache" / "one").read_text(encoding="utf-8") == "größe"


def test_a_stale_copy_may_be_cleared_away_by_another_process(tmp_path, monkeypatch) -> None:
    """Both had found it, and the slower one failed."""
    settings = Settings(cache=str(tmp_path), compile_cache="")
    copies = tmp_path / "models" / f"gs-{digest('gs://bucket/model')[:16]}"
    copies.mkdir(parents=True)
    (copies / "stale").touch()
    monkeypatch.setattr(files, "listing", lambda uri, settings: {})
    monkeypatch.setattr(Receiver, "receive", lambda receiver, entries: receiver._files)
    monkeypatch.setattr(Path, "is_file", lambda path: path.unlink() is None)
    assert files.fetch("gs://bucket/model", settings, list) == copies
