"""Files of every format, as the dataset teacher reads them; damaged files are one clear message."""

import csv
import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from schemas.base import InputError
from schemas.examples import Domain, Example
from tasks.data.mapping import lookup
from tasks.data.readers import most_records, read_records
from tasks.teachers import dataset
from tests.tasks.teachers.dataset_rows import MATH, ROWS, causes, config, lesson, teach, write


def _write_table(path: Path, delimiter: str, encoding: str = "utf-8", quoting: int = 0) -> None:
    with path.open("w", newline="", encoding=encoding) as out:
        table = csv.DictWriter(out, list(ROWS[0]), delimiter=delimiter, quoting=quoting)
        table.writeheader()
        table.writerows(ROWS)


def _write_parquet(path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(ROWS).to_parquet(str(path))


KEYED = {f"id{n}": row for n, row in enumerate(ROWS)}
FORMATS = {
    "rows.jsonl": lambda path: write(path, ROWS),
    "rows.jsonl.gz": lambda path: path.write_bytes(gzip.compress(write(path, ROWS).read_bytes())),
    "list.json": lambda path: path.write_text(json.dumps(ROWS, indent=2)),
    "keyed.json": lambda path: path.write_text(json.dumps(KEYED)),
    "rows.csv": lambda path: _write_table(path, ","),
    "rows.tsv": lambda path: _write_table(path, "\t"),
    "powershell.csv": lambda path: _write_table(path, ",", "utf-8-sig", csv.QUOTE_ALL),
    "rows.parquet": _write_parquet,
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_examples(tmp_path, name):
    FORMATS[name](tmp_path / name)
    rows = teach(tmp_path, {"path": name, **MATH, "check": "numeric", "difficulty": 2})
    read = [{"question": row.prompt, "steps": row.reasoning, "answer": row.answer} for row in rows]
    assert read == ROWS
    about = {(row.domain, row.check, row.difficulty, row.source, row.family) for row in rows}
    assert about == {(Domain.MATH, "numeric", 2, name, name.split(".")[0])}


def test_text_that_looks_like_a_number_or_a_date_stays_text(tmp_path):
    write(tmp_path / "a.csv", "question,steps,answer\nwhen?,007,2020-01-01\n")
    write(tmp_path / "a.jsonl", [{"question": "when?", "steps": "007", "answer": "2020-01-01"}])
    for name in ("a.csv", "a.jsonl"):
        (row,) = teach(tmp_path, {"path": name, **MATH})
        assert (row.reasoning, row.answer) == ("007", "2020-01-01")


def test_a_star_reads_all_matching_files_in_order_and_a_key_of_an_object_is_a_column(tmp_path):
    for name, rows in (("b", ROWS[5:]), ("a", ROWS[:5])):
        write(tmp_path / "sets" / f"{name}.jsonl", rows)
    read = teach(tmp_path, {"path": "sets/*.jsonl", **MATH})
    assert [row.answer for row in read] == [row["answer"] for row in ROWS]
    FORMATS["keyed.json"](tmp_path / "keyed.json")
    source = {"path": "keyed.json", **MATH, "prompt": {"template": "{key}: {question}"}}
    assert teach(tmp_path, source)[3].prompt == "id3: What is 3+3?"


def test_bad_rows_are_skipped_and_counted_with_file_line_and_cause(tmp_path):
    def changed(place: int, **columns: str) -> bytes:
        return json.dumps({**ROWS[place], **columns}).encode()

    lines = [
        *(changed(0), changed(1), b'{"question": "broken', b"", changed(3)),
        b'{"question": "\xff\xfe", "steps": "s", "answer": "1"}',
        *(b"[1, 2]", changed(6, answer="  "), changed(7, answer="many")),
        changed(8, steps="so <answer>16</answer>"),
        *(changed(9, question="long " * 100), changed(0, steps="half \ud800")),
        b'{"question": ' + b"1" * 5000 + b"}",
    ]
    write(tmp_path / "a.jsonl", b"\n".join(lines))
    limits = {"max_bad_fraction": 0.7, "max_too_long_fraction": 0.1}
    source = {"path": "a.jsonl", **MATH, "check": "numeric", **limits}
    rows = teach(tmp_path, source, max_prompt_characters=100)
    assert len(rows) == 12
    bad = ["wrong_encoding", "broken_row", "empty_answer", "not_numeric", "tag_in_trace"]
    bad += ["too_long", "wrong_encoding", "broken_row"]
    assert causes(rows) == [(3, "broken_row"), *enumerate(bad, start=6)]
    assert {row.file for row in rows if not isinstance(row, Example)} == {"a.jsonl"}


def test_a_csv_row_of_too_many_fields_or_a_wrong_byte_is_bad_and_quoted_lines_keep_the_count(
    tmp_path,
):
    text = b'question,steps,answer\n"two\nlines?",s,1\nx,s,2,extra\ny,\xff,3\nz,s,4\n'
    text += b"a document," + b"x" * 200_000 + b",5\n"
    write(tmp_path / "a.csv", text)
    limits = {"max_bad_fraction": 0.5, "max_too_long_fraction": 0.2}
    rows = teach(tmp_path, {"path": "a.csv", **MATH, **limits})
    assert [row.prompt for row in rows if isinstance(row, Example)] == ["two\nlines?", "z"]
    assert causes(rows) == [(4, "broken_row"), (5, "wrong_encoding"), (7, "too_long")]


def test_a_key_that_is_there_twice_makes_a_bad_row(tmp_path):
    """Else the last value would win, and the other be lost without a word."""
    write(tmp_path / "a.jsonl", b'{"question": "a?", "steps": "s", "answer": 1, "answer": 2}\n')
    with pytest.raises(InputError, match="line 1: broken_row: the key 'answer' is there twice"):
        teach(tmp_path, {"path": "a.jsonl", **MATH})


def test_records_of_a_json_list_are_counted_by_the_line_they_start_in(tmp_path):
    row = '{{"question": "a?", "steps": "{}", "answer": "1"}}'.format
    first, last = row("s"), row("")
    write(tmp_path / "a.json", f"[\n {first},\n\n 5,\n {last}\n]\n")
    rows = teach(tmp_path, {"path": "a.json", **MATH, "max_bad_fraction": 0.9})
    assert causes(rows) == [(4, "broken_row"), (5, "empty_reasoning")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"", "data file a.jsonl holds no rows"),
        ("a.jsonl", bytes(range(256)) * 40, "data file a.jsonl, line 1:"),
        ("a.jsonl.gz", b"no gzip", "data file a.jsonl.gz is no valid gzip file"),
        ("a.json", b'[{"question": "x"}, {"quest', "data file a.json, line 1, column "),
        ("a.json", b'{"question": "x"}\n{"question": "y"}', "not a JSON list of objects"),
        ("a.json", b'"text"', "not a JSON list of objects"),
        ("a.json", b'["\xff"]', "data file a.json, line 1: byte 0xff is not UTF-8"),
        ("a.csv", b'question,steps,answer\n"open,s,1\n', "data file a.csv, line 2: not valid CSV"),
        ("a.csv", b"question,steps,steps\n", "a.csv, line 1: two columns are called 'steps'"),
        ("a.csv", b"question;steps\n", "a.csv, line 1: ';' separates its columns; save it with"),
        ("a.csv", b"question,steps,answer\rq,s,1\r", "field. Check the quotes of that record (one"),
        ("a.csv", b'question,steps,answer\n"a "b" c",s,1\n', "a.csv, line 2: not valid CSV: ','"),
        ("a.json", b'[{"a": 1},\n {"q": {"b": 1, "b": 2}}]', "line 2, column 2: not a JSON list"),
        ("a.parquet", b"PAR1 junk", "data file a.parquet is no valid Parquet file"),
        ("a.txt", b"hello", "'a.txt' is no known format. Valid: .csv, .json, .jsonl, .parquet"),
    ],
)
def test_a_damaged_file_is_one_clear_message(tmp_path, name, content, message):
    write(tmp_path / name, content)
    with pytest.raises(InputError) as error:
        teach(tmp_path, {"path": name, **MATH})
    assert message in str(error.value)


def test_a_parquet_file_with_two_columns_of_one_name_is_refused(tmp_path):
    import pyarrow
    from pyarrow import parquet

    columns = [pyarrow.array([value]) for value in ("q", "s", "1", "2")]
    table = pyarrow.Table.from_arrays(columns, ["question", "steps", "answer", "answer"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(InputError, match=r"^data file a.parquet: two columns are called 'answer'"):
        teach(tmp_path, {"path": "a.parquet", **MATH})


def test_short_floats_and_maps_of_parquet_are_what_was_written(tmp_path):
    """3.14 in 32 bits is 3.140000104904175 in 64; an object's keys are columns, a map's too."""
    import pyarrow
    from pyarrow import parquet

    short, long = pyarrow.float32(), pyarrow.float64()
    inner = pyarrow.struct([("a", pyarrow.list_(pyarrow.float16())), ("b", long)])
    columns = {
        "f": pyarrow.array([3.14, None], short),
        "s": pyarrow.array([{"a": [np.float16(0.1)], "b": 0.1}, None], inner),
        "m": pyarrow.array([[("level", 0.1), ("x", None)], []], pyarrow.map_("string", short)),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    first, second = read_records("a", tmp_path / "a.parquet")
    assert first.row == {"f": 3.14, "s": {"a": [0.1], "b": 0.1}, "m": {"level": 0.1, "x": None}}
    assert second.row == {"f": None, "s": None, "m": {}}
    assert lookup(first.row, "m.level") == 0.1
    twice = pyarrow.array([[("x", 1.0), ("x", 2.0)]], pyarrow.map_("string", short))
    parquet.write_table(pyarrow.table({"m": twice}), tmp_path / "b.parquet")
    with pytest.raises(InputError, match="b is no valid Parquet file"):
        list(read_records("b", tmp_path / "b.parquet"))


def test_memory_does_not_grow_with_the_rows(tmp_path):
    """4,000 rows of 1 kB are 4 MB; a few are held, pairs included."""
    rows = (
        {"question": f"What is {n}?", "steps": "think " * 170, "answer": "1"} for n in range(4_000)
    )
    write(tmp_path / "a.jsonl", rows)
    paired = {"prompt": {"template": "{question} {other.question}"}, "other": {"offset": 100}}
    source = config({"path": "a.jsonl", **MATH, **paired})
    tracemalloc.start()
    count = sum(1 for _ in dataset.teach(source, lesson(tmp_path)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 4_000
    assert peak < 1.5e6, f"{peak / 1e6:.1f} MB"


@pytest.mark.parametrize(
    ("name", "content", "most"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": 2}', 2),
        ("a.jsonl", b'{"a": 1}\n{"a": 2}\n', 2),
        ("a.csv", b"question,answer\n1+1?,2\n", 1),
        ("a.tsv", b"question\tanswer\n", 0),
        ("a.csv", b"", 0),
        ("a.json", b"[]", None),
        ("a.jsonl.gz", b"", None),
        ("a.parquet", b"junk", None),
    ],
)
def test_the_rows_of_a_file_are_bounded_without_parsing_it(tmp_path, name, content, most):
    write(tmp_path / name, content)
    assert most_records(tmp_path / name) == most
