"""`lyceum rehearse`: every shipped recipe at its own config, on the first rows of real records; and
recipes with planted defects, each of which is named."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.shipped import shipped_recipes
from tests.conftest import PROCESSOR_SECONDS
from tests.end_to_end.flows.forked import Ended, lyceum
from tests.end_to_end.hub_records import write_hub
from tests.end_to_end.tasks.records import SHARED, needs_records
from tests.fakes.chat_server import ChatServer
from tests.fakes.fake_hub import FakeHub
from tests.flows.rehearsal.recipes import RECIPE, write

GSM8K = "datasets/openai/gsm8k"
TRAIN = f"hf://{GSM8K}/main/train-*.parquet"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A hub with the data sets of the shipped recipes, and a gated one."""
    with FakeHub() as server:
        if SHARED.is_dir():
            server.repositories |= write_hub(tmp_path_factory.mktemp("hub"))
            server.repositories["datasets/open/gated"] = server.repositories[GSM8K]
        server.gated.add("datasets/open/gated")
        yield server


def rehearse(
    recipe: str, data: Path | None, store: Path, *more: str, **variables: str
) -> tuple[Ended, dict[str, Any]]:
    """How it ended, and its JSON. XLA compiles as it does for users."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    where = ["--store", str(store), *(["--data", str(data)] if data else []), "--json"]
    place = store.with_name("printed")
    place.mkdir()
    done = lyceum(["rehearse", recipe, *where, *more], environment | variables, place)
    return done, json.loads(done.out or "{}")


def named(told: dict[str, Any]) -> set[str]:
    return {one["name"] for one in told["findings"] if one["allowed"] is None}


@needs_records
@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_a_shipped_recipe_passes_its_rehearsal(name, hub, tmp_path, prefect_api, record_property):
    reached = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    done, told = rehearse(name, SHARED, tmp_path / "store", "--rows", "24", **reached)
    record_property(PROCESSOR_SECONDS, round(done.processor_seconds, 1))
    error = done.error[-3000:]
    assert told, error
    assert [one["name"] for one in told["stages"] if one["status"] == "failed"] == [], error
    assert (done.code, named(told)) == (0, set())
    page = Path(told["page"]).read_text(encoding="utf-8")
    assert all(re.search(rf">{stage['name']}[ :]", page) for stage in told["stages"])


@needs_records
def test_a_recipe_on_a_hub_reads_the_first_rows_alone(hub, tmp_path, prefect_api):
    """A teacher's and a judge's endpoints without keys are stood in for; nothing is found; every
    row that fell out is there with its cause."""
    recipe = RECIPE.replace('"sums.jsonl"', f'"{TRAIN}"')
    recipe = recipe.replace(
        'answer = "answer"\ncheck = "numeric"\n\n[stages.rebalance]',
        'answer = { column = "answer", after = "####" }\ncheck = "numeric"\n\n[stages.rebalance]',
    )
    path = write(tmp_path, recipe)
    reached = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "GEMINI_API_KEY": ""}
    done, told = rehearse(
        str(path), tmp_path / "data", tmp_path / "store", "--rows", "24", **reached
    )
    assert (done.code, named(told)) == (0, set()), done.error[-3000:]
    distill, rebalance, *_ = told["stages"]
    assert distill["left"].endswith("unsolved prompts")
    assert rebalance["domains"]["math"]["train"] > 8
    teacher, judge = told["endpoints"]
    assert (teacher["roles"], teacher["asked"]) == (["teacher"], 0)
    assert (judge["roles"], judge["asked"]) == (["judge"], 0)
    assert teacher["stood_in"] >= 48
    assert set(told["audits"]["grpo"]["updates"]["1"]["reference"]) == {
        "format", "exact_answer", "llm_judge", "total", "lead"
    }  # fmt: skip


SOURCE = 'answer = "answer"\ncheck = "numeric"\n\n[stages.rebalance]'
PLANTED = {
    "grpo/dead:exact_answer": (SOURCE, 'answer = "answer"\n\n[stages.rebalance]'),
    "quota:creative": ("[stages.sft]", "creative = { train = 100 }\n\n[stages.sft]"),
    "leak:exam": ('path = "exam.jsonl"\nexpected = 20', 'path = "sums.jsonl"\nexpected = 200'),
    "schedule:grpo.format.weight": (
        "weight = 0.3",
        "weight = { start = 0.3, end = 0.1, from_step = 900, to_step = 950 }",
    ),
    "format:exam": (
        "min_items = 300",
        'min_items = 300\ninstructions = "Write <think>...</think><answer>...</answer>."',
    ),
    "judge:gemini:gemini-9": ('name = "llm_judge"', 'name = "llm_judge"\ncalibration = false'),
}
"""Finding -> what is changed in a sound recipe; the judge is one that always says 10."""


def ten(body: dict[str, Any]) -> str:
    text = body["messages"][-1]["content"]
    schema = body["response_format"]["json_schema"]["schema"]["properties"]["grades"]["properties"]
    grades = {key: True if kind["type"] == "boolean" else 10 for key, kind in schema.items()}
    mark = text.partition("=== data ")[2][:16]
    return json.dumps({"mark": mark, "reason": "Perfect.", "grades": grades})


def test_planted_defects_are_all_named(tmp_path: Path, prefect_api: str) -> None:
    recipe = RECIPE
    for before, after in PLANTED.values():
        assert before in recipe
        recipe = recipe.replace(before, after)
    path = write(tmp_path, recipe)
    with ChatServer(reply=ten) as judge:
        done, told = rehearse(
            str(path), tmp_path / "data", tmp_path / "store", "--rows", "24",
            GEMINI_BASE_URL=judge.url, GEMINI_API_KEY="sk-of-a-test-0123456789",
        )  # fmt: skip
        asked = judge.count
    assert done.code == 3, done.error[-3000:]
    assert PLANTED.keys() <= named(told)
    assert asked == 20, "a real endpoint is asked no more than 20 times"


@pytest.mark.parametrize(
    ("path", "endpoint", "said"),
    [
        (
            "hf://datasets/openai/gsm8k/main/tests-*.parquet",
            "",
            "main has test-00000-of-00001.parquet, train-00000-of-00001.parquet",
        ),
        ("hf://datasets/openai/gsm8k/tests/*.parquet", "", "datasets/openai/gsm8k has main"),
        (TRAIN.replace("datasets/", ""), "", "is at hf://datasets/openai/gsm8k/main/train"),
        ("hf://datasets/open/nothing/x.jsonl", "", "there is no such data set, or no permission"),
        ("hf://datasets/open/gated/main/train-00000-of-00001.parquet", "", "and set HF_TOKEN"),
        (TRAIN, NOWHERE, "Check the network"),
    ],
)
def test_a_hub_that_has_it_not_or_is_not_reached_is_one_message(
    path: str, endpoint: str, said: str, hub: FakeHub, tmp_path: Path, prefect_api: str
) -> None:
    recipe = write(tmp_path, RECIPE.replace('"sums.jsonl"', f'"{path}"'))
    reached = {"HF_ENDPOINT": endpoint or hub.url, "HF_HOME": str(tmp_path / "hf")}
    done, told = rehearse(str(recipe), tmp_path / "data", tmp_path / "store", **reached)
    assert (done.code, told) == (2, {})
    assert done.error.startswith("lyceum: ")
    assert said in done.error
    assert "Traceback" not in done.error
    assert not (tmp_path / "store").exists()
