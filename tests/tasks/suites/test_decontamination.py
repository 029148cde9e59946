"""Rows that give a suite's prompts away are dropped by the suite's own table, with nothing mapped
twice."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.base import InputError
from tasks.contract.job import read_jsonl, write_jsonl
from tasks.data.dropped import Dropped
from tasks.stages import rebalance
from tests.tasks.jobs import job_at
from tests.tasks.stages.test_rebalance import distilled, example, prose

QUOTAS = {"quotas": {"math": {"train": 20}}, "top_up": 0}


def short(number: int) -> str:
    return " ".join(prose(number).split()[:7])


def config(**more: Any) -> rebalance.Config:
    return rebalance.Config.parse(QUOTAS | more)


def test_rows_that_hold_a_suites_question_are_contaminated_by_it(tmp_path: Path) -> None:
    """Of multiple choice the question counts without its choices: a row that is as short as it need
    not repeat them."""
    (tmp_path / "gsm8k").mkdir()
    asked = [{"question": prose(n), "answer": "#### 1"} for n in range(900, 905)]
    write_jsonl(tmp_path / "gsm8k/test.jsonl", asked)
    mine = [
        {"question": short(n), "choices": [prose(2000 + n), "no"], "answer": 1}
        for n in range(910, 913)
    ]
    write_jsonl(tmp_path / "mine.jsonl", mine)
    rows = [example(prose(n), family="prose") for n in range(60)]
    rows += [example(text, family="leak") for text in (prose(900), prose(901), short(910))]
    suites = [{"name": "gsm8k"}, {"name": "mmlu", "label": "mine", "path": "mine.jsonl"}]
    inputs = {"examples": distilled(tmp_path / "in", rows)}
    job = job_at(tmp_path, config(suites=suites), inputs, data=tmp_path)
    assert rebalance.run(job)["contaminated_by"] == {"gsm8k": 2, "mine": 1}
    dropped = read_jsonl(job.out / "dropped.jsonl", Dropped)
    causes = Counter((row.source, row.cause) for row in dropped)
    assert causes == {("leak", "contaminated"): 3}


def test_a_suites_file_and_version_are_in_the_stage_key(tmp_path: Path) -> None:
    (tmp_path / "gsm8k").mkdir()
    write_jsonl(tmp_path / "gsm8k/test.jsonl", [{"question": "1+1?", "answer": "#### 2"}])
    asked = config(suites=[{"name": "gsm8k"}])
    before = rebalance.dependencies(asked, tmp_path)
    assert {"suites.gsm8k", "data/gsm8k/test.jsonl"} <= before.keys()
    write_jsonl(tmp_path / "gsm8k/test.jsonl", [{"question": "1+2?", "answer": "#### 3"}])
    assert rebalance.dependencies(asked, tmp_path) != before
    assert json.loads(asked.model_dump_json())["suites"] == [
        {"name": "gsm8k", "label": "", "path": "gsm8k/test.jsonl", "first": None}
    ]


def test_a_wrong_table_is_refused() -> None:
    same = {"name": "gsm8k", "path": "a.jsonl", "prompt": "q"}
    for more, message in (
        ({"suites": [{"name": "gsm9k"}]}, "unknown suite 'gsm9k'.*gsm8k"),
        ({"suites": [{"name": "gsm8k"}], "contamination": False}, "leave one of the two out"),
        ({"suites": [{"name": "gsm8k"}], "evaluations": [same]}, "have the same name"),
    ):
        with pytest.raises(ValueError, match=message):
            config(**more)


def test_a_suite_that_is_not_there_is_found_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"suite gsm8k: --data .* has no file gsm8k/test\.jsonl"):
        rebalance.dependencies(config(suites=[{"name": "gsm8k"}]), tmp_path)
