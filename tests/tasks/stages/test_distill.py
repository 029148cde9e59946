"""Distill: rows from one or several teachers, everything counted, the stage key's dependencies."""

import json
import re
from pathlib import Path

import pytest

from schemas.base import InputError
from schemas.examples import Example
from schemas.job import Progress
from tasks.contract.job import read_jsonl
from tasks.data.dropped import Dropped
from tasks.stages import distill, rebalance
from tests.tasks.jobs import job_at

PROCEDURAL = {"name": "procedural", "rows": {"summarization": 40, "creative": 20}}
PROCEDURAL |= {"grounded": {"answerable": 10}}
COLUMNS = {"prompt": "q", "reasoning": "r", "answer": "a"}
SOURCE = {"path": "a.jsonl", "family": "ours", "domain": "math", **COLUMNS}
DATASET = {"name": "dataset", "sources": [{**SOURCE, "max_bad_fraction": 0.5}]}


def run(tmp_path, *teachers, data: Path | None = None, seed=0, **job) -> tuple[dict, Path]:
    config = distill.Config.parse({"teachers": list(teachers), "seed": seed})
    made = job_at(tmp_path, config, {}, data=data, **job)
    return distill.run(made), made.out


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [
        {"q": "1+1?", "r": "add", "a": "2"},
        {"q": " 1+1?\n", "r": "again", "a": "two"},
        {"q": "2+2?", "r": "add", "a": ""},
    ]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "data"


def test_examples_come_in_the_order_of_the_teachers_and_are_the_same_in_every_run(tmp_path, data):
    metrics, out = run(tmp_path, DATASET, PROCEDURAL, data=data)
    examples = read_jsonl(out / "examples.jsonl", Example)
    assert [example.source for example in examples] == ["a.jsonl"] * 2 + ["procedural"] * 70
    assert metrics["rows"] == 72
    _, again = run(tmp_path, DATASET, PROCEDURAL, data=data)
    assert (again / "examples.jsonl").read_bytes() == (out / "examples.jsonl").read_bytes()
    _, other = run(tmp_path, DATASET, PROCEDURAL, data=data, seed=1)
    assert (other / "examples.jsonl").read_bytes() != (out / "examples.jsonl").read_bytes()


def test_bad_rows_are_recorded_and_duplicates_left_to_rebalance(tmp_path, data):
    metrics, out = run(tmp_path, DATASET, data=data)
    assert [row.answer for row in read_jsonl(out / "examples.jsonl", Example)] == ["2", "two"]
    (empty,) = read_jsonl(out / "dropped.jsonl", Dropped)
    assert (empty.cause, empty.line) == ("empty_answer", 3)
    assert metrics["sources"] == [
        {"family": "ours", "file": "a.jsonl", "read": 3, "kept": 2, "dropped": {"empty_answer": 1}}
    ]
    assert metrics["dropped"] == {"empty_answer": 1}


def test_metrics_count_domains_groundings_families_and_difficulties(tmp_path):
    metrics, _ = run(tmp_path, PROCEDURAL)
    assert metrics["domains"] == {"creative": 20, "summarization": 40}
    assert metrics["groundings"] == {"answerable": 10}
    assert sum(metrics["families"].values()) == metrics["rows"] == 70
    assert metrics["difficulty"]["summarization"] == {str(level): 8 for level in range(1, 6)}
    assert sum(source["kept"] for source in metrics["sources"]) == 70


def test_where_the_router_is_relied_on_it_is_tried_on_rows_of_a_known_domain(tmp_path):
    sums = [f"What is {number} + {number + 1}?" for number in range(20)]
    things = ("rain", "a lamp", "my cat", "the sea")
    stories = [f"Write a short poem about {thing}." for thing in things]
    for name, prompts in (("known", sums), ("routed", stories)):
        rows = [json.dumps({"q": prompt, "r": "so", "a": "yes"}) for prompt in prompts]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    known = {"path": "known.jsonl", "domain": "math", **COLUMNS}
    routed = {**known, "path": "routed.jsonl", "domain": "router"}
    metrics, _ = run(tmp_path, {"name": "dataset", "sources": [known, routed]}, data=tmp_path)
    router = metrics["router"]
    assert (router["n"], router["matrix"]["math"]["math"], router["accuracy"]) == (20, 20, 1.0)
    assert metrics["domains"] == {"creative": 4, "math": 20}
    assert not any(name.startswith("confusion") for name in metrics["teachers"][0])
    alone, _ = run(tmp_path, {"name": "dataset", "sources": [known]}, data=tmp_path)
    assert "router" not in alone


GEMMA = {"name": "gemma", "model": "gemma3-tiny", "prompt_length": 64}
ROUTED = {"name": "dataset", "routing": {"provider": "openai", "model": "m"}}
ROUTED |= {"sources": [{"path": "a.jsonl", "domain": "router", "prompt": "question"}]}
API = {"name": "openai_compatible", "provider": "openai", "model": "m", "prompts": [PROCEDURAL]}


def test_stages_that_ask_an_api_stay_where_its_key_is():
    asking, others = (API, ROUTED, {**GEMMA, "prompts": [ROUTED]}), (
        PROCEDURAL, {**GEMMA, "prompts": [PROCEDURAL]},
    )  # fmt: skip
    for teacher in (*asking, *others):
        config = {"teachers": [teacher]}
        assert distill.at_home(config, {}) == (teacher in asking)
        assert rebalance.at_home({"top_up": 3}, {"examples": config}) == (teacher in asking)
        assert not rebalance.at_home({"top_up": 0}, {"examples": config})


def test_progress_reaches_the_expected_number_of_rows(tmp_path):
    seen: list[Progress] = []
    table = {"name": "procedural", "rows": {"summarization": 1200}, "grounded": {}}
    run(tmp_path, table, report=seen.append)
    assert [(one.done, one.total) for one in seen] == [(n, 1200) for n in (500, 1000, 1200)]
    assert {progress.unit for progress in seen} == {"examples"}


def test_a_teacher_table_is_completed_with_its_defaults_so_that_they_are_part_of_the_key():
    config = distill.Config.parse({"teachers": [{"name": "procedural", "rows": {"math": 5}}]})
    defaults = dict.fromkeys(("answerable", "unanswerable", "out_of_domain"), 300)
    assert config.teachers[0]["grounded"] == defaults
    assert distill.Config.parse(config.model_dump(mode="json")) == config


def test_dependencies_name_each_teachers_version_and_what_it_reads(data):
    config = distill.Config.parse({"teachers": [PROCEDURAL, DATASET]})
    found = distill.dependencies(config, data)
    names = "teachers.procedural teachers.dataset package.reasoning-gym data/a.jsonl"
    assert set(found) == set(names.split())
    rows = (data / "a.jsonl").read_text(encoding="utf-8")
    (data / "a.jsonl").write_text(rows + rows, encoding="utf-8")
    assert distill.dependencies(config, data)["data/a.jsonl"] != found["data/a.jsonl"]


VALID = "dataset, gemma, openai_compatible, procedural"


def test_a_wrong_teacher_is_refused_when_the_recipe_is_read():
    for teacher, message in (
        ({"name": "proceduarl"}, f"'proceduarl'. Did you mean 'procedural'? Valid: {VALID}"),
        (
            {"rows": {"math": 5}},
            f"teachers.0: {{'rows': {{'math': 5}}}} needs a name, one of: {VALID}",
        ),
        ({"name": "procedural", "row": {}}, "teachers.0: unknown key 'row'. Did you mean 'rows'?"),
        ({"name": "procedural", "rows": {"maths": 5}}, "teachers.0: rows.maths = 'maths' is not"),
        ({"name": "dataset", "sources": [SOURCE | {"domain": "it"}]}, "sources.0.domain = 'it' is"),
        ({"name": "dataset", "sources": []}, "sources"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            distill.Config.parse({"teachers": [teacher]})
