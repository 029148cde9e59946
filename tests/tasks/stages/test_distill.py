"""Distill: rows from one or several teachers, everything counted, the stage key's dependencies."""

import json
from pathlib import Path

import pytest

from schemas.base import InputError
from schemas.examples import Example
from schemas.job import Progress
from tasks.contract.job import read_jsonl
from tasks.data.dropped import Dropped
from tasks.stages import distill, rebalance
from tests.tasks.jobs import job_at

PROCEDURAL = {
    "name": "procedural",
    "rows": {"summarization": 40, "creative": 20},
    "grounded": {"answerable": 10},
}
DATASET = {
    "name": "dataset",
    "sources": [
        {
            "path": "a.jsonl",
            "family": "ours",
            "domain": "math",
            "prompt": "q",
            "reasoning": "r",
            "answer": "a",
            "max_bad_fraction": 0.5,
        }
    ],
}


def run(
    tmp_path: Path, *teachers: dict, data: Path | None = None, seed: int = 0, **job
) -> tuple[dict, Path]:
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
    stories = [
        f"Write a short poem about {thing}." for thing in ("rain", "a lamp", "my cat", "the sea")
    ]
    (tmp_path / "data").mkdir()
    for name, prompts in (("known", sums), ("routed", stories)):
        text = "".join(
            json.dumps({"q": prompt, "r": "so", "a": "yes"}) + "\n" for prompt in prompts
        )
        (tmp_path / "data" / f"{name}.jsonl").write_text(text)
    known = {
        "path": "known.jsonl",
        "domain": "math",
        "prompt": "q",
        "reasoning": "r",
        "answer": "a",
    }
    both = {
        "name": "dataset",
        "sources": [known, {**known, "path": "routed.jsonl", "domain": "router"}],
    }
    metrics, _ = run(tmp_path, both, data=tmp_path / "data")
    assert (
        metrics["router"]["n"],
        metrics["router"]["matrix"]["math"]["math"],
        metrics["router"]["accuracy"],
    ) == (20, 20, 1.0)
    assert metrics["domains"] == {"creative": 4, "math": 20}
    assert not any(name.startswith("confusion") for name in metrics["teachers"][0])
    alone, _ = run(tmp_path, {"name": "dataset", "sources": [known]}, data=tmp_path / "data")
    assert "router" not in alone


GEMMA = {"name": "gemma", "model": "gemma3-tiny", "prompt_length": 64}
ROUTED = {
    "name": "dataset",
    "sources": [{"path": "a.jsonl", "domain": "router", "prompt": "question"}],
    "routing": {"provider": "openai", "model": "m"},
}


@pytest.mark.parametrize(
    ("teacher", "at_home"),
    [
        (PROCEDURAL, False),
        (
            {
                "name": "openai_compatible",
                "provider": "openai",
                "model": "m",
                "prompts": [PROCEDURAL],
            },
            True,
        ),
        (ROUTED, True),
        ({**GEMMA, "prompts": [ROUTED]}, True),
        ({**GEMMA, "prompts": [PROCEDURAL]}, False),
    ],
)
def test_stages_that_ask_an_api_stay_where_its_key_is(teacher, at_home):
    config = {"teachers": [teacher]}
    assert distill.at_home(config, {}) == at_home
    assert rebalance.at_home({"top_up": 3}, {"examples": config}) == at_home
    assert not rebalance.at_home({"top_up": 0}, {"examples": config})


def test_progress_reaches_the_expected_number_of_rows(tmp_path):
    seen: list[Progress] = []
    run(
        tmp_path,
        {"name": "procedural", "rows": {"summarization": 1200}, "grounded": {}},
        report=seen.append,
    )
    assert [(progress.done, progress.total) for progress in seen] == [
        (500, 1200),
        (1000, 1200),
        (1200, 1200),
    ]
    assert {progress.unit for progress in seen} == {"examples"}


def test_a_teacher_table_is_completed_with_its_defaults_so_that_they_are_part_of_the_key():
    config = distill.Config.parse({"teachers": [{"name": "procedural", "rows": {"math": 5}}]})
    assert config.teachers[0]["grounded"] == {
        "answerable": 300,
        "unanswerable": 300,
        "out_of_domain": 300,
    }
    assert distill.Config.parse(config.model_dump(mode="json")) == config


def test_dependencies_name_each_teachers_version_and_what_it_reads(data):
    config = distill.Config.parse({"teachers": [PROCEDURAL, DATASET]})
    found = distill.dependencies(config, data)
    assert set(found) == {
        "teachers.procedural",
        "teachers.dataset",
        "package.reasoning-gym",
        "data/a.jsonl",
    }
    (data / "a.jsonl").write_text("{}\n")
    assert distill.dependencies(config, data)["data/a.jsonl"] != found["data/a.jsonl"]


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        (
            {"name": "proceduarl"},
            (
                "unknown teacher 'proceduarl'. Did you mean 'procedural'? Valid: dataset, gemma,"
                " openai_compatible, procedural"
            ),
        ),
        (
            {"rows": {"math": 5}},
            (
                "teachers.0: {'rows': {'math': 5}} needs a name, one of: dataset, gemma,"
                " openai_compatible, procedural"
            ),
        ),
        ({"name": "procedural", "row": {}}, "teachers.0: unknown key 'row'. Did you mean 'rows'?"),
        (
            {"name": "procedural", "rows": {"maths": 5}},
            "'maths' is not valid: Input should be 'math'",
        ),
        ({"name": "dataset", "sources": []}, "sources"),
    ],
)
def test_a_wrong_teacher_is_refused_when_the_recipe_is_read(teacher, message):
    with pytest.raises(InputError) as error:
        distill.Config.parse({"teachers": [teacher]})
    assert message in str(error.value)
