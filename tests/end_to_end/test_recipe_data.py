"""What shipped recipes make of their data: of a row in the columns of each data set's card, and for
`dipg_safety` of real ones, where what SFT is taught is what the reward pays most for, and what the
suite asks."""

import json
from typing import Any

import pytest

from flows.recipe.resolve import resolve
from flows.recipe.shipped import shipped_recipes
from schemas.examples import Example
from tasks.contract.reward import Response
from tasks.contract.suite import SUITES
from tasks.contract.teacher import TEACHERS
from tasks.data.cleaning_rules import Contamination
from tasks.data.contamination import index
from tasks.data.dropped import Dropped
from tasks.data.shingles import words_of
from tasks.evaluation.suite_prompts import suite_prompts
from tasks.rewards.dipg import grades
from tasks.stages.rebalance import Config as Rebalance
from tasks.teachers import dataset
from tasks.teaching.lesson import Lesson
from tasks.verification.correct import is_correct
from tasks.verification.verify import verify
from tests.end_to_end.hub_records import haystacks
from tests.end_to_end.hub_rows import ROWS
from tests.end_to_end.tasks.records import SHARED, needs_records

READERS = [
    pytest.param(teacher, id=f"{name}.{number}.{teacher['name']}")
    for name in sorted(shipped_recipes().keys() - {"open_data"})
    for stage in resolve(name, need_data=False).stages
    if stage.kind == "distill"
    for number, asked in enumerate(stage.config_json["teachers"])
    for teacher in (asked, *asked.get("prompts", ()))
    if teacher["name"] == "dataset"
]
"""The tables of every dataset teacher, and of those that lend prompts to another."""


@pytest.mark.parametrize("teacher", READERS)
def test_a_row_in_the_columns_of_the_card_becomes_what_the_recipe_wants(teacher, tmp_path):
    def local(path: str) -> str:
        parts = path.removeprefix("hf://datasets/").split("/")
        name = f"{parts[0]}/{parts[1].partition('@')[0]}"
        file = tmp_path / f"{name.replace('/', '.')}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in ROWS[name]), encoding="utf-8")
        return file.name

    sources = []
    for source in teacher["sources"]:
        other = source["other"]
        if other and other["path"]:
            other = {**other, "path": local(other["path"])}
        path = local(source["path"])
        sources.append({**source, "path": path, "other": other, "max_bad_fraction": 0.0})
    table = {**teacher, "sources": sources, "routing": None}
    config = TEACHERS.parse(table, "test")
    assert isinstance(config, dataset.Config)
    lesson = Lesson(seed=0, data=tmp_path, answers=None)  # type: ignore[arg-type]
    worked = all(source.teaches for source in config.sources)
    made = list((dataset.teach if worked else dataset.prompts)(config, lesson))
    kept = [row for row in made if not isinstance(row, Dropped)]
    assert {row.cause for row in made if isinstance(row, Dropped)} <= {"left_out"}
    assert {row.family for row in kept} == {source["family"] for source in sources}
    for row in kept:
        if isinstance(row, Example):
            assert is_correct(row, verify(row, row.response())) is not False


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
