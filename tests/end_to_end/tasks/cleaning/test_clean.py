"""Cleaning in several processes decides what one process decides."""

from itertools import pairwise

from tasks.cleaning.rules import COLUMNS
from tests.tasks.cleaning.cleaning_rows import TooLong, cleaned, corpus, write


def test_several_processes_decide_what_one_decides(tmp_path, monkeypatch):
    rows, items = corpus(1)
    files, long = write(rows, tmp_path / "rows", 3), (TooLong(300),)
    one = cleaned(files, tmp_path / "1", items, filters=long)
    done: list[tuple[int, int, str]] = []
    told = {"workers": 2, "progress": lambda *given: done.append(given)}
    two = cleaned(files, tmp_path / "2", items, filters=long, **told)
    assert two.digest() == one.digest()
    for name in COLUMNS:
        if name != "words":
            assert (getattr(two, name) == getattr(one, name)).all(), name
    assert [record.model_dump() for record in two.dropped()] == [
        record.model_dump() for record in one.dropped()
    ]
    size = sum(file.stat().st_size for file in files)
    assert done[-1] == (size, size, "bytes")
    assert all(before[0] < after[0] for before, after in pairwise(done))
