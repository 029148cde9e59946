"""From a teacher behind an API to rows that stages train on: distill, rebalance with a top-up,
preference pairs, prompts for GRPO."""

import functools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from schemas.base import InputError
from schemas.examples import Domain, Example, PreferencePair, Prompt
from tasks.contract.job import read_jsonl, read_rows
from tasks.stages import distill, rebalance
from tasks.teachers import procedural
from tests.fakes.chat_server import ChatServer
from tests.tasks.jobs import job_at

ROWS = {"math": 300, "summarization": 300}
LENDER = {"name": "procedural", "rows": ROWS, "grounded": {}}
FIRST = {"math": 40, "summarization": 40}
QUOTAS = {"math": {"train": 50, "heldout": 6}, "summarization": {"train": 20, "heldout": 4}}


@functools.cache
def answers() -> dict[str, Any]:
    """Prompt -> row."""
    return {row.prompt: row for row in procedural.rows(procedural.Config.parse(LENDER), seed=0)}


def oracle(body: dict[str, Any]) -> str:
    """Knows the answers of all rows; of four samples one is wrong and one no trace, and every
    seventh math prompt beats it."""
    row = answers().get(body["messages"][-1]["content"])
    if row is None:
        return "I do not know."
    kind = body["seed"] % 4
    if kind == 0:
        return f"It is {row.answer}."
    if kind == 1 or (row.domain == Domain.MATH and int(row.id, 16) % 7 == 0):
        return f"<reasoning>I guess</reasoning>\n<answer>{row.answer}000</answer>"
    return f"<reasoning>{row.reasoning}</reasoning>\n<answer>{row.answer}</answer>"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs distill, then rebalance with these quotas, against a server; returns the two
    directories, rebalance's metrics and the server."""

    def run(quotas: Any = QUOTAS, **teacher: Any) -> tuple[Path, Path, dict[str, Any], ChatServer]:
        table = {
            "name": "openai_compatible", "provider": "oracle", "model": "m", "samples": 4,
            "retries": 0, "instructions": "", "first": FIRST, "max_response_tokens": 64,
            "input_usd_per_million": 1.0, "output_usd_per_million": 1.0, "prompts": [LENDER],
            **teacher,
        }  # fmt: skip
        config = {
            "quotas": quotas,
            "near_duplicates": False,
            "contamination": False,
            "validation_fraction": 0.0,
        }
        with ChatServer(reply=oracle) as server:
            monkeypatch.setenv("ORACLE_BASE_URL", server.url)
            asking = job_at(tmp_path, distill.Config.parse({"teachers": [table]}), {}, key="d")
            distill.run(asking)
            given = {"examples": asking.out}
            taking = job_at(tmp_path, rebalance.Config.parse(config), given, key="r")
            return asking.out, taking.out, rebalance.run(taking), server

    return run


def test_a_shortfall_is_asked_of_the_teacher_and_no_prompt_twice(run: Any) -> None:
    """40 math prompts solve about 34 rows; 50 train and 6 held out are wanted."""
    distilled, out, metrics, server = run()
    counts = [len(read_jsonl(out / f"{name}.jsonl", Example)) for name in ("train", "heldout")]
    assert counts == [70, 10]
    round_, *_ = metrics["top_ups"]
    assert round_["given"] > 0
    asked = Counter((request.question, request.body["seed"]) for request in server.seen)
    assert set(asked.values()) == {1}
    first = json.loads((distilled / "teachers.json").read_text())["spent"][0]
    assert metrics["top_ups"][-1]["spent"][0]["usd"] > first["usd"] > 0
    assert len(server.seen) == sum(request.again == 0 for request in server.seen) * 4


def test_pairs_and_prompts_belong_to_the_training_split_and_say_where_they_come_from(run):
    _, out, _, _ = run()
    train = {row.id: row for row in read_jsonl(out / "train.jsonl", Example)}
    prompts = {row.id: row for row in read_jsonl(out / "prompts.jsonl", Prompt)}
    heldout = {row.id for row in read_jsonl(out / "heldout.jsonl", Example)}
    assert set(train) < set(prompts)
    unsolved = [row for identity, row in prompts.items() if identity not in train]
    assert unsolved
    assert {(row.pass_rate, row.difficulty) for row in unsolved} == {(0.0, 5)}
    assert not set(prompts) & heldout
    assert {row.pass_rate for row in train.values()} <= {0.25, 0.5, 0.75, 1.0}
    pairs = read_jsonl(out / "pairs.jsonl", PreferencePair)
    assert {pair.id for pair in pairs} <= set(prompts)
    why = {("malformed", None), ("wrong", "numeric"), ("wrong", "exact")}
    assert {(pair.rejected_because, pair.failed_check) for pair in pairs} <= why
    assert not any(None in (pair.chosen_sample, pair.rejected_sample) for pair in pairs)


def test_a_spent_budget_ends_the_stage_with_what_it_paid_for(run: Any, tmp_path: Path) -> None:
    """Not all of 320 responses fit into 8,000 tokens; the rest is counted, and the quotas say that
    rows are missing."""
    with pytest.raises(InputError, match="missing"):
        run(max_total_tokens=8000)
    dropped = Counter(row["cause"] for row in read_rows(tmp_path / "out0" / "dropped.jsonl"))
    assert dropped["unasked"] > 10
    spent = json.loads((tmp_path / "out0" / "teachers.json").read_text())["spent"][0]["tokens"]
    assert 0 < spent <= 8000
