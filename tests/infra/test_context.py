"""One context per process: settings are read once, a store is opened once."""

from pathlib import Path

import pytest

from infra.context import context
from schemas.base import InputError


def test_everybody_gets_the_same_settings_until_the_environment_is_another(monkeypatch):
    monkeypatch.setenv("LYCEUM_TENSOR_PARALLEL", "2")
    first = context()
    assert context() is first
    monkeypatch.setenv("LYCEUM_TENSOR_PARALLEL", "4")
    assert (first.settings.tensor_parallel, context().settings.tensor_parallel) == (2, 4)


def test_a_store_is_opened_once_and_made_only_for_a_writer(tmp_path, monkeypatch):
    monkeypatch.setenv("LYCEUM_STORE", str(tmp_path / "store"))
    reader = context().store(write=False)
    assert not (tmp_path / "store").exists()
    writer = context().store()
    assert (tmp_path / "store").is_dir()
    assert reader.uri == writer.uri
    assert context().store(writer.uri) is context().store(tmp_path / "store", write=False) is writer
    with pytest.raises(InputError, match="the store is empty"):
        context().store("", write=False)


def test_a_store_that_could_not_be_written_is_tried_again(tmp_path: Path) -> None:
    place = tmp_path / "store"
    place.write_text("a file")
    with pytest.raises(InputError, match="is a file"):
        context().store(place)
    place.unlink()
    assert context().store(place).is_directory


def test_settings_of_tpus_are_read_by_those_who_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LYCEUM_TPU_TIER", "cheap")
    here = context()
    with pytest.raises(InputError, match="LYCEUM_TPU_TIER"):
        _ = here.tpu


def test_a_relative_path_is_one_of_the_current_directory(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert context().store(".lyceum").uri == (tmp_path / name / ".lyceum").as_uri()
    context().store(".")
    with pytest.raises(InputError, match="the store is empty"):
        context().store("")
