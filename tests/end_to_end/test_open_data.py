"""The data of the recipe open_data: the real records of ../shared/data, every count as their
SOURCE.txt states it."""

import json
import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from infra.process import ROOT
from schemas.examples import GROUNDED_REFUSAL, Domain, Example
from tasks.contract.teacher import TEACHERS
from tasks.data.dropped import Dropped
from tasks.stages import distill, rebalance
from tasks.teachers import dataset
from tasks.teaching.lesson import Lesson
from tests.end_to_end.tasks.records import SHARED, needs_records
from tests.tasks.jobs import job_at

RECIPE = tomllib.loads((ROOT / "flows/recipes/open_data.toml").read_text(encoding="utf-8"))

pytestmark = needs_records

SOURCES = {
    "gsm8k": ({"train_first1000.jsonl": 1000}, 1000),
    "humaneval": ({"HumanEval.jsonl.gz": 164}, 164),
    "mtbench": ({"question.jsonl": 80}, 38),
    "scitldr": ({"SciTLDR-A_test.jsonl": 350}, 350),
    "self_instruct": ({"seed_tasks.jsonl": 175}, 175),
    "user_oriented": ({"user_oriented_instructions.jsonl": 252}, 252),
    "pubmedqa.answerable": ({"ori_pqal.json": 600}, 600),
    "pubmedqa.unanswerable": ({"ori_pqal.json": 600}, 600),
    "pubmedqa.out_of_domain": ({"ori_pqal.json": 600}, 600),
}
"""Family -> rows of each file as SOURCE.txt states them ("here: first N" where the copy is cut),
and how many are usable.

MT-bench gives reference answers for 39 first turns, of which one is empty."""


@pytest.fixture(scope="module")
def real_rows() -> list[Example | Dropped]:
    """Every row of every source, without the recipe's limits on length."""
    (teacher,) = RECIPE["stages"]["distill"]["config"]["teachers"]
    unlimited = {"max_prompt_characters": 10**6, "max_response_characters": 10**6}
    config = TEACHERS.parse({**teacher, **unlimited}, "test")
    return list(dataset.teach(config, Lesson(seed=0, data=SHARED, answers=None)))


def _counts(rows: list[Example | Dropped], family: str) -> tuple[Counter, int]:
    """Rows read of each file, and rows kept."""
    kept = Counter(row.source for row in rows if isinstance(row, Example) and row.family == family)
    dropped = Counter(row.file for row in rows if isinstance(row, Dropped) and row.source == family)
    return kept + dropped, kept.total()


@pytest.mark.parametrize("family", SOURCES)
def test_the_counts_of_real_records_are_those_of_their_source(real_rows, family):
    files, usable = SOURCES[family]
    read, kept = _counts(real_rows, family)
    assert {Path(name).name: count for name, count in read.items()} == files
    assert kept == usable


def test_every_scibench_file_has_the_rows_that_its_source_states(real_rows):
    stated, file = {}, ""
    for line in (SHARED / "scibench" / "SOURCE.txt").read_text().splitlines():
        key, _, value = line.strip().partition(": ")
        file = Path(value).name if key == "file" else file
        if key == "rows":
            stated[f"scibench/{file}"] = int(value)
    read, kept = _counts(real_rows, "scibench")
    assert dict(read) == stated
    assert kept == sum(stated.values()) == 692


def test_the_first_real_rows_are_what_their_files_say(real_rows):
    def first(family: str) -> Example:
        return next(row for row in real_rows if isinstance(row, Example) and row.family == family)

    gsm8k = json.loads((SHARED / "gsm8k/train_first1000.jsonl").open(encoding="utf-8").readline())
    assert first("gsm8k").prompt == gsm8k["question"]
    said = re.sub("<<[^<>]*>>", "", gsm8k["answer"])
    assert f"{first('gsm8k').reasoning}\n#### {first('gsm8k').answer}" == said
    articles = json.loads((SHARED / "pubmedqa/ori_pqal.json").read_text(encoding="utf-8"))
    pubmed, answerable = next(iter(articles.values())), first("pubmedqa.answerable")
    assert answerable.answer == pubmed["final_decision"]
    assert answerable.reasoning == pubmed["LONG_ANSWER"]
    assert first("pubmedqa.unanswerable").context == " ".join(pubmed["CONTEXTS"])
    assert pubmed["QUESTION"] not in first("pubmedqa.unanswerable").prompt
    code = "```python\n    for idx, elem in enumerate(numbers):\n        for idx2"
    assert first("humaneval").answer.startswith(code)


def test_real_grounded_rows_hold_their_context_and_refuse_where_they_must(real_rows):
    grounded = [row for row in real_rows if isinstance(row, Example) and row.grounding]
    assert len(grounded) == 1800
    for row in grounded:
        assert row.context in row.prompt
        assert (row.answer == GROUNDED_REFUSAL) == (row.grounding != "answerable")
    answers = Counter(row.answer for row in grounded if row.grounding == "answerable")
    assert answers == {"yes": 339, "no": 189, "maybe": 72}


def test_the_recipes_data_stages_fill_every_quota_from_the_real_records(tmp_path):
    stages = RECIPE["stages"]
    config = distill.Config.parse(stages["distill"]["config"])
    asked = job_at(tmp_path, config, {}, key="distill", data=SHARED)
    metrics = distill.run(asked)
    assert set(metrics["dropped"]) == {"left_out", "too_long"}
    for source in metrics["sources"]:
        assert source["read"] == source["kept"] + sum(source["dropped"].values())
    assert metrics["rows"] == sum(source["kept"] for source in metrics["sources"])
    quotas = rebalance.Config.parse(stages["rebalance"]["config"])
    inputs = {"examples": asked.out}
    metrics = rebalance.run(job_at(tmp_path, quotas, inputs, key="rebalance", data=SHARED))
    assert set(metrics["domains"]) == {domain.value for domain in Domain}
    for table in ("domains", "groundings"):
        for splits in metrics[table].values():
            assert all(split["achieved"] == split["requested"] > 0 for split in splits.values())
