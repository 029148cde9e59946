"""The dataset teacher: files of every format, the column mapping, bad rows with file and line,
damaged files."""

import csv
import gzip
import hashlib
import json
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from schemas.base import InputError
from schemas.examples import GROUNDED_REFUSAL, Constraint, Domain, Example, Prompt
from tasks.contract.teacher import TEACHERS
from tasks.data.dropped import Dropped
from tasks.teachers import dataset
from tasks.teaching.lesson import Cell, Lesson

MATH = {"domain": "math", "prompt": "question", "reasoning": "steps", "answer": "answer"}
ROWS = [
    {"question": f"What is {n}+{n}?", "steps": f"{n}+{n}={2 * n}", "answer": str(2 * n)}
    for n in range(10)
]


def config(*sources: dict, **settings) -> dataset.Config:
    return TEACHERS.parse(
        {"name": "dataset", "sources": list(sources), **settings},
        "stages.distill.config.teachers.0",
    )


def teach(data: Path, *sources: dict, **settings) -> list[Example | Dropped]:
    return list(
        dataset.teach(config(*sources, **settings), Lesson(seed=0, data=data, answers=None))
    )


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def jsonl(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# Formats


def _write_table(path: Path, delimiter: str) -> None:
    with path.open("w", newline="") as out:
        table = csv.DictWriter(out, list(ROWS[0]), delimiter=delimiter)
        table.writeheader()
        table.writerows(ROWS)


def _write_parquet(path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(ROWS).to_parquet(str(path))


FORMATS = {
    "rows.jsonl": lambda path: path.write_text(jsonl(ROWS)),
    "rows.jsonl.gz": lambda path: path.write_bytes(gzip.compress(jsonl(ROWS).encode())),
    "list.json": lambda path: path.write_text(json.dumps(ROWS, indent=2)),
    "keyed.json": lambda path: path.write_text(
        json.dumps({f"id{n}": row for n, row in enumerate(ROWS)})
    ),
    "rows.csv": lambda path: _write_table(path, ","),
    "rows.tsv": lambda path: _write_table(path, "\t"),
    "rows.parquet": _write_parquet,
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_examples(tmp_path, name):
    FORMATS[name](tmp_path / name)
    rows = teach(tmp_path, {"path": name, **MATH, "check": "numeric", "difficulty": 2})
    assert [(row.prompt, row.reasoning, row.answer) for row in rows] == [
        (r["question"], r["steps"], r["answer"]) for r in ROWS
    ]
    assert {(row.domain, row.check, row.difficulty, row.source, row.family) for row in rows} == {
        (Domain.MATH, "numeric", 2, name, name.split(".")[0])
    }


def test_text_that_looks_like_a_number_or_a_date_stays_text(tmp_path):
    write(tmp_path / "a.csv", "question,steps,answer\nwhen?,007,2020-01-01\n")
    write(
        tmp_path / "a.jsonl", jsonl([{"question": "when?", "steps": "007", "answer": "2020-01-01"}])
    )
    for name in ("a.csv", "a.jsonl"):
        (row,) = teach(tmp_path, {"path": name, **MATH})
        assert (row.reasoning, row.answer) == ("007", "2020-01-01")


def test_the_key_of_a_keyed_json_object_is_a_column(tmp_path):
    FORMATS["keyed.json"](tmp_path / "keyed.json")
    rows = teach(
        tmp_path, {"path": "keyed.json", **MATH, "prompt": {"template": "{key}: {question}"}}
    )
    assert rows[3].prompt == "id3: What is 3+3?"


def test_a_star_in_the_path_reads_all_matching_files_in_order(tmp_path):
    for name, rows in (("b", ROWS[5:]), ("a", ROWS[:5])):
        write(tmp_path / "sets" / f"{name}.jsonl", jsonl(rows))
    assert [row.answer for row in teach(tmp_path, {"path": "sets/*.jsonl", **MATH})] == [
        row["answer"] for row in ROWS
    ]


# Mapping


def test_markers_split_a_column_and_a_row_without_the_marker_is_dropped(tmp_path):
    rows = [{"q": "1+1?", "a": "one and one\n#### 2"}, {"q": "2+2?", "a": "no marker"}]
    write(tmp_path / "a.jsonl", jsonl(rows))
    mapping = {
        "prompt": "q",
        "reasoning": {"column": "a", "before": "####"},
        "answer": {"column": "a", "after": "####"},
    }
    good, bad = teach(
        tmp_path, {"path": "a.jsonl", "domain": "math", **mapping, "max_bad_fraction": 0.5}
    )
    assert (good.reasoning, good.answer) == ("one and one", "2")
    assert (bad.cause, bad.file, bad.line) == ("empty_reasoning", "a.jsonl", 2)


def test_templates_drop_an_optional_part_whose_column_is_empty_and_leave_braces_in_values_alone(
    tmp_path,
):
    rows = [
        {"q": "How long is \\frac{1}{2}?", "unit": "", "a": "1"},
        {"q": "How far?", "unit": "\\mathrm{km} [x]", "a": "2"},
    ]
    write(tmp_path / "a.jsonl", jsonl(rows))
    mapping = {
        "prompt": {"template": "{q}[ Answer in {unit}.]"},
        "reasoning": {"template": "think"},
        "answer": "a",
    }
    first, second = teach(tmp_path, {"path": "a.jsonl", "domain": "science", **mapping})
    assert first.prompt == "How long is \\frac{1}{2}?"
    assert second.prompt == "How far? Answer in \\mathrm{km} [x]."


def test_paths_walk_into_lists_and_objects_and_lists_are_joined_or_selected(tmp_path):
    row = {
        "turns": ["first?", "second?"],
        "instances": [{"output": "yes"}],
        "source": ["A.", "B.", "C."],
        "labels": [0, 1, 1],
    }
    write(tmp_path / "a.jsonl", jsonl([row]))
    texts = {
        "prompt": {"template": "{turns.0} {source}"},
        "reasoning": {"column": "source", "where": "labels"},
    }
    (example,) = teach(
        tmp_path, {"path": "a.jsonl", "domain": "general", **texts, "answer": "instances.0.output"}
    )
    assert (example.prompt, example.reasoning, example.answer) == (
        "first? A. B. C.",
        "B. C.",
        "yes",
    )


def test_alternatives_give_the_first_that_is_not_empty(tmp_path):
    write(
        tmp_path / "a.jsonl",
        jsonl(
            [
                {"q": "1?", "sol": "worked", "a": "1"},
                {"q": "2?", "sol": " ", "a": "2"},
                {"q": "3?", "a": "3"},
            ]
        ),
    )
    mapping = {
        "prompt": "q",
        "reasoning": ["sol", {"template": "The answer is {a}."}],
        "answer": "a",
    }
    rows = teach(tmp_path, {"path": "a.jsonl", "domain": "math", **mapping})
    assert [row.reasoning for row in rows] == ["worked", "The answer is 2.", "The answer is 3."]


def test_domain_and_difficulty_can_come_from_columns(tmp_path):
    write(
        tmp_path / "a.jsonl",
        jsonl([{**ROWS[0], "kind": "stem", "level": 3}, {**ROWS[1], "kind": "art", "level": 3}]),
    )
    by_row = {
        "domain": {"column": "kind", "table": {"stem": "science", "writing": "creative"}},
        "difficulty": {"column": "level", "table": {"3": 4}},
    }
    good, bad = teach(tmp_path, {"path": "a.jsonl", **MATH, **by_row, "max_bad_fraction": 0.5})
    assert (good.domain, good.difficulty) == (Domain.SCIENCE, 4)
    assert bad.cause == "unmapped_value"
    assert "kind = 'art' is not in the table (stem, writing)" in bad.detail


def test_required_columns_leave_rows_out_without_counting_them_as_bad(tmp_path):
    write(
        tmp_path / "a.jsonl",
        jsonl([{**row, "reference": ["x"] if n < 2 else None} for n, row in enumerate(ROWS)]),
    )
    rows = teach(
        tmp_path, {"path": "a.jsonl", **MATH, "require": ["reference.0"], "max_bad_fraction": 0.0}
    )
    assert Counter(row.cause if isinstance(row, Dropped) else "kept" for row in rows) == {
        "kept": 2,
        "left_out": 8,
    }


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (
            {"prompt": "qestion"},
            (
                "a.jsonl, prompt: there is no column 'qestion'. Did you mean 'question'? Valid:"
                " answer, question, steps."
            ),
        ),
        ({"reasoning": {"template": "{steps} {more}"}}, "reasoning: there is no column 'more'"),
        (
            {"reasoning": ["solution", {"template": "{x}"}]},
            "reasoning: there is no column 'solution'",
        ),
        ({"require": ["reference"]}, "require: there is no column 'reference'"),
        (
            {"domain": {"column": "kind", "table": {"a": "math"}}},
            "domain: there is no column 'kind'",
        ),
    ],
)
def test_an_unknown_column_is_named_with_the_columns_there_are(tmp_path, mapping, message):
    write(tmp_path / "a.jsonl", jsonl(ROWS))
    with pytest.raises(InputError) as error:
        teach(tmp_path, {"path": "a.jsonl", **MATH, **mapping})
    assert message in str(error.value)


def test_an_unknown_nested_column_is_named_with_those_beside_it(tmp_path):
    write(tmp_path / "a.jsonl", jsonl([{**ROWS[0], "instances": [{"input": "", "output": "x"}]}]))
    with pytest.raises(
        InputError, match=r"'instances.0.outptu'. Did you mean 'instances.0.output'\?"
    ):
        teach(tmp_path, {"path": "a.jsonl", **MATH, "answer": "instances.0.outptu"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"domain": "maths"}, "Input should be 'math'"),
        (
            {"check": "numerical"},
            (
                "unknown check 'numerical'. Did you mean 'numeric'? Valid: choice, constraints,"
                " exact, faithful, math, none"
            ),
        ),
        ({"prompt": {"template": "{question"}}, "has a brace without its partner"),
        ({"prompt": {"column": "question", "template": "x"}}, "give either a column or a template"),
        ({"prompt": []}, "an empty list names no column"),
        (
            {"answer": None, "check": "numeric"},
            "answer is missing: check = 'numeric' compares with it",
        ),
        ({"check": "tests"}, "tests and check = 'tests' belong together"),
        (
            {"constraints": [{"name": "max_words", "value": 9}]},
            "constraints and check = 'constraints' or 'plan' belong together",
        ),
        ({"code_prefix": "question"}, "code_prefix is for check = 'tests' only"),
        ({"tolerance": 0.01}, "tolerance is for check = 'numeric' and 'quantity' only"),
        (
            {"grounding": "unanswerable", "context": "question"},
            f"always {GROUNDED_REFUSAL!r}: leave answer out",
        ),
        ({"grounding": "answerable"}, "sets both grounding and context"),
        ({"path": "../secrets.jsonl"}, "relative to the --data directory"),
        ({"path": "/etc/passwd"}, "relative to the --data directory"),
        ({"colour": "red"}, "unknown key"),
    ],
)
def test_a_wrong_mapping_is_refused_before_any_file_is_read(change, message):
    with pytest.raises(InputError) as error:
        config({"path": "a.jsonl", **MATH, **change})
    assert message in str(error.value)
    assert "stages.distill.config.teachers.0" in str(error.value)


# Bad rows


def test_bad_rows_are_skipped_and_counted_with_file_line_and_cause(tmp_path):
    lines = [json.dumps(row).encode() for row in ROWS]
    lines[2] = b'{"question": "broken'
    lines[4] = b'{"question": "\xff\xfe", "steps": "s", "answer": "1"}'
    lines[5] = b"[1, 2]"
    lines[6] = json.dumps({**ROWS[6], "answer": "  "}).encode()
    lines[7] = json.dumps({**ROWS[7], "answer": "many"}).encode()
    lines[8] = json.dumps({**ROWS[8], "steps": "so <answer>16</answer>"}).encode()
    lines[9] = json.dumps({**ROWS[9], "question": "long " * 100}).encode()
    lines += [
        json.dumps({**ROWS[0], "steps": "half \ud800"}).encode(),
        b'{"question": ' + b"1" * 5000 + b"}",
    ]
    write(
        tmp_path / "a.jsonl", b"\n".join(lines[:3]) + b"\n\n" + b"\n".join(lines[3:])
    )  # a blank line after the third
    limits = {"max_bad_fraction": 0.7, "max_too_long_fraction": 0.1}
    rows = teach(
        tmp_path,
        {"path": "a.jsonl", **MATH, "check": "numeric", **limits},
        max_prompt_characters=100,
    )
    assert len(rows) == 12
    assert [(row.line, row.cause) for row in rows if isinstance(row, Dropped)] == [
        (3, "broken_row"),
        (6, "wrong_encoding"),
        (7, "broken_row"),
        (8, "empty_answer"),
        (9, "not_numeric"),
        (10, "tag_in_trace"),
        (11, "too_long"),
        (12, "wrong_encoding"),
        (13, "broken_row"),
    ]
    assert {row.file for row in rows if isinstance(row, Dropped)} == {"a.jsonl"}


def test_more_bad_rows_than_the_limit_is_an_error_with_the_first_file_and_line(tmp_path):
    write(tmp_path / "a.jsonl", jsonl(ROWS[:8]) + "{\n" + "}\n")
    with pytest.raises(
        InputError,
        match=(
            r"a\.jsonl, line 9: broken_row: not JSON.*first of 2 rows \(of 10\) that are bad: 2"
            r" broken_row;"
        ),
    ):
        teach(tmp_path, {"path": "a.jsonl", **MATH, "max_bad_fraction": 0.1})
    assert len(teach(tmp_path, {"path": "a.jsonl", **MATH, "max_bad_fraction": 0.2})) == 10


def test_rows_that_are_too_long_have_a_limit_of_their_own(tmp_path):
    write(
        tmp_path / "a.jsonl",
        jsonl([*ROWS[:8], {**ROWS[8], "steps": "x" * 500}, {**ROWS[9], "steps": "x" * 500}]),
    )
    with pytest.raises(
        InputError,
        match=(
            r"a\.jsonl, line 9: too_long: the response has \d+ characters.* is"
            r" 200.*max_too_long_fraction"
        ),
    ):
        teach(
            tmp_path,
            {"path": "a.jsonl", **MATH, "max_bad_fraction": 0.0},
            max_response_characters=200,
        )
    rows = teach(
        tmp_path,
        {"path": "a.jsonl", **MATH, "max_bad_fraction": 0.0, "max_too_long_fraction": 0.2},
        max_response_characters=200,
    )
    assert sum(isinstance(row, Example) for row in rows) == 8


def test_a_csv_row_with_too_many_fields_or_a_wrong_byte_is_bad_and_quoted_lines_keep_the_count(
    tmp_path,
):
    text = b'question,steps,answer\n"two\nlines?",s,1\nx,s,2,extra\ny,\xff,3\nz,s,4\n'
    write(tmp_path / "a.csv", text)
    rows = teach(tmp_path, {"path": "a.csv", **MATH, "max_bad_fraction": 0.5})
    assert [row.prompt for row in rows if isinstance(row, Example)] == ["two\nlines?", "z"]
    assert [(row.line, row.cause) for row in rows if isinstance(row, Dropped)] == [
        (4, "broken_row"),
        (5, "wrong_encoding"),
    ]


def test_records_of_a_json_list_are_counted_by_the_line_they_start_in(tmp_path):
    first, last = ({"question": "a?", "steps": steps, "answer": "1"} for steps in ("s", ""))
    write(tmp_path / "a.json", f"[\n {json.dumps(first)},\n\n 5,\n {json.dumps(last)}\n]\n")
    rows = teach(tmp_path, {"path": "a.json", **MATH, "max_bad_fraction": 0.9})
    assert [(row.line, row.cause) for row in rows if isinstance(row, Dropped)] == [
        (4, "broken_row"),
        (5, "empty_reasoning"),
    ]


# Damaged files and wrong places


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
        ("a.parquet", b"PAR1 junk", "data file a.parquet is no valid Parquet file"),
        (
            "a.txt",
            b"hello",
            "the suffix of 'a.txt' is no known format. Valid: .csv, .json, .jsonl, .parquet, .tsv",
        ),
    ],
)
def test_a_damaged_file_is_one_clear_message(tmp_path, name, content, message):
    write(tmp_path / name, content)
    with pytest.raises(InputError) as error:
        teach(tmp_path, {"path": name, **MATH})
    assert message in str(error.value)


def test_a_missing_file_is_found_before_a_job_starts_and_the_message_lists_what_there_is(tmp_path):
    write(tmp_path / "gsm8k" / "train.jsonl", jsonl(ROWS))
    with pytest.raises(InputError) as error:
        dataset.dependencies(config({"path": "gsm8k/trian.jsonl", **MATH}), tmp_path)
    assert (
        f"--data {tmp_path} has no file gsm8k/trian.jsonl. Did you mean 'gsm8k/train.jsonl'?"
        in str(error.value)
    )


def test_no_data_directory_is_an_error_that_says_how_to_name_one():
    with pytest.raises(
        InputError, match=r"reads a\.jsonl from a data directory: name it with --data DIR"
    ):
        dataset.dependencies(config({"path": "a.jsonl", **MATH}), None)


def test_a_link_out_of_the_data_directory_is_refused(tmp_path):
    outside = write(tmp_path / "outside.jsonl", jsonl(ROWS))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").symlink_to(outside)
    with pytest.raises(InputError, match=r"a\.jsonl is a link that leads out of --data"):
        dataset.dependencies(config({"path": "a.jsonl", **MATH}), tmp_path / "data")


def test_a_path_that_the_file_system_refuses_is_an_error(tmp_path):
    with pytest.raises(
        InputError, match=r"cannot look for a+.*\.jsonl in --data .*: File name too long"
    ):
        dataset.dependencies(config({"path": f"{'a' * 300}.jsonl", **MATH}), tmp_path)


def test_a_directory_in_place_of_a_file_is_an_error(tmp_path):
    (tmp_path / "a.jsonl").mkdir()
    with pytest.raises(InputError, match=r"a\.jsonl in --data .* is not a file"):
        dataset.dependencies(config({"path": "a.jsonl", **MATH}), tmp_path)


def test_dependencies_hold_the_digest_of_every_file_so_that_new_content_gives_a_new_key(tmp_path):
    file = write(tmp_path / "a.jsonl", jsonl(ROWS))
    other = write(tmp_path / "b.jsonl", jsonl(ROWS[:2]))
    source = {"path": "a.jsonl", **MATH, "other": {"path": "b.jsonl"}}
    before = dataset.dependencies(config(source), tmp_path)
    assert before == {
        f"data/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in (file, other)
    }
    file.write_text(jsonl(ROWS[1:]))
    assert dataset.dependencies(config(source), tmp_path)["data/a.jsonl"] != before["data/a.jsonl"]


# Grounded question answering


def test_pairing_makes_unanswerable_questions_of_the_next_row_and_out_of_domain_ones_of_another_file(
    tmp_path,
):
    rows = [{"context": f"Fact {n}.", "q": f"What of {n}?", "a": f"{n}"} for n in range(3)]
    write(tmp_path / "a.jsonl", jsonl(rows))
    write(tmp_path / "b.jsonl", jsonl([{"turns": ["Capital of France?"]}]))
    grounded = {
        "path": "a.jsonl",
        "domain": "science",
        "context": "context",
        "reasoning": {"template": "read"},
    }
    own = {
        "grounding": "answerable",
        "prompt": {"template": "{context} {q}"},
        "answer": "a",
        "check": "exact",
    }
    next_row = {
        "grounding": "unanswerable",
        "prompt": {"template": "{context} {other.q}"},
        "other": {},
    }
    general = {
        "grounding": "out_of_domain",
        "prompt": {"template": "{context} {other.turns.0}"},
        "other": {"path": "b.jsonl"},
    }
    taught = teach(tmp_path, {**grounded, **own}, {**grounded, **next_row}, {**grounded, **general})
    assert [
        (row.prompt, row.answer, row.grounding, row.check)
        for row in taught
        if row.context == "Fact 2."
    ] == [
        ("Fact 2. What of 2?", "2", "answerable", "exact"),
        ("Fact 2. What of 0?", GROUNDED_REFUSAL, "unanswerable", "exact"),
        ("Fact 2. Capital of France?", GROUNDED_REFUSAL, "out_of_domain", "exact"),
    ]


def test_pairing_a_row_with_itself_and_a_prompt_without_its_context_are_errors(tmp_path):
    write(tmp_path / "a.jsonl", jsonl([{"context": "Fact.", "q": "What?"}]))
    source = {
        "path": "a.jsonl",
        "domain": "science",
        "grounding": "unanswerable",
        "context": "context",
        "reasoning": {"template": "read"},
    }
    with pytest.raises(InputError, match=r"other\.offset = 1 pairs each of its 1 rows with itself"):
        teach(tmp_path, {**source, "prompt": {"template": "{context} {other.q}"}, "other": {}})
    with pytest.raises(InputError, match="a prompt does not contain its context"):
        teach(tmp_path, {**source, "prompt": "q"})


# What the rows of each check need


def lent(
    data: Path, *sources: dict, lesson: dict | None = None, **settings
) -> list[Prompt | Dropped]:
    return list(
        dataset.prompts(
            config(*sources, **settings), Lesson(seed=0, data=data, answers=None, **(lesson or {}))
        )
    )


def test_constraints_are_a_list_or_a_column_that_holds_one(tmp_path):
    listed = [{"name": "max_words", "value": 5}, {"name": "includes", "value": ["sea", "salt"]}]
    rows = [
        {"q": "a?", "c": listed},
        {"q": "b?", "c": json.dumps(listed)},
        {"q": "c?", "c": [{"name": "max_wrods", "value": 5}]},
        {"q": "d?"},
    ]
    write(tmp_path / "a.jsonl", jsonl(rows))
    source = {
        "path": "a.jsonl",
        "domain": "creative",
        "prompt": "q",
        "check": "constraints",
        "max_bad_fraction": 0.5,
    }
    first, second, *bad = lent(tmp_path, {**source, "constraints": {"column": "c"}})
    assert first.constraints == second.constraints == tuple(Constraint.parse(one) for one in listed)
    assert [(row.cause, row.line) for row in bad] == [
        ("bad_constraints", 3),
        ("bad_constraints", 4),
    ]
    assert "unknown constraint 'max_wrods'. Did you mean 'max_words'?" in bad[0].detail
    assert {row.constraints for row in lent(tmp_path, {**source, "constraints": listed})} == {
        first.constraints
    }
    with pytest.raises(InputError, match="constraint 'max_words' takes a whole number"):
        config({**source, "constraints": [{"name": "max_words", "value": "many"}]})


def test_a_quantity_keeps_its_tolerance_and_a_reference_without_a_number_is_bad(tmp_path):
    write(tmp_path / "a.jsonl", jsonl([{"q": "a?", "a": "5 kJ/mol"}, {"q": "b?", "a": "heavy"}]))
    source = {
        "path": "a.jsonl",
        "domain": "science",
        "prompt": "q",
        "answer": "a",
        "check": "quantity",
        "tolerance": 0.05,
    }
    good, bad = lent(tmp_path, {**source, "max_bad_fraction": 0.5})
    assert (good.answer, good.tolerance, good.check) == ("5 kJ/mol", 0.05, "quantity")
    assert (bad.cause, bad.line) == ("not_numeric", 2)


# Prompts for other teachers, and top-ups


def test_a_source_without_reasoning_or_answers_lends_prompts_and_teaches_nothing(tmp_path):
    write(tmp_path / "a.jsonl", jsonl(ROWS))
    source = {"path": "a.jsonl", "domain": "math", "prompt": "question"}
    lent_rows = lent(tmp_path, source)
    assert [(type(row), row.prompt, row.answer, row.check, row.line) for row in lent_rows][:1] == [
        (Prompt, "What is 0+0?", "", "none", 1)
    ]
    assert len(lent_rows) == 10
    with pytest.raises(
        InputError,
        match=r"source a\.jsonl has no reasoning, .* put this table into that teacher's prompts",
    ):
        teach(tmp_path, source)
    with pytest.raises(InputError, match="has no answer"):
        teach(tmp_path, {**source, "reasoning": "steps"})


def test_prompts_need_no_reasoning_even_where_the_source_names_it(tmp_path):
    write(tmp_path / "a.jsonl", jsonl([{**ROWS[0], "steps": ""}, ROWS[1]]))
    rows = lent(tmp_path, {"path": "a.jsonl", **MATH, "check": "numeric"})
    assert [(type(row), row.answer) for row in rows] == [(Prompt, "0"), (Prompt, "2")]


def test_a_top_up_gives_no_example_again_but_lends_all_prompts(tmp_path):
    write(tmp_path / "a.jsonl", jsonl(ROWS))
    wanted = {Cell(Domain.MATH): 3}
    source = {"path": "a.jsonl", **MATH}
    assert (
        list(
            dataset.teach(
                config(source), Lesson(seed=0, data=tmp_path, answers=None, wanted=wanted)
            )
        )
        == []
    )
    assert len(lent(tmp_path, source, lesson={"wanted": wanted})) == 10


# Streaming


@pytest.mark.parametrize(("count", "offset"), [(7, 1), (7, 3), (7, 9), (3, 2), (5, 12)])
def test_pairing_counts_round_whatever_the_offset(tmp_path, count, offset):
    write(tmp_path / "a.jsonl", jsonl([{"q": f"q{n}", "a": "x"} for n in range(count)]))
    mapping = {
        "prompt": {"template": "{q}/{other.q}"},
        "reasoning": {"template": "read"},
        "answer": "a",
    }
    rows = teach(
        tmp_path, {"path": "a.jsonl", "domain": "general", **mapping, "other": {"offset": offset}}
    )
    assert [row.prompt for row in rows] == [f"q{n}/q{(n + offset) % count}" for n in range(count)]


@pytest.mark.parametrize("held", [2, 10_000])
def test_pairing_with_another_file_begins_anew_at_its_end(tmp_path, monkeypatch, held):
    monkeypatch.setattr(dataset, "_HELD", held)
    write(tmp_path / "a.jsonl", jsonl([{"q": f"q{n}", "a": "x"} for n in range(8)]))
    write(tmp_path / "b.jsonl", jsonl([{"t": f"t{n}"} for n in range(3)]))
    mapping = {
        "prompt": {"template": "{q}/{other.t}"},
        "reasoning": {"template": "read"},
        "answer": "a",
    }
    rows = teach(
        tmp_path,
        {
            "path": "a.jsonl",
            "domain": "general",
            **mapping,
            "other": {"path": "b.jsonl", "offset": 4},
        },
    )
    assert [row.prompt for row in rows] == [f"q{n}/t{(n + 4) % 3}" for n in range(8)]


def test_memory_does_not_grow_with_the_rows(tmp_path):
    """4,000 rows of 1 kB are 4 MB; a few are held, pairs included."""
    with (tmp_path / "a.jsonl").open("w") as file:
        for number in range(4_000):
            file.write(
                json.dumps(
                    {"question": f"What is {number}?", "steps": "think " * 170, "answer": "1"}
                )
                + "\n"
            )
    source = {
        "path": "a.jsonl",
        **MATH,
        "prompt": {"template": "{question} {other.question}"},
        "other": {"offset": 100},
    }
    tracemalloc.start()
    count = sum(
        1 for _ in dataset.teach(config(source), Lesson(seed=0, data=tmp_path, answers=None))
    )
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 4_000
    assert peak < 1.5e6, f"{peak / 1e6:.1f} MB"


def test_a_column_that_no_row_has_is_an_error_at_the_end_and_a_late_one_is_none(tmp_path):
    write(tmp_path / "a.jsonl", jsonl([*ROWS, {**ROWS[0], "extra": "x"}]))
    assert len(teach(tmp_path, {"path": "a.jsonl", **MATH, "reasoning": ["extra", "steps"]})) == 11
    with pytest.raises(InputError, match=r"there is no column 'ansver'\. Did you mean 'answer'"):
        teach(tmp_path, {"path": "a.jsonl", **MATH, "answer": "ansver", "max_bad_fraction": 0.99})


# The router


def test_the_router_says_domain_and_difficulty_where_the_source_asks_and_is_part_of_the_key(
    tmp_path,
):
    code = "Fix this:\n```\nprint(1\n```"
    write(
        tmp_path / "a.jsonl",
        jsonl([{"q": code}, {"q": ""}, {"q": "TL;DR of this: it rained, and it rained again."}]),
    )
    source = {"path": "a.jsonl", "prompt": "q", "max_bad_fraction": 0.5}
    parsed = config({**source, "domain": "router", "difficulty": "router"})
    lesson = Lesson(seed=0, data=tmp_path, answers=None)
    first, bad, last = dataset.prompts(parsed, lesson)
    assert (first.domain, bad.cause, last.domain) == (
        Domain.CODING,
        "empty_prompt",
        Domain.SUMMARIZATION,
    )
    assert dict(lesson.tally) == {"routed.rule": 2}
    assert dataset.dependencies(parsed, tmp_path).keys() == {
        "data/a.jsonl",
        "routing",
        "package.scikit-learn",
    }
    kept, _, _ = lent(tmp_path, {**source, "domain": "router", "difficulty": 4})
    assert (kept.domain, kept.difficulty) == (Domain.CODING, 4)
    with pytest.raises(InputError, match="no source says domain = 'router'"):
        config({**source, "domain": "math"}, routing={"provider": "vllm", "model": "m"})
