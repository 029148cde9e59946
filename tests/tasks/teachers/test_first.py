"""`first`: no more of a source is read than that, over all of its files."""

import json
from pathlib import Path

import pytest

from infra.store.answers import Answers
from infra.store.store import open_store
from schemas.base import InputError
from schemas.examples import Example
from tasks.data.dropped import Dropped
from tasks.teachers.dataset import Config, teach
from tasks.teaching.lesson import Lesson


def taught(data: Path, **source: object) -> list[Example | Dropped]:
    table = {
        "path": "*.jsonl", "domain": "math", "prompt": "q", "reasoning": "r", "answer": "a",
        "max_bad_fraction": 0.9,
    }  # fmt: skip
    config = Config.parse({"name": "dataset", "sources": [table | source]})
    return list(teach(config, Lesson(0, data, Answers(open_store(data.parent / "store")))))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two files of three rows; the second has a line that is no JSON."""
    directory = tmp_path / "data"
    directory.mkdir()
    for name in "xy":
        rows = [{"q": f"{name}{i}?", "r": "because", "a": str(i)} for i in range(3)]
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with (directory / "y.jsonl").open("a") as file:
        file.write("no JSON\n")
    return directory


def test_rows_are_counted_over_all_files(data: Path) -> None:
    counts = {2: 2, 3: 3, 5: 5, 7: 7, 100: 7, None: 7}
    assert {first: len(taught(data, first=first)) for first in counts} == counts


def test_a_row_is_paired_as_in_the_whole_file(data: Path) -> None:
    """The second row's other one is the third, which is not among the first two."""
    (_, row) = taught(data, path="x.jsonl", first=2, other={"offset": 1}, prompt="other.q")
    assert isinstance(row, Example)
    assert row.prompt == "x2?"


def test_a_column_that_none_of_the_first_rows_has_is_missing(data: Path) -> None:
    with pytest.raises(InputError, match="no column 'b'"):
        taught(data, first=2, answer="b")


def test_a_column_of_rows_that_are_left_out_may_come_later(data: Path) -> None:
    (one,) = taught(data, first=1, answer="b", require=["b"])
    assert isinstance(one, Dropped)
    assert one.cause == "left_out"
