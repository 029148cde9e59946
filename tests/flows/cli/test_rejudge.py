"""`lyceum rejudge`: the command, its page, and what it says of a file that is wrong."""

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from infra.store.store import Store, open_store
from schemas.artifact import Manifest
from schemas.base import digest
from schemas.ledger import LedgerRow
from schemas.recipe import Recipe, StageSpec
from schemas.reports import RunRecord, StageRecord
from schemas.rubrics import Rubric
from tasks.contract.job import write_jsonl
from tests.fakes.chat_server import ChatServer
from tests.fakes.judges import QUESTION
from tests.flows.runs import synthetic_run
from tests.tasks.reinforcement.test_rejudge import PROMPTS, RUBRIC, rows, stage


def write_run(root: Path) -> tuple[Store, RunRecord]:
    """A run with a rebalance and a GRPO stage."""
    store = open_store(root / "store")
    (root / "rebalance").mkdir()
    write_jsonl(root / "rebalance" / "prompts.jsonl", PROMPTS)
    fixed = {"version": 1, "attempt": "0", "files": ()}
    made = Manifest(kind="rebalance", key=digest("r"), config={}, inputs={}, **fixed)
    prompts = store.commit(made, root / "rebalance").ref()
    about = stage()
    (root / "grpo").mkdir()
    with gzip.open(root / "grpo" / "ledger.jsonl.gz", "wt", encoding="utf-8") as out:
        out.writelines(row.model_dump_json() + "\n" for row in rows())
    fixed |= {"dependencies": dict(about.dependencies), "inputs": {"prompts": prompts}}
    config = about.config.model_dump(mode="json")
    manifest = Manifest(kind="grpo", key=digest("g"), config=config, **fixed)
    ref = store.commit(manifest, root / "grpo").ref()
    kinds = {"rebalance": ("rebalance", prompts), "rl": ("grpo", ref)}
    specs = tuple(StageSpec(name=name, kind=kind) for name, (kind, _) in kinds.items())
    stages = [
        StageRecord(name=name, kind=kind, key=one.key, status="ran", artifact=one)
        for name, (kind, one) in kinds.items()
    ]
    recipe = Recipe(name="demo", model="gemma3-tiny", stages=specs)
    where = {"run_id": "demo-1", "target": "local", "store": store.uri, "recipe": recipe}
    record = RunRecord(status="succeeded", started=1.0, stages=tuple(stages), **where)
    store.write_json("runs/demo-1/run.json", record)
    return store, record


def answering(body: dict[str, Any]) -> str:
    """An honest judge of fruits."""
    parts = QUESTION.fullmatch(body["messages"][0]["content"])
    answer = json.loads(parts["data"])["answer"]
    asked = re.findall(r"^(\d+)\. (Does not say|Says) (\w+)\.$", parts["after"], re.MULTILINE)
    grades = {number: (fruit in answer) is (says == "Says") for number, says, fruit in asked}
    return json.dumps({"mark": parts["mark"], "reason": "r", "grades": grades})


WANTED = """
rubrics = "mine.jsonl"

[[rewards]]
name = "format"
weight = 1.0

[[rewards]]
name = "rubric_judge"
aggregation = "explicit"
[rewards.judge]
name = "endpoint"
provider = "test"
model = "m"
input_usd_per_million = 1.0
output_usd_per_million = 1.0
max_response_tokens = 100
"""


@pytest.fixture
def command(tmp_path: Path, lyceum: Any):
    """What `lyceum rejudge` of a run says, by the file of a given text."""
    store, _ = write_run(tmp_path)

    def rejudge(text: str, *options: str, code: int = 0) -> Any:
        (tmp_path / "wanted.toml").write_text(text, encoding="utf-8")
        wanted = ["demo-1", "--rubric", tmp_path / "wanted.toml", "--store", store.uri]
        return lyceum("rejudge", *wanted, *options, code=code)

    return rejudge


def test_the_command_judges_by_new_rubrics_once_and_tells_what_it_cost(
    tmp_path, monkeypatch, command
):
    stone = {"title": "stone", "text": "Says stone.", "importance": "essential"}
    rubrics = [Rubric.parse({"id": one.id, "criteria": [stone]}) for one in PROMPTS]
    write_jsonl(tmp_path / "mine.jsonl", rubrics)
    with ChatServer(reply=answering) as server:
        monkeypatch.setenv("TEST_BASE_URL", server.url)
        value = command(WANTED, "--json").json
        told = value["rewards"]["rubric_judge"]
        assert told.pop("usd") > 0
        assert told == {"from": "scored", "questions": 16.0, "new": 16.0}
        # "apple" was the best, "stone" is
        assert [one["cosine"] < 0 for one in value["updates"]] == [True, True]
        assert value["summary"]["reversed"] == 2
        billed = server.billed.total()
        out = command(WANTED).out
        assert server.billed.total() == billed
    assert "The updates on 2 of 2 rollouts would change sign" in out
    assert "0 of 16 questions were new and cost $0.0000" in " ".join(out.split())
    page = Path(value["page"]).read_text(encoding="utf-8")
    assert "<svg" in page.partition("demo-1")[2]
    with gzip.open(value["ledger"], "rt", encoding="utf-8") as lines:
        again = [LedgerRow.model_validate_json(line) for line in lines]
    assert [row.rewards["rubric_judge"] for row in again[:4]] == [0.0, 0.0, 0.0, 1.0]


def inline(value: Any) -> str:
    """A value of TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {inline(one)}" for key, one in value.items()) + "}"
    return f"[{', '.join(map(inline, value))}]" if isinstance(value, list) else json.dumps(value)


def test_new_weights_need_no_judge_at_all(monkeypatch, command):
    monkeypatch.delenv("TEST_BASE_URL", raising=False)
    wanted = RUBRIC | {"weights": {"essential": 0.0, "pitfall": 2.0}}
    said = command(f"rewards = [{inline(wanted)}]")
    assert said.err == ""
    assert "the ledger's rulings, weighed again" in said.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'rewards' is missing"),
        ("[[rewards]\n", "not valid TOML"),
        ("[[rewards]]\nname = 'rubric_juge'\n", "Did you mean 'rubric_judge'"),
        ("rubric = 1\nrewards = []\n", "unknown key 'rubric'"),
        ("rubrics = 'gone.jsonl'\n[[rewards]]\nname = 'format'\n", "cannot read"),
        ("rubrics = 'bad.jsonl'\n[[rewards]]\nname = 'format'\n", "bad.jsonl, line 2: "),
        ("rubrics = 'none.jsonl'\n[[rewards]]\nname = 'format'\n", "none.jsonl holds none; leave"),
        ("rubrics = 'pipe'\n[[rewards]]\nname = 'format'\n", "there is no such file"),
        ("rewards = []\n", "rewards = [] is not valid: give at least 1 item"),
    ],
)
def test_a_file_that_is_wrong_is_bad_input(command, tmp_path, text, message):
    (tmp_path / "bad.jsonl").write_text("\n{}\n", encoding="utf-8-sig")
    (tmp_path / "none.jsonl").touch()
    os.mkfifo(tmp_path / "pipe")
    assert message in command(text, code=2).err


def test_a_stage_of_another_version_is_told_so(tmp_path: Path, lyceum: Any) -> None:
    """Its config has not what this version's has."""
    (tmp_path / "wanted.toml").write_text("[[rewards]]\nname = 'format'\n", encoding="utf-8")
    place = "--store", synthetic_run.write_run(tmp_path / "store")[0].uri
    said = lyceum("rejudge", "demo-1", "--rubric", tmp_path / "wanted.toml", *place, code=2).err
    assert "another version of Lyceum made stage 'grpo' (batch_size: Field required)" in said


def test_a_run_without_such_a_stage_is_told_so(command):
    wanted = "[[rewards]]\nname = 'format'\n"
    unknown = command(wanted, "--stage", "rel", code=2).err
    assert "stage 'rel' of run 'demo-1' has no ledger. Stages with one: rl." in unknown
    for usd in ("0", "nan"):
        assert f"--usd {usd}: give a number above 0" in command(wanted, "--usd", usd, code=2).err
