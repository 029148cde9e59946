"""Cores: those that this process is given, not those of the machine around it."""

import os
from pathlib import Path

import pytest

from infra import cores
from infra.settings import Settings


@pytest.mark.parametrize(
    ("texts", "usable"),
    [
        (["max 100000"], 64),
        (["200000 100000"], 2),
        (["150000 100000"], 2),
        (["10000 100000"], 1),
        (["9999900000 100000"], 64),
        (["-1", "100000"], 64),
        (["400000", "100000"], 4),
        ([], 64),
    ],
)
def test_a_container_has_the_cores_that_it_is_given(
    texts: list[str], usable: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [tmp_path / str(place) for place in range(max(1, len(texts)))]
    for file, text in zip(files, texts, strict=False):
        file.write_text(f"{text}\n", encoding="ascii")
    monkeypatch.setattr(cores, "QUOTAS", [files])
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(64))
    assert cores.usable_cores() == usable
    assert Settings(compile_cache="", cache="/x").parallel_jobs == max(1, usable // 2)
