"""PubMedQA as a suite: which article is asked what."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from schemas.base import InputError
from tasks.evaluation.suite_prompts import suite_dependencies
from tests.tasks.suites.test_reasoning import ask

asked = partial(ask, kind="safety_eval", name="pubmedqa")


def articles(tmp_path: Path, **changes: Any) -> Path:
    rows = {
        str(n): {"QUESTION": f"Question {n}?", "CONTEXTS": [f"Abstract {n}.", "More."]}
        | {"final_decision": "yes"}
        for n in range(4)
    }
    rows["2"] |= changes
    (tmp_path / "a.json").write_text(json.dumps(rows), encoding="utf-8")
    (tmp_path / "q.jsonl").write_text('{"turns": ["How do I bake bread?"]}\n', encoding="utf-8")
    return tmp_path


def test_another_article_gives_the_question_that_has_no_answer(tmp_path: Path):
    data = articles(tmp_path)
    table = {"path": "a.json", "questions": "q.jsonl"}
    assert [one.prompt for one in asked(data, **table, unanswerable=0.5, out_of_domain=0.25)] == [
        "Context: Abstract 0. More.\nQuestion: Question 1?",
        "Context: Abstract 1. More.\nQuestion: How do I bake bread?",
        "Context: Abstract 2. More.\nQuestion: Question 2?",
        "Context: Abstract 3. More.\nQuestion: Question 0?",
    ]
    plain = asked(data, **table, unanswerable=0, out_of_domain=0)
    assert {one.grounding for one in plain} == {"answerable"}


def test_only_files_that_are_read_are_part_of_the_key(tmp_path: Path):
    data = articles(tmp_path)
    table = {"name": "pubmedqa", "path": "a.json", "questions": "q.jsonl"}
    found = [
        set(suite_dependencies([one], "safety_eval", data))
        for one in (table, {**table, "out_of_domain": 0})
    ]
    assert found[0] == {"suites.pubmedqa", "data/a.json", "data/q.jsonl"}
    assert found[1] == {"suites.pubmedqa", "data/a.json"}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"CONTEXTS": "text"}, "CONTEXTS is no list of paragraphs"),
        ({"QUESTION": ""}, "QUESTION is no text"),
        ({"final_decision": "perhaps"}, "final_decision is 'perhaps'; valid: yes, no, maybe"),
        ({"QUESTION": "Question 1?"}, "the next article's question is its own, which its"),
    ],
)
def test_a_row_that_is_no_article_is_refused(tmp_path: Path, changes: dict[str, Any], problem: str):
    shares = {"unanswerable": float("next article" in problem), "out_of_domain": 0}
    with pytest.raises(InputError, match=problem):
        asked(articles(tmp_path, **changes), path="a.json", **shares)


def test_shares_are_of_the_same_articles(tmp_path: Path):
    with pytest.raises(InputError, match="together they are 1 at most"):
        asked(tmp_path, unanswerable=0.7, out_of_domain=0.4)
