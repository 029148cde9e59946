"""A data file made to fill the memory or to take for ever is refused by its name; honest rows are
read, however alike."""

import gzip
import json
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from schemas.base import InputError
from tasks.data.readers import read_records
from tasks.data.records import MOST_LINE, Record


def refused(file: Path) -> str:
    began = time.process_time()
    with pytest.raises(InputError) as error:
        list(read_records(file.name, file))
    assert time.process_time() - began < 30, "it is about one"
    assert file.name in str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(("suffix", "piece"), [(".jsonl", b"\n"), (".json", b"["), (".csv", b"\0")])
def test_a_small_file_that_unpacks_to_640_mb_is_refused(tmp_path, suffix, piece):
    """40 gzip members of 16 MiB; 62 s of reading when lines were not counted."""
    member = gzip.compress(piece * (2**24 // len(piece)))
    file = tmp_path / f"bomb{suffix}.gz"
    file.write_bytes(member * 40)
    assert file.stat().st_size < 4_000_000
    refused(file)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_line_without_an_end_is_refused(tmp_path: Path, suffix: str) -> None:
    """A file with a hole of 50 GB takes no room on the disk."""
    file = tmp_path / f"hole{suffix}"
    with file.open("wb") as out:
        out.write(b'{"a": 1}\n' if suffix == ".jsonl" else b"a,b\n")
        out.truncate(50 * 10**9)
    assert "line 2: it has more than 16 MiB" in refused(file)


def test_a_parquet_file_of_rows_that_take_no_bytes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "nulls.parquet"
    pyarrow.parquet.write_table(
        pyarrow.table({"a": pyarrow.nulls(300_000_000, pyarrow.int8())}), file
    )
    assert "unpacks to more than 400 times its size" in refused(file)


def test_rows_that_are_long_or_alike_are_read(tmp_path: Path) -> None:
    long = {"text": "x" * (MOST_LINE - 100)}
    (tmp_path / "long.jsonl").write_text(json.dumps(long) + "\n", encoding="utf-8")
    (tmp_path / "alike.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 400_000))
    assert [
        one.row for one in read_records("l", tmp_path / "long.jsonl") if isinstance(one, Record)
    ] == [long]
    assert sum(1 for _ in read_records("a", tmp_path / "alike.jsonl.gz")) == 400_000
    file = tmp_path / "alike.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": ["the same text"] * 200_000}), file)
    assert sum(1 for _ in read_records("p", file)) == 200_000
