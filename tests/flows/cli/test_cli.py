"""The command line's contract: what is printed where, and the commands that need no run."""

import io
import os
import re
import sys
from pathlib import Path

import pytest

from flows.cli import answer, show
from flows.cli.main import COMMANDS, GROUPS, main
from flows.cli.terminal import Terminal
from flows.recipe.resolve import resolve, resolve_table
from flows.recipe.shipped import shipped_recipes, takes
from flows.recipe.table import read_recipe
from flows.runs.record import record_name
from infra.accelerator import Accelerator, Found
from infra.store.local_objects import Files
from infra.store.store import open_store
from schemas.artifact import ArtifactRef
from schemas.base import InputError
from schemas.job import JobStatus
from schemas.reports import RunRecord, StageRecord


def test_recipes_lists_what_is_shipped(lyceum):
    listed = lyceum("recipes", "--json").json["recipes"]
    assert [one["name"] for one in listed] == sorted(shipped_recipes())
    found = {one["name"]: one for one in listed}
    assert found["quickstart"]["data"] == ["made problems"]
    assert found["g_rar"]["asks"] == ["openai/gpt-oss-120b (vllm)"]
    assert found["open_data"]["data"][0] == "gsm8k (--data)"
    assert {row["target"] for row in found["default"]["takes"]} == {"v5e-8", "v3-8"}


def test_each_recipe_fits_both_targets_as_shipped_or_with_settings_that_it_takes() -> None:
    planned = [one for one in takes() if one.by == "plan"]
    fitting = {(one.recipe, one.target) for one in planned if one.fits == "yes"}
    for name in shipped_recipes().keys() - {"quickstart", "open_data"}:
        assert {(name, "v5e-8"), (name, "v3-8")} <= fitting, name
        as_shipped = [one.target for one in planned if one.recipe == name and not one.settings]
        assert as_shipped == ["v5e-8", "v3-8"]
    for one in planned:
        table = read_recipe(one.recipe, None)
        table.change(tuple(one.settings.split()))
        resolve_table(table, None, need_data=False)


def test_recipes_are_read_on_a_terminal_of_80_columns(lyceum):
    lines = lyceum("recipes").out.splitlines()
    assert max(map(len, lines)) < 80
    text = " ".join(" ".join(lines).split())
    assert "takes: 1 h 57 min, 9.39 USD on v5e-8, plus distill, rebalance, export (pl" in text
    assert "A tiny Gemma 3 learns to reason, on a laptop, from nothing" in text


def test_plan_of_a_fresh_store_runs_everything_and_writes_nothing(tiny_recipe, tmp_path, lyceum):
    command = ["plan", tiny_recipe, "--store", tmp_path / "store"]
    plan = lyceum(*command, "--json").json
    assert set(plan) == {"recipe", "target", "fits", "stages", "seconds", "cost_usd", "at_least"}
    assert (plan["recipe"], plan["target"], plan["fits"]) == ("tiny", "local", True)
    reasons = {one["name"]: (one["cached"], one["reason"]) for one in plan["stages"]}
    assert reasons["distill"] == (False, "no artifact has this key")
    assert reasons["rebalance"] == (False, "waits for distill")
    assert plan["seconds"] is None  # nothing like it was ever run
    assert plan["at_least"] == {"seconds": 0, "cost_usd": 0, "without": ["distill", "rebalance"]}
    said = " ".join(lyceum(*command).out.split())
    assert "No estimate yet: no earlier run has timed distill, rebalance." in said
    assert not (tmp_path / "store").exists()


def test_why_without_any_artifact_says_so(tiny_recipe, tmp_path, lyceum):
    command = ["why", tiny_recipe, "distill", "--store", tmp_path / "store"]
    why = lyceum(*command, "--json").json
    assert (why["cached"], why["nearest"], why["differences"]) == (False, None, [])
    assert "The store has no artifact of kind distill" in lyceum(*command).out


def write_run(
    root: Path, recipe: Path, run_id: str, started: float, stages: tuple[StageRecord, ...] = ()
) -> None:
    """A run record, as a failed run leaves it."""
    store = open_store(root / "store")
    where = {"target": "local", "store": store.uri, "status": "failed", "stages": stages}
    parsed = resolve(str(recipe)).recipe
    record = RunRecord(run_id=run_id, recipe=parsed, started=started, **where)
    store.write_json(record_name(run_id), record)


def test_runs_lists_records_oldest_first(tiny_recipe, tmp_path, lyceum, monkeypatch):
    """On a narrow terminal, too, a name stays whole, to be copied."""
    place = ["--store", tmp_path / "store"]
    assert f"No run is in {place[1].as_uri()}; --store" in lyceum("runs", *place).out
    with monkeypatch.context() as closed:  # as `>&-` and some schedulers leave it
        closed.setattr(sys, "stdout", None)
        lyceum("runs", *place)
    write_run(tmp_path, tiny_recipe, "tiny-a", started=20.0)
    write_run(tmp_path, tiny_recipe, "tiny-b", started=10.0)
    listed = lyceum("runs", *place, "--json").json["runs"]
    assert [one["run_id"] for one in listed] == ["tiny-b", "tiny-a"]
    assert "Valid: tiny-a, tiny-b." in lyceum("report", "tiny-c", *place, code=2).err

    long = "tiny-20261123-212111-b7af"
    write_run(tmp_path, tiny_recipe, long, started=30.0)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    for columns in ("80", "20"):  # of fewer than 80 the terminal wraps the lines
        monkeypatch.setenv("COLUMNS", columns)
        lines = re.sub(r"\x1b\[\d*m", "", lyceum("runs", *place).out).splitlines()
        assert max(map(len, lines)) <= 80
        assert any(long in line and "failed" in line for line in lines)


def test_a_report_of_a_store_that_may_only_be_read_goes_elsewhere(
    tiny_recipe, tmp_path, lyceum, monkeypatch
):
    """As a bucket that a team shares; root may write where nobody else can."""
    write_run(tmp_path, tiny_recipe, "tiny-a", started=1.0)
    writing = Files.write

    def refuse(files: Files, name: str, data: bytes, seconds: float | None = None) -> None:
        if files.root == tmp_path / "store":
            raise InputError("it may only be read.")
        writing(files, name, data, seconds)

    monkeypatch.setattr(Files, "write", refuse)
    command = ["report", "tiny-a", "--store", tmp_path / "store"]
    assert "it may only be read. Or let the page go elsewhere: --to" in lyceum(*command, code=2).err
    said = lyceum(*command, "--to", tmp_path / "page", "--json").json
    assert Path(said["report"]).is_relative_to(tmp_path / "page")
    assert "tiny-a" in Path(said["report"]).read_text(encoding="utf-8")
    assert "is not empty" in lyceum(*command, "--to", tmp_path / "page", code=2).err


def test_what_a_terminal_cannot_show_is_spelled_out(monkeypatch):
    """As on a machine whose locale is Latin-1."""
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "latin-1"))
    monkeypatch.setattr(show, "recipes", lambda value: ["3 \N{RIGHTWARDS ARROW} 5"])
    assert main(["recipes"]) == 0
    sys.stdout.flush()
    assert sys.stdout.buffer.getvalue() == b"3 \\u2192 5\n"


@pytest.mark.parametrize("command", [["runs", "--json"], ["runs", "--help"]])
def test_an_answer_that_a_full_disk_does_not_take_is_told(command, tmp_path, monkeypatch, capsys):
    """At once, and not by Python as it ends."""
    monkeypatch.setenv("LYCEUM_STORE", str(tmp_path / "store"))
    with open("/dev/full", "w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(command) == 1
    assert capsys.readouterr().err == "lyceum: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("lost", ["reader", "disk"])
def test_a_run_whose_messages_nobody_takes_goes_on(lost, monkeypatch, capsys):
    """rich would end the process, and let its answer go nowhere."""
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing if lost == "reader" else "/dev/full", "w", encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        for tell in (Terminal().say, answer.say, Terminal().say):
            tell("the deadline is near")
    print("the answer")  # noqa: T201
    assert capsys.readouterr().out == "the answer\n"


def test_ask_needs_a_stage_that_left_a_model(tiny_recipe, tmp_path, lyceum):
    gone = ArtifactRef(kind="sft", key="k", digest="d")
    trained = StageRecord(name="tune", kind="sft", key="k", status="ran", artifact=gone)
    write_run(tmp_path, tiny_recipe, "tiny-a", started=1.0)
    write_run(tmp_path, tiny_recipe, "tiny-b", started=2.0, stages=(trained,))
    for arguments, expected in [
        (["tiny-a", "Why?"], "run 'tiny-a' has no trained model"),
        (["tiny-b", "Why?", "--stage", "rebalance"], "Stages with one: tune."),
        (["tiny-b", "Why?"], "model of stage 'tune' is no longer in the store; `lyceum run`"),
        (["tiny-b", " "], "the question is empty"),
    ]:
        assert expected in lyceum("ask", *arguments, "--store", tmp_path / "store", code=2).err


def test_the_report_of_a_run_that_goes_on_leaves_its_record_alone(tiny_recipe, tmp_path):
    """The run writes it; what the report command has read is old by then."""
    write_run(tmp_path, tiny_recipe, "tiny-a", started=1.0)
    store = open_store(tmp_path / "store")
    failed = store.read_json(record_name("tiny-a"), RunRecord)
    for status, written in (("failed", True), ("running", False)):
        store.write_json(record_name("tiny-a"), failed.model_copy(update={"status": status}))
        assert main(["report", "tiny-a", "--store", str(tmp_path / "store")]) == 0
        record = store.read_json(record_name("tiny-a"), RunRecord)
        assert (record.report is not None) == written
        assert store.path("runs/tiny-a/report.html").is_file()


def test_doctor_finds_the_tested_versions(tmp_path, lyceum):
    checks = lyceum("doctor", "--store", tmp_path / "store", "--json").json["checks"]
    well = {one["name"] for one in checks if one["well"]}
    assert well >= {"python", "jax", "prefect", "google-tunix", "store"}
    assert not (tmp_path / "store").exists()


def test_doctor_shows_what_is_wrong_first_and_packages_in_one_line(tmp_path, lyceum, monkeypatch):
    needs = ["packaging>=1", "pytest>=999", "numpy>=1"]
    monkeypatch.setattr("importlib.metadata.requires", lambda name: needs)
    (tmp_path / "store").write_text("mine", encoding="utf-8")
    lines = lyceum("doctor", "--store", tmp_path / "store", code=1).out.splitlines()
    begins = [line[:12].split() for line in lines if not line.startswith(" ")]
    assert begins[:3] == [["!!", "store"], ["!!", "pytest"], ["ok", "python"]]
    assert lines[-2:] == [
        "!!  packages        2 of 3 as tested; `lyceum doctor --json` lists them",
        "What is marked !! is wrong.",
    ]
    assert not any("numpy" in line for line in lines)
    assert "is a file" in " ".join(" ".join(lines).split())


def test_what_a_notebook_sets_for_itself_is_not_ours(capsys, monkeypatch):
    """Its kernel's environment names a backend of matplotlib that is installed beside it, and calls
    everything a terminal. A width that is none is no width."""
    monkeypatch.setenv("COLUMNS", "\N{SUPERSCRIPT TWO}")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert main(["recipes"]) == 0
    assert os.environ["MPLBACKEND"] == "agg"
    capsys.readouterr()
    with Terminal() as terminal:
        terminal.progress("sft", JobStatus(state="running", heartbeat=0.0))
    assert capsys.readouterr().err == "  sft: running for 0 s\n"


def test_doctor_shows_the_accelerator_and_what_keeps_jax_from_it(tmp_path, lyceum, monkeypatch):
    """What JAX would find is said by the test: nothing is here."""
    given = {"platform": "cuda", "kind": "Tesla T4", "driver": "cuda 12090"}
    gpu = Accelerator(devices=2, memory_bytes=14 * 2**30, **given)
    broken = Found(None, "this machine has an NVIDIA GPU, and JAX cannot use it: why", wrong=True)
    shown = "2 x Tesla T4 (cuda), 14.0 GiB each for jobs; cuda 12090; jax 0."
    for found, well, words in ((Found(gpu), True, shown), (broken, False, broken.why)):
        monkeypatch.setattr("flows.cli.doctor.find", lambda found=found: found)
        told = lyceum("doctor", "--store", tmp_path / "store", "--json", code=0 if well else 1)
        [check] = [one for one in told.json["checks"] if one["name"] == "accelerator"]
        assert (check["well"], check["found"][: len(words)]) == (well, words)


def test_help_groups_every_command_by_what_people_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) < 80
    assert re.findall(r"^(\w+):$", text, re.MULTILINE) == [*GROUPS, "options"]
    found = dict(re.findall(r"^  (\w+) +([A-Z][^\n]*(?:\n {10,}[^\n]+)*)", text, re.MULTILINE))
    assert [*found] == [command.__name__ for command in COMMANDS]
    assert [name for name, words in found.items() if not words.rstrip().endswith(".")] == []
