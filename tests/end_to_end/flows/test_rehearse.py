"""`lyceum rehearse`: every shipped recipe at its own config, on the first rows of real records; and
recipes with planted defects, each of which is named."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from flows.recipe.resolve import shipped_recipes
from infra.process import ROOT
from tests.fakes.chat_server import ChatServer
from tests.fakes.fake_hub import FakeHub
from tests.flows.rehearsal.recipes import RECIPE, write

SHARED = ROOT.parent / "shared" / "data"

FOUND: dict[str, set[str]] = {"dipg_safety": {"format:dipg"}}
"""What is found in a shipped recipe and not mended yet: nothing else may be."""


@pytest.fixture(scope="session")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real records as recipes call their files, and rows made of them: traces and prompts that
    a user brings."""
    if not SHARED.is_dir():
        pytest.skip(f"the real records are not here: {SHARED}")
    data = tmp_path_factory.mktemp("records")
    for path in SHARED.rglob("*"):
        if path.is_file():
            copy = data / path.relative_to(SHARED)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(path.read_bytes())
    (data / "gsm8k/train.jsonl").write_bytes((data / "gsm8k/train_first1000.jsonl").read_bytes())
    sums = [_sum(row) for row in _rows(data / "gsm8k/train.jsonl")[:100]]
    tasks = [_task(row) for row in _rows(data / "self_instruct/seed_tasks.jsonl")[:100]]
    short = [_summary(row) for row in _rows(data / "scitldr/SciTLDR-A_test.jsonl")[:100]]
    _write(
        data / "traces.jsonl",
        [one for three in zip(sums, tasks, short, strict=True) for one in three],
    )
    _write(data / "prompts/checked.jsonl", sums)
    _write(data / "prompts/open.jsonl", tasks)
    articles = json.loads((data / "pubmedqa/ori_pqal.json").read_text(encoding="utf-8")).values()
    _write(
        data / "legal.jsonl",
        [{"prompt": one["QUESTION"], "answer": one["final_decision"]} for one in articles],
    )
    return data


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _sum(row: dict[str, Any]) -> dict[str, str]:
    reasoning, _, answer = row["answer"].partition("####")
    row = {"prompt": row["question"], "reasoning": reasoning.strip(), "answer": answer.strip()}
    return row | {"domain": "math"}


def _task(row: dict[str, Any]) -> dict[str, str]:
    said = row["instances"][0]["output"] or "None."
    reasoning = f"This is the task {row['name']}."
    row = {"prompt": row["instruction"], "reasoning": reasoning, "answer": said}
    return row | {"domain": "general"}


def _summary(row: dict[str, Any]) -> dict[str, str]:
    prompt = "Summarize in one sentence: " + " ".join(row["source"])[:900]
    row = {"prompt": prompt, "reasoning": row["source"][0], "answer": row["target"][0]}
    return row | {"domain": "summarization"}


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeHub]:
    """A hub with the data sets whose names the records' SOURCE.txt give, and a gated one."""
    directory = tmp_path_factory.mktemp("gsm8k")
    if SHARED.is_dir():
        (directory / "main").mkdir()
        for split, file in (("train", "train_first1000"), ("test", "test")):
            table = pa.Table.from_pylist(_rows(SHARED / f"gsm8k/{file}.jsonl"))
            pa.parquet.write_table(table, directory / f"main/{split}-00000-of-00001.parquet")
    with FakeHub() as server:
        for name in ("datasets/openai/gsm8k", "datasets/open/gated"):
            server.repositories[name] = directory
        server.gated.add("datasets/open/gated")
        yield server


def rehearse(
    recipe: str, data: Path | None, store: Path, *more: str, **variables: str
) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON, and standard error."""
    where = ["--store", str(store), *(["--data", str(data)] if data else []), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", "rehearse", recipe, *where, *more],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


def named(told: dict[str, Any]) -> set[str]:
    return {one["name"] for one in told["findings"] if one["allowed"] is None}


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_a_shipped_recipe_passes_its_rehearsal(
    name: str, records: Path, hub: FakeHub, tmp_path: Path, prefect_api: str
) -> None:
    reached = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    code, told, error = rehearse(name, records, tmp_path / "store", "--rows", "24", **reached)
    if code == 2 and ("has no file" in error or "no permission" in error):
        pytest.skip(f"not among the records of ../shared/data: {error.strip()[-300:]}")
    assert told, error[-3000:]
    assert [one["name"] for one in told["stages"] if one["status"] == "failed"] == [], error[-3000:]
    assert named(told) == FOUND.get(name, set())
    assert code == (3 if name in FOUND else 0)
    page = Path(told["page"]).read_text(encoding="utf-8")
    assert all(f">{stage['name']} (" in page for stage in told["stages"])


def test_a_recipe_on_a_hub_reads_the_first_rows_alone(
    records: Path, hub: FakeHub, tmp_path: Path, prefect_api: str
) -> None:
    """A teacher's and a judge's endpoints without keys are stood in for; nothing is found; every
    row that fell out is there with its cause."""
    recipe = RECIPE.replace('"sums.jsonl"', '"hf://datasets/openai/gsm8k/main/train-*.parquet"')
    recipe = recipe.replace(
        'answer = "answer"\ncheck = "numeric"\n\n[stages.rebalance]',
        'answer = { column = "answer", after = "####" }\ncheck = "numeric"\n\n[stages.rebalance]',
    )
    path = write(tmp_path, recipe)
    reached = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "GEMINI_API_KEY": ""}
    code, told, error = rehearse(
        str(path), tmp_path / "data", tmp_path / "store", "--rows", "24", **reached
    )
    assert (code, named(told)) == (0, set()), error[-3000:]
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
        code, told, error = rehearse(
            str(path), tmp_path / "data", tmp_path / "store", "--rows", "24",
            GEMINI_BASE_URL=judge.url, GEMINI_API_KEY="sk-of-a-test-0123456789",
        )  # fmt: skip
        asked = judge.count
    assert code == 3, error[-3000:]
    assert PLANTED.keys() <= named(told)
    assert asked == 20, "a real endpoint is asked no more than 20 times"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("hf://datasets/openai/gsm8k/main/tests-*.parquet", "there is no such file"),
        ("hf://datasets/open/nothing/x.jsonl", "there is no such data set, or no permission"),
        ("hf://datasets/open/gated/main/train-00000-of-00001.parquet", "HF_TOKEN"),
    ],
)
def test_a_hub_that_has_it_not_is_one_message(
    path: str, said: str, hub: FakeHub, tmp_path: Path
) -> None:
    recipe = write(tmp_path, RECIPE.replace('"sums.jsonl"', f'"{path}"'))
    reached = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    code, told, error = rehearse(str(recipe), tmp_path / "data", tmp_path / "store", **reached)
    assert (code, told) == (2, {})
    assert error.startswith("lyceum: ")
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "store").exists()


def test_no_network_is_one_message(tmp_path: Path) -> None:
    path = "hf://datasets/openai/gsm8k/main/train-*.parquet"
    recipe = write(tmp_path, RECIPE.replace('"sums.jsonl"', f'"{path}"'))
    reached = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hf")}
    code, told, error = rehearse(str(recipe), tmp_path / "data", tmp_path / "store", **reached)
    assert (code, told) == (2, {})
    assert "Check the network" in error
    assert "Traceback" not in error
