"""An artifact whose bytes changed: no command tells less than it seems to, and a run that repairs
it says so wherever it is looked at."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.cli.main import main
from infra.store.store import Store
from schemas.base import InputError
from schemas.reports import RunRecord
from tests.flows.runs.synthetic_run import SKILL, damage, write_run


@pytest.fixture
def run(tmp_path: Path) -> tuple[Store, RunRecord]:
    return write_run(tmp_path / "store")


Says = Callable[..., tuple[int, str, str]]


@pytest.fixture
def says(run: tuple[Store, RunRecord], capsys: pytest.CaptureFixture[str]) -> Says:
    """The exit code of a command about the store, and what it printed on both channels."""

    def command(*arguments: str) -> tuple[int, str, str]:
        code = main([*arguments, "--store", run[0].uri])
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err
        return code, printed.out, printed.err

    return command


WHY = "stage sft_eval: its artifact is damaged: items.jsonl: has sha256"


def test_scores_write_what_is_whole_and_say_what_is_missing(run, says, tmp_path):
    damage(*run, "sft_eval", "items.jsonl")
    code, out, _ = says("scores", "demo-1", "--to", str(tmp_path / "out"))
    assert code == 1
    assert f"Left out: {WHY}" in out
    code, out, _ = says("scores", "demo-1", "--to", str(tmp_path / "json"), "--json")
    value = json.loads(out)
    assert code == 1
    assert list(value["left_out"]) == ["sft_eval"]
    tables = value["formats"]["parquet"]
    assert not any("sft_eval" in name for name in tables)
    assert any("simpo_eval" in name for name in tables)


def test_scores_of_nothing_that_is_whole_leave_nothing(run, says, tmp_path):
    for stage in run[1].stages:
        damage(*run, stage.name)
    code, _, err = says("scores", "demo-1", "--to", str(tmp_path / "out"), "--as", "parquet")
    assert code == 1
    assert WHY.partition(": items")[0] in err
    assert not (tmp_path / "out").exists()


def test_a_report_and_a_comparison_say_it_on_the_page_the_terminal_and_by_their_exit_code(
    run: tuple[Store, RunRecord], says: Says, tmp_path: Path
) -> None:
    write_run(tmp_path / "store", "demo-2", skill={**SKILL, "sft": 0.6})
    assert says("report", "demo-1")[0] == says("compare", "demo-1", "demo-2")[0] == 0
    damage(*run, "sft_eval", "items.jsonl")
    code, out, _ = says("report", "demo-1")
    assert (code, f"Left out: {WHY}" in out) == (1, True)
    runs = tmp_path / "store" / "runs"
    assert "its artifact is damaged" in (runs / "demo-1" / "report.html").read_text("utf-8")
    code, out, _ = says("compare", "demo-2", "demo-1")
    assert (code, "Left out: stage demo-1/sft_eval: its artifact is damaged" in out) == (1, True)
    assert "demo-1/sft_eval" in (runs / "demo-2" / "compare-demo-1.html").read_text("utf-8")
    code, out, _ = says("compare", "demo-2", "demo-1", "--json")
    assert (code, list(json.loads(out)["left_out"])) == (1, ["demo-1/sft_eval"])


def test_who_may_only_read_the_store_has_a_comparison_without_a_page(
    run: tuple[Store, RunRecord], says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "store", "demo-2", skill={**SKILL, "sft": 0.6})

    def refused(*_: object) -> None:
        raise InputError("the store is not writable")

    monkeypatch.setattr("flows.report.comparison.write_page", refused)
    code, out, _ = says("compare", "demo-1", "demo-2")
    assert (code, "sft_eval" in out, "No page: the store is not writable" in out) == (0, True, True)
    assert json.loads(says("compare", "demo-1", "demo-2", "--json")[1])["page"] is None


@pytest.mark.parametrize("stage", ["grpo_eval", "safety_eval", "base_safety"])
def test_the_gate_does_not_judge_by_what_is_left(run, says, stage):
    assert says("gate", "demo-1")[2] == ""
    damage(*run, stage, "items.jsonl")
    code, out, err = says("gate", "demo-1")
    assert (code, out) == (1, "")
    assert f"stage {stage}: its artifact is damaged" in err


@pytest.mark.parametrize(
    ("stage", "arguments", "expected"),
    [
        ("grpo", "ask demo-1 Why?", "model of stage 'grpo' is damaged"),
        ("grpo", "export demo-1 --to out", "model of stage 'grpo' is damaged"),
        ("sft_eval", "export demo-1 --to out", WHY),
        ("grpo", "rejudge demo-1 --rubric rubric.toml", "the ledger of stage 'grpo' is damaged"),
        ("sft_eval", "promote demo-1", WHY),
    ],
)
def test_what_needs_it_fails_and_changes_nothing(
    run: tuple[Store, RunRecord],
    says: Says,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
    arguments: str,
    expected: str,
) -> None:
    """The damage stays where it is: the run that repairs it is to find it, and to say so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tasks.exporting.round_trip.require_transformers", lambda: None)
    (tmp_path / "rubric.toml").write_text("[[rewards]]\nname = 'format'\n", encoding="utf-8")
    damage(*run, stage)
    before = sorted((tmp_path / "store").rglob("*"))
    code, out, err = says(*arguments.split())
    assert (code, out) == (2 if "promote" in arguments else 1, "")
    assert expected in err
    assert sorted((tmp_path / "store").rglob("*")) == before
    assert not (tmp_path / "out").exists()
