"""What `dipg_safety` makes of real rows: what SFT is taught is what the reward pays most for, and
what the suite asks. Mappings of all recipes are tried where they are rehearsed
(`flows/test_rehearse.py`), but one, of which the first rows teach nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.resolve import resolve
from schemas.examples import Example
from tasks.cleaning.contamination import index
from tasks.cleaning.rules import Contamination
from tasks.cleaning.shingles import words_of
from tasks.contract.reward import Response
from tasks.contract.suite import SUITES
from tasks.contract.teacher import TEACHERS
from tasks.data.dropped import Dropped
from tasks.evaluation.suite_prompts import suite_prompts
from tasks.rewards.dipg import grades
from tasks.stages.rebalance import Config as Rebalance
from tasks.teachers import dataset
from tasks.teaching.lesson import Lesson
from tasks.verification.correct import is_correct
from tasks.verification.verify import verify
from tests.end_to_end.hub_records import haystacks, textbooks
from tests.end_to_end.tasks.records import SHARED, needs_records

GYM = "dipg_safety/test_gen_enhanced.jsonl"


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Example | Dropped]:
    """What the recipe's own mapping makes of the gym's nine rows, and of 100 of PubMedQA in the
    hub's columns."""
    data = tmp_path_factory.mktemp("data")
    (data / "gym.jsonl").write_bytes((SHARED / GYM).read_bytes())
    articles = json.loads((SHARED / "pubmedqa/ori_pqal.json").read_text(encoding="utf-8"))
    with (data / "pubmedqa.jsonl").open("w", encoding="utf-8") as file:
        for article in list(articles.values())[:100]:
            context = {"contexts": article["CONTEXTS"], "meshes": article["MESHES"]}
            names = {"question": "QUESTION", "long_answer": "LONG_ANSWER"}
            texts = {name: article[column] for name, column in names.items()}
            row = {**texts, "context": context, "final_decision": article["final_decision"]}
            file.write(json.dumps(row) + "\n")
    table: dict[str, Any] = resolve("dipg_safety", need_data=False).stage("distill").config_json
    teacher = table["teachers"][0]
    places = {True: "gym.jsonl", False: "pubmedqa.jsonl"}
    sources = [{**one, "path": places["dipg" in one["path"]]} for one in teacher["sources"]]
    config = TEACHERS.parse({**teacher, "sources": sources}, "test")
    return list(dataset.teach(config, Lesson(seed=0, data=data, answers=None)))  # type: ignore[arg-type]


@needs_records
def test_every_row_is_taught_under_just_one_mapping(rows: list[Example | Dropped]) -> None:
    taught = [row for row in rows if isinstance(row, Example)]
    assert len([row for row in taught if row.source == "gym.jsonl"]) == 9
    causes = {row.cause for row in rows if isinstance(row, Dropped)}
    assert causes <= {"left_out", "empty_proof"}
    assert len([row for row in taught if row.source == "pubmedqa.jsonl"]) >= 198


@needs_records
def test_the_taught_answer_is_the_best_that_the_reward_knows(rows: list[Example | Dropped]) -> None:
    taught = [row for row in rows if isinstance(row, Example) and row.check != "none"]
    given = grades("v4", taught, [Response(row.response()) for row in taught])
    best = {"answerable": 50, "unanswerable": 30, "out_of_domain": 30}
    short = [
        row.family
        for row, grade in zip(taught, given, strict=True)
        if grade is None or row.grounding is None or grade.value(1.0) < best[row.grounding]
    ]
    assert len(short) <= len(taught) * 0.02, short


@needs_records
def test_suites_read_the_format_that_sft_teaches(rows: list[Example | Dropped]) -> None:
    suites = resolve("dipg_safety", need_data=False).stage("safety_eval").config_json["suites"]
    (asked,) = (suite for suite in suites if suite["name"] == "dipg")
    config = SUITES.parse({**asked, "path": GYM}, "test")
    gym = [row for row in rows if isinstance(row, Example) and row.source == "gym.jsonl"]
    both = gym, suite_prompts(config, SHARED)
    taught, read = ({(one.context, one.grounding, one.channels) for one in side} for side in both)
    assert taught == read
    assert {suite["channels"] for suite in suites} == {row.channels for row in gym} == {"xml"}


@needs_records
def test_no_haystack_gives_another_away_and_an_abstract_that_is_asked_twice_does() -> None:
    """By the rules of `dipg_safety`. By the usual 13 words in a row one haystack gives nearly all
    others away, and none of them was left to train on."""
    config = resolve("dipg_safety", need_data=False).stage("rebalance").config
    assert isinstance(config, Rebalance)
    assert config.contamination
    contexts = [row["messages"][0]["content"] for row in haystacks(120)]
    articles = json.loads((SHARED / "pubmedqa/ori_pqal.json").read_text(encoding="utf-8"))
    abstracts = [" ".join(one["CONTEXTS"]) for one in list(articles.values())[:60]]
    asked = [f"Context: {text}\nQuestion: What is it about?" for text in abstracts]
    again = [f"Context: {text}\nQuestion: Do plants sleep at night?" for text in abstracts]
    found = index(*words_of([*contexts[:20], *asked]), config.contamination)
    hits, _, _ = found.scan(*words_of(contexts[20:]))
    assert sum(hits > 0) <= 2
    hits, _, _ = found.scan(*words_of(again))
    assert all(hits > 0)
    usual = index(*words_of(contexts[:20]), Contamination())
    hits, _, _ = usual.scan(*words_of(contexts[20:]))
    assert sum(hits > 0) > 90


@needs_records
def test_textbook_problems_with_a_worked_solution_are_taught(tmp_path: Path) -> None:
    """By `gemma_270m`, which says why its rehearsal finds `empty:scibench`."""
    problems = list(textbooks())
    text = "".join(json.dumps(row) + "\n" for row in problems)
    (tmp_path / "scibench.jsonl").write_text(text, encoding="utf-8")
    teacher = resolve("gemma_270m", need_data=False).stage("distill").config_json["teachers"][0]
    [source] = [one for one in teacher["sources"] if one["family"] == "scibench"]
    config = TEACHERS.parse({**teacher, "sources": [source | {"path": "scibench.jsonl"}]}, "test")
    made = list(dataset.teach(config, Lesson(seed=0, data=tmp_path, answers=None)))  # type: ignore[arg-type]
    taught = [row for row in made if isinstance(row, Example)]
    assert len(taught) == sum(bool(row["solution"].strip()) for row in problems)
    assert {row.cause for row in made if isinstance(row, Dropped)} == {"left_out"}
    assert all(is_correct(row, verify(row, row.response())) for row in taught)
