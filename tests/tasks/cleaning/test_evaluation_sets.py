"""Evaluation sets: read by a mapping, named in the stage key by their digests, and never half
read."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.base import InputError
from tasks.cleaning.evaluation_sets import EvaluationSet

EXAM = EvaluationSet.parse(
    {"name": "exam", "path": "exam*.jsonl", "prompt": {"template": "{question}[ ({unit})]"}}
)


def write(data: Path, name: str, *rows: object) -> None:
    data.mkdir(exist_ok=True)
    (data / name).write_text(
        "".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows)
    )


def test_items_are_named_by_file_and_line(tmp_path):
    far = {"question": "How far?", "unit": "m"}
    write(tmp_path, "exam1.jsonl", far, {"question": ""}, {"question": "Why?"})
    write(tmp_path, "exam2.jsonl", {"question": "Who?", "unit": None})
    found = EXAM.read(tmp_path)
    assert found.name == "exam"
    assert list(found.texts) == [
        ("exam1.jsonl:1", "How far? (m)"),
        ("exam1.jsonl:3", "Why?"),
        ("exam2.jsonl:1", "Who?"),
    ]


def test_a_file_that_changes_changes_the_stage_key(tmp_path):
    write(tmp_path, "exam.jsonl", {"question": "How far?", "unit": "m"})
    first = EXAM.dependencies(tmp_path)
    write(tmp_path, "exam.jsonl", {"question": "How near?", "unit": "m"})
    assert list(first) == ["data/exam.jsonl"] == list(EXAM.dependencies(tmp_path))
    assert first != EXAM.dependencies(tmp_path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": "a"}, "{broken\n"], "evaluation set exam: exam.jsonl, line 2: broken_row"),
        ([{"query": "a"}], "there is no column 'question'"),
        ([{"question": "", "unit": "m"}], r"exam\*.jsonl holds no prompt"),
    ],
)
def test_a_set_that_cannot_be_read_as_a_whole_is_an_error(tmp_path, rows, message):
    write(tmp_path, "exam.jsonl", *rows)
    with pytest.raises(InputError, match=message):
        EXAM.read(tmp_path)


def test_a_missing_set_is_found_before_anything_runs(tmp_path):
    write(tmp_path, "other.jsonl", {"question": "a"})
    with pytest.raises(InputError, match=r"has no file exam\*.jsonl"):
        EXAM.dependencies(tmp_path)
    with pytest.raises(InputError, match="--data DIR"):
        EXAM.dependencies(None)
    write(tmp_path, "exam1.jsonl", {"qestion": "a", "unit": "m"})
    with pytest.raises(InputError, match="Did you mean 'qestion'"):
        EXAM.dependencies(tmp_path)


def test_a_wrong_table_is_refused():
    for wrong in ({"name": ""}, {"path": "../exam.jsonl"}, {"prompt": []}):
        with pytest.raises(ValidationError):
            EvaluationSet.parse(
                {"name": "exam", "path": "exam.jsonl", "prompt": "question", **wrong}
            )
