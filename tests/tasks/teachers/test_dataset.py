"""The dataset teacher: limits of bad rows, files and digests, rows paired with others, prompts for
other teachers. Formats are tested in tests/tasks/data/test_readers.py, the mapping in
test_conversion.py beside that."""

import hashlib
from pathlib import Path

import pytest

from schemas.base import InputError
from schemas.examples import Domain, Example, Prompt
from tasks.teachers import dataset
from tasks.teaching.lesson import Cell
from tests.tasks.teachers.dataset_rows import MATH, ROWS, config, lend, lesson, taught, teach, write

STARRED = {"path": "*.jsonl", **MATH, "max_bad_fraction": 0.9}


def test_more_bad_rows_than_the_limit_is_an_error_with_the_first_file_and_line(tmp_path):
    text = write(tmp_path / "a.jsonl", ROWS[:8]).read_text()
    write(tmp_path / "a.jsonl", text + "{\n}\n")
    many = r"a\.jsonl, line 9: broken_row: not JSON.*first of 2 rows \(of 10\) that are bad: 2 bro"
    where = r".*or raise max_bad_fraction in the table of the source\."
    with pytest.raises(InputError, match=many + where):
        teach(tmp_path, {"path": "a.jsonl", **MATH, "max_bad_fraction": 0.1})
    assert len(teach(tmp_path, {"path": "a.jsonl", **MATH, "max_bad_fraction": 0.2})) == 10


def test_rows_that_are_too_long_have_a_limit_of_their_own(tmp_path):
    write(tmp_path / "a.jsonl", [*ROWS[:8], *({**row, "steps": "x" * 500} for row in ROWS[8:])])
    source = {"path": "a.jsonl", **MATH, "max_bad_fraction": 0.0}
    message = r"a\.jsonl, line 9: too_long: the response has .* is 200.*max_too_long_fraction"
    with pytest.raises(InputError, match=message):
        teach(tmp_path, source, max_response_characters=200)
    rows = teach(tmp_path, {**source, "max_too_long_fraction": 0.2}, max_response_characters=200)
    assert sum(isinstance(row, Example) for row in rows) == 8


def test_what_cannot_be_read_is_found_before_a_job_starts(tmp_path):
    """The message lists what there is."""
    write(tmp_path / "gsm8k" / "train.jsonl", ROWS)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "link.jsonl").symlink_to(tmp_path / "gsm8k" / "train.jsonl")
    (tmp_path / "data" / "dir.jsonl").mkdir()
    for path, data, message in (
        ("gsm8k/trian.jsonl", tmp_path, r"has no file .*Did you mean 'gsm8k/train.jsonl'\?"),
        ("a.jsonl", None, r"reads a\.jsonl from a data directory: name it with --data DIR"),
        ("link.jsonl", tmp_path / "data", "is a link that leads out of --data"),
        ("dir.jsonl", tmp_path / "data", r"dir\.jsonl in --data .* is not a file"),
        (f"{'a' * 300}.jsonl", tmp_path, "cannot look for a+.* in --data .*: File name too long"),
    ):
        with pytest.raises(InputError, match=message):
            dataset.dependencies(config({"path": path, **MATH}), data)


def test_dependencies_hold_the_digest_of_every_file_so_that_new_content_gives_a_new_key(tmp_path):
    files = write(tmp_path / "a.jsonl", ROWS), write(tmp_path / "b.jsonl", ROWS[:2])
    source = config({"path": "a.jsonl", **MATH, "other": {"path": "b.jsonl"}})
    before = dataset.dependencies(source, tmp_path)
    assert before == {
        f"data/{path.name}": hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }
    write(tmp_path / "a.jsonl", ROWS[1:])
    assert dataset.dependencies(source, tmp_path)["data/a.jsonl"] != before["data/a.jsonl"]


def test_pairing_counts_round_whatever_the_offset(tmp_path):
    mapping = {"prompt": {"template": "{q}/{other.q}"}, "reasoning": {"template": "read"}}
    for count, offset in ((7, 1), (7, 3), (7, 9), (3, 2), (5, 12)):
        rows = [{"q": f"q{n}", "a": "x"} for n in range(count)]
        found = taught(tmp_path, rows, **mapping, answer="a", other={"offset": offset})
        paired = [f"q{n}/q{(n + offset) % count}" for n in range(count)]
        assert [row.prompt for row in found] == paired


@pytest.mark.parametrize("most", [2, 10_000])
def test_pairing_with_another_file_begins_anew_at_its_end(tmp_path, monkeypatch, most):
    monkeypatch.setattr(dataset, "_IN_MEMORY", most)
    write(tmp_path / "b.jsonl", [{"t": f"t{n}"} for n in range(3)])
    rows = [{"q": f"q{n}", "a": "x"} for n in range(8)]
    mapping = {"reasoning": {"template": "read"}, "answer": "a"}
    other = {"path": "b.jsonl", "offset": 4}
    found = taught(tmp_path, rows, prompt={"template": "{q}/{other.t}"}, **mapping, other=other)
    assert [row.prompt for row in found] == [f"q{n}/t{(n + 4) % 3}" for n in range(8)]


# `first`: no more of a source is read than that, over all of its files


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Two files of three rows; the second has a line that is no JSON."""
    write(tmp_path / "x.jsonl", ROWS[:3])
    text = write(tmp_path / "y.jsonl", ROWS[3:6]).read_text()
    write(tmp_path / "y.jsonl", text + "no JSON\n")
    return tmp_path


def test_rows_are_counted_over_all_files(data):
    counts = {2: 2, 3: 3, 5: 5, 7: 7, 100: 7, None: 7}
    assert {first: len(teach(data, {**STARRED, "first": first})) for first in counts} == counts


def test_a_row_is_paired_as_in_the_whole_file(data):
    """The second row's other one is the third, which is not among the first two."""
    first_two = {**STARRED, "path": "x.jsonl", "first": 2}
    (_, row) = teach(data, {**first_two, "other": {"offset": 1}, "prompt": "other.question"})
    assert row.prompt == ROWS[2]["question"]


def test_a_column_that_none_of_the_first_rows_has_is_missing_unless_they_are_left_out(data):
    with pytest.raises(InputError, match="no column 'b'"):
        teach(data, {**STARRED, "first": 2, "answer": "b"})
    (one,) = teach(data, {**STARRED, "first": 1, "answer": "b", "require": ["b"]})
    assert one.cause == "left_out"


# Prompts for other teachers, and top-ups


def test_a_source_without_reasoning_or_answers_lends_prompts_and_teaches_nothing(tmp_path):
    write(tmp_path / "a.jsonl", ROWS)
    source = {"path": "a.jsonl", "domain": "math", "prompt": "question"}
    rows = lend(tmp_path, source)
    assert len(rows) == 10
    found = (type(rows[0]), rows[0].prompt, rows[0].answer, rows[0].check, rows[0].line)
    assert found == (Prompt, "What is 0+0?", "", "none", 1)
    with pytest.raises(InputError, match=r"has no reasoning, .* into that teacher's prompts"):
        teach(tmp_path, source)
    with pytest.raises(InputError, match="has no answer"):
        teach(tmp_path, {**source, "reasoning": "steps"})


def test_prompts_need_no_reasoning_even_where_the_source_names_it(tmp_path):
    write(tmp_path / "a.jsonl", [{**ROWS[0], "steps": ""}, ROWS[1]])
    rows = lend(tmp_path, {"path": "a.jsonl", **MATH, "check": "numeric"})
    assert [(type(row), row.answer) for row in rows] == [(Prompt, "0"), (Prompt, "2")]


def test_a_top_up_gives_no_example_again_but_lends_all_prompts(tmp_path):
    write(tmp_path / "a.jsonl", ROWS)
    wanted, source = {Cell(Domain.MATH): 3}, {"path": "a.jsonl", **MATH}
    assert list(dataset.teach(config(source), lesson(tmp_path, wanted=wanted))) == []
    assert len(lend(tmp_path, source, wanted=wanted)) == 10


def test_the_router_says_domain_and_difficulty_where_the_source_asks_and_is_part_of_the_key(
    tmp_path,
):
    texts = ("Fix this:\n```\nprint(1\n```", "", "TL;DR of this: it rained, and it rained again.")
    write(tmp_path / "a.jsonl", [{"q": text} for text in texts])
    source = {"path": "a.jsonl", "prompt": "q", "max_bad_fraction": 0.5}
    parsed = config({**source, "domain": "router", "difficulty": "router"})
    asked = lesson(tmp_path)
    first, bad, last = dataset.prompts(parsed, asked)
    assert (first.domain, last.domain) == (Domain.CODING, Domain.SUMMARIZATION)
    assert bad.cause == "empty_prompt"
    assert dict(asked.tally) == {"routed.rule": 2}
    read = {"data/a.jsonl", "routing", "package.scikit-learn"}
    assert dataset.dependencies(parsed, tmp_path).keys() == read
    rated, _, _ = lend(tmp_path, {**source, "domain": "router", "difficulty": 4})
    assert (rated.domain, rated.difficulty) == (Domain.CODING, 4)
    with pytest.raises(InputError, match="no source says domain = 'router'"):
        config({**source, "domain": "math"}, routing={"provider": "vllm", "model": "m"})
