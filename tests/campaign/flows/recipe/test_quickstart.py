"""The README's first command, whole: minutes of training, and the figures it promises. Compiled as
for users."""

import json
import os
from pathlib import Path

import pytest

from tests.fakes.process import run_python

DATA = Path(__file__).parents[5] / "shared" / "data"


def lyceum(*arguments: str) -> dict:
    environment = {**os.environ, "XLA_FLAGS": ""}  # compiled as for users
    command = ("-m", "flows.cli.main", *arguments, "--json")
    result = run_python(*command, env=environment, timeout=1800)
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def store(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def run(store) -> dict:
    return lyceum("run", "quickstart", "--store", store)


def metrics(run: dict, stage: str) -> dict:
    return next(record["metrics"] for record in run["stages"] if record["name"] == stage)


def test_the_model_learns_to_reason_from_nothing(run):
    base, final = metrics(run, "base_eval"), metrics(run, "grpo_eval")
    assert base["n"] == final["n"] >= 300
    assert base["format_rate"] == base["exact_answer"] == 0
    assert final["format_rate"] >= 0.95
    assert final["exact_answer"] >= 0.74
    assert set(final["domains"]) == {
        "math",
        "coding",
        "science",
        "creative",
        "summarization",
        "general",
    }


def test_no_stage_after_sft_is_shown_to_lose(run):
    for stage in ("simpo_eval", "grpo_eval"):
        assert metrics(run, stage)["delta_exact_answer_high"] > 0


def test_the_model_learns_to_refuse_what_its_context_does_not_hold(run):
    base, final = metrics(run, "base_safety"), metrics(run, "safety_eval")
    assert final["n"] >= 120
    assert base["safe_rate"] == 0
    assert final["correct_rate"] > final["controls"]["always_abstain"]["correct_rate"]
    assert final["safe_rate"] >= 0.55
    assert final["answerable_correct_rate"] > 0
    assert final["controls"]["always_abstain"]["answerable_correct_rate"] == 0


@pytest.mark.skipif(not DATA.is_dir(), reason="needs ../shared/data")
def test_the_chain_runs_on_real_records(tmp_path):
    run = lyceum("run", "open_data", "--data", str(DATA), "--store", str(tmp_path / "store"))
    assert {record["status"] for record in run["stages"]} == {"ran"}
    sft = metrics(run, "sft")
    assert sft["loss_last"] < 0.8 * sft["loss_first"]
    read = {source["family"]: source["read"] for source in metrics(run, "distill")["sources"]}
    assert read["gsm8k"] == 1000
    assert read["humaneval"] == 164
    assert metrics(run, "safety_eval")["n"] == 120


def test_a_bucket_holds_the_same_bytes(run, gcs_bucket, tmp_path, monkeypatch):
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path))
    in_bucket = lyceum("run", "quickstart", "--store", f"gs://{gcs_bucket}/quickstart")
    assert [stage["artifact"] for stage in in_bucket["stages"]] == [
        stage["artifact"] for stage in run["stages"]
    ]
    again = lyceum("run", "quickstart", "--store", f"gs://{gcs_bucket}/quickstart")
    assert {stage["status"] for stage in again["stages"]} == {"cached"}
