"""`lyceum plan` and `lyceum run` for a TPU, with a compiler of the same protocol that answers at
once: sizes by a formula of the config."""

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from flows.cli.main import main
from flows.planning import compile_cache
from flows.planning import stage_plans as planning
from flows.planning.compile_cache import Compiler, Question
from flows.planning.fit_search import settings_to_try
from flows.recipe.resolve import ResolvedStage, resolve
from flows.runs.wording import duration
from infra.settings import Settings
from infra.store.store import Store, open_store
from schemas.artifact import Manifest
from schemas.base import StageFailed
from tests.fakes.process import until
from tests.fakes.recipe import TINY

FAKE = """
import hashlib, json, os, sys, time
GIB = 2**30
asked = open(os.environ["FAKE_LOG"], "a", buffering=1)
asked.write(f"process {os.getpid()}\\n")
for line in sys.stdin:
    question = json.loads(line)
    stage = question["stage"]
    config = stage["config"]
    names = ["train_step", "validation_loss"] if stage["kind"] == "sft" else ["generate"]
    if "program" not in question:
        asked.write(f"programs {stage['kind']} {stage['model']} {sorted(stage['upstream'])}\\n")
        def seen(name):
            keys = ["batch_size", "response_length"]
            if name != "generate":
                keys += ["micro_batch_size", "remat", "sequence_length"]
            looked = {key: config.get(key) for key in keys}
            return hashlib.sha256(json.dumps([name, looked]).encode()).hexdigest()
        sizes = {"calls": 100, "resident_bytes": GIB}
        answer = {"programs": [{"name": name, "digest": seen(name), **sizes} for name in names]}
    else:
        name = names[question["program"]]
        asked.write(f"compile {name} length={config.get('sequence_length')}\\n")
        if os.environ.get("FAKE_DIES") == name:
            sys.exit("the compiler crashed")
        killed = os.environ["FAKE_LOG"] + ".killed"
        if os.environ.get("FAKE_KILLED") == name and not os.path.exists(killed):
            open(killed, "w").close()
            os.kill(os.getpid(), 9)
        if os.environ.get("FAKE_WAITS") == name:
            time.sleep(600)
        rows = (config.get("micro_batch_size") or config["batch_size"]) / 8
        share = {"none": 1.0, "dots": 0.5, "layer": 0.2, "chunks": 0.2}[config.get("remat", "none")]
        length = config.get("sequence_length") or config["response_length"]
        needed = rows * share * length / 1024 * float(os.environ["FAKE_GIB"])
        size = 1 + (needed if name == "train_step" else 0.5)
        refused = "Ran out of memory" if size > 15.75 else None
        answer = {"report": {
            "argument_bytes": GIB, "temporary_bytes": int((size - 1) * GIB), "output_bytes": 0,
            "alias_bytes": 0, "code_bytes": 0, "hbm_bytes": int(size * GIB),
            "flops": 0.0 if refused else 197e12, "bytes_accessed": 0.0, "link_bytes": 0.0,
            "uncounted": [], "compile_seconds": 0.1, "refusal": refused,
        }}
    print(json.dumps(answer), flush=True)
"""

RECIPE = (
    TINY
    + """
[stages.sft]
kind = "sft"
inputs = { examples = "rebalance" }
config = { steps = 10, batch_size = 64, sequence_length = 1024, optimizer = {learning_rate = 1e-3}}

[stages.eval]
kind = "reasoning_eval"
inputs = { prompts = "rebalance", policy = "sft" }
config = { prompt_length = 64, response_length = 64, batch_size = 16, min_items = 2 }
"""
)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that answers at once, a recipe, and an empty store and cache; returns the file in
    which it notes what it was asked."""
    (tmp_path / "fake.py").write_text(FAKE, encoding="utf-8")
    (tmp_path / "tiny.toml").write_text(RECIPE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compile_cache, "COMMAND", (sys.executable, str(tmp_path / "fake.py")))
    monkeypatch.setattr(compile_cache, "has_compiler", lambda: True)
    monkeypatch.setattr(planning, "has_compiler", lambda: True)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "asked.txt"))
    monkeypatch.setenv("FAKE_GIB", "1.0")
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "asked.txt"


PLAN = ["plan", "tiny.toml", "--target", "v5e-8", "--store", "store"]


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*PLAN, *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def asked(log: Path, what: str) -> list[str]:
    return [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith(what)]


def test_each_program_of_each_stage_on_devices_is_compiled_once_and_added_up(fake, capsys):
    code, value = plan(capsys)
    assert (code, value["fits"]) == (0, True)
    assert set(value) == {"recipe", "target", "fits", "stages", "seconds", "cost_usd", "at_least"}
    stages = {stage["name"]: stage for stage in value["stages"]}
    named = {name: [one["name"] for one in stage["programs"]] for name, stage in stages.items()}
    assert named["sft"] == ["train_step", "validation_loss"]
    assert (named["eval"], named["distill"]) == (["generate"], [])
    step = stages["sft"]["programs"][0]
    # 8 rows a device, and what is resident
    assert (step["hbm_bytes"], step["fits"], step["bound"]) == (10 * 2**30, True, "compute")
    assert step["roofline_seconds"] == pytest.approx(1.0)
    assert stages["sft"]["seconds"] == pytest.approx(360 + 200 / 0.4)
    assert stages["sft"]["cost_usd"] == pytest.approx(8 * 0.60 * stages["sft"]["seconds"] / 3600)
    assert value["seconds"] == pytest.approx(sum(stage["seconds"] for stage in value["stages"]))
    known = {name: value[name] for name in ("seconds", "cost_usd")}
    assert value["at_least"] == {**known, "without": []}
    # the model of its policy
    assert "programs reasoning_eval gemma3-tiny ['policy', 'prompts']" in asked(fake, "programs")
    assert len(asked(fake, "compile")) == 3


def test_a_plan_seen_before_starts_no_compiler(fake, capsys, monkeypatch):
    first = plan(capsys)
    monkeypatch.setattr(compile_cache, "COMMAND", ("false",))
    assert plan(capsys) == first


def test_a_changed_config_is_asked_about_and_programs_it_shares_are_not_compiled_again(
    fake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan(capsys)
    plan(capsys, "--set", "stages.sft.config.steps=20")
    assert len(asked(fake, "compile")) == 3
    plan(capsys, "--set", "stages.sft.config.sequence_length=512")
    assert len(asked(fake, "compile")) == 5


def test_what_fits_is_looked_for_and_compiled(fake, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_GIB", "2.0")  # 1 + 1 + 8 rows x 2 GiB
    code, value = plan(capsys)
    assert (code, value["fits"]) == (3, False)
    # half of it, all else as it was
    assert value["suggestion"] == ["stages.sft.config.micro_batch_size=32"]
    expected = value["seconds"]  # as it would be
    code, value = plan(capsys, "--set", value["suggestion"][0])
    assert (code, value["fits"], value["seconds"]) == (0, True, expected)


@pytest.mark.parametrize(
    ("gib", "changes"),
    [
        ("20", "micro_batch_size=16 remat=layer"),  # a row takes 20 GiB, 10 with `dots`, 4 `layer`
        ("100", "micro_batch_size=8 remat=layer sequence_length=640"),  # 20 with `layer` at 1,024
    ],
)
def test_when_fewer_rows_are_not_enough_more_is_computed_again_and_lengths_are_cut_last(
    fake: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    gib: str,
    changes: str,
) -> None:
    monkeypatch.setenv("FAKE_GIB", gib)
    _, value = plan(capsys)
    assert value["suggestion"] == [f"stages.sft.config.{one}" for one in changes.split()]
    kept = all("length=1024" in line for line in asked(fake, "compile train_step"))
    assert kept == ("sequence_length" not in changes)


def test_where_nothing_helps_nothing_is_suggested(fake, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_GIB", "1000.0")
    _, value = plan(capsys)
    assert (value["fits"], value["suggestion"]) == (False, [])
    assert (value["seconds"], value["cost_usd"]) == (None, None)
    known = sum(stage["seconds"] or 0 for stage in value["stages"])
    assert (value["at_least"]["seconds"], value["at_least"]["without"]) == (known, ["sft"])
    assert main(PLAN) == 3
    usd = f"{value['at_least']['cost_usd']:.2f} USD by list price"
    said = f"Expected: at least {duration(known)}, {usd}, and what sft will take"
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_recipe_is_planned_without_the_data_it_reads(fake, capsys):
    keys = {"path": "a.jsonl", "domain": "math", "prompt": "p", "reasoning": "r", "answer": "a"}
    lines = [f'{key} = "{value}"' for key, value in keys.items()]
    source = "\n".join(["[[stages.distill.config.teachers.sources]]", *lines, ""])
    taught = '"procedural"\nrows = { summarization = 60 }\ngrounded = {}\n'
    text = RECIPE.replace(taught, f'"dataset"\n{source}')
    Path("tiny.toml").write_text(text, encoding="utf-8")
    code, value = plan(capsys)
    assert (code, value["fits"]) == (0, True)
    assert "name it with --data DIR" in value["stages"][0]["reason"]
    assert value["stages"][1]["reason"] == "waits for distill"
    assert main(["run", "tiny.toml", "--store", "store"]) == 2
    assert "name it with --data DIR" in capsys.readouterr().err


def test_micro_batches_stay_multiples_of_the_devices() -> None:
    config = {"batch_size": 48, "micro_batch_size": None, "remat": "dots"}
    question = Question("sft", "sft", 1, config, "gemma3-tiny", {})
    found = {setting.name: setting.values for setting in settings_to_try(question, 8)}
    assert found == {
        "micro_batch_size": (48, 24, 16, 8),
        "remat": ("dots", "layer", "chunks"),
        "batch_size": (48, 24, 8),
    }


def test_a_budget_is_part_of_the_plan(fake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan(capsys, "--hours", "9", "--usd", "100")[0] == 0
    code, value = plan(capsys, "--hours", "0.5")
    assert (code, value["fits"]) == (3, False)
    most = "It takes 0.61 of 0.5 hours; most of it: sft 0.24, eval 0.17"
    assert value["problems"][0].startswith(most)
    assert "US dollars" in plan(capsys, "--usd", "1")[1]["problems"][0]
    assert main(["plan", "tiny.toml", "--hours", "0"]) == 2
    assert "--hours 0: give a number above 0" in capsys.readouterr().err


def test_people_see_memory_time_cost_and_the_fix(fake, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_GIB", "2.0")
    assert main(PLAN) == 3
    shown = capsys.readouterr()
    assert "train_step needs 18.00 of 15.75 GiB" in shown.out
    assert "--set stages.sft.config.micro_batch_size=32" in shown.out
    assert "of 3: sft train_step" in shown.err, "side by side, in any order"
    assert "It fits" not in shown.out


def test_a_run_that_does_not_fit_is_not_submitted(fake, capsys, monkeypatch):
    monkeypatch.setenv("FAKE_GIB", "2.0")
    # a bucket is not what this is about
    monkeypatch.setattr("flows.preamble.check_reach", lambda target, store: None)
    assert main(["run", "tiny.toml", "--target", "v5e-8", "--store", "store"]) == 3
    message = capsys.readouterr().err.splitlines()[-1]
    wrong = "Stage sft: train_step needs 18.00 of 15.75 GiB"
    assert f"does not fit v5e-8; nothing was submitted. {wrong}" in message
    assert message.endswith("--set stages.sft.config.micro_batch_size=32")
    assert not list(Path("store").glob("runs/*"))


def test_without_the_compiler_a_run_says_that_it_is_not_planned_and_a_plan_how_to_get_it(
    fake: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (compile_cache, planning):
        monkeypatch.setattr(module, "has_compiler", lambda: False)
    assert main(PLAN) == 2
    assert "`uv sync --extra tpu`" in capsys.readouterr().err
    planning.check_fit(resolve("tiny.toml"), open_store("store"), "v5e-8")
    assert "the TPU compiler is not installed here" in capsys.readouterr().err


def question(kind: str = "sft") -> Question:
    return Question("sft", kind, 1, {"batch_size": 64, "sequence_length": 1024}, "gemma3-tiny", {})


def test_a_compiler_that_dies_is_named_with_stage_and_program(fake, monkeypatch):
    monkeypatch.setenv("FAKE_DIES", "validation_loss")
    said = "stage sft, program validation_loss on v5e-8: .*exit code 1: the compiler crashed"
    with (
        pytest.raises(StageFailed, match=said),
        Compiler("v5e-8", Settings.from_environment(), lambda text: None) as compiler,
    ):
        compiler.compile([question()])


def test_a_compile_that_runs_out_of_memory_is_tried_again_alone(fake, monkeypatch):
    monkeypatch.setenv("FAKE_KILLED", "train_step")
    monkeypatch.setattr(compile_cache, "_workers", lambda: 2)
    with Compiler("v5e-8", Settings.from_environment(), print) as compiler:
        assert all(program.report for program in compiler.compile([question()])[0])


def compile_in_vain(compiler: Compiler) -> None:
    with pytest.raises(StageFailed, match="stopped"):
        compiler.compile([question()])


def test_leaving_ends_the_processes_whatever_they_do(fake, monkeypatch):
    monkeypatch.setenv("FAKE_WAITS", "validation_loss")
    with Compiler("v5e-8", Settings.from_environment(), lambda text: None) as compiler:
        compiler.programs([question()])
        threading.Thread(target=compile_in_vain, args=(compiler,)).start()
        until(lambda: any("validation_loss" in line for line in asked(fake, "compile")))
    for pid in [int(line.split()[1]) for line in asked(fake, "process")]:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def commit(
    store: Store, stage: ResolvedStage, inputs: dict[str, Manifest], target: str, seconds: float
) -> Manifest:
    """The artifact of a stage that has run."""
    refs = {name: manifest.ref() for name, manifest in inputs.items()}
    out = Path("out") / stage.name
    out.mkdir(parents=True)
    (out / "rows.jsonl").write_text(stage.name, encoding="utf-8")
    identity = {"kind": stage.kind, "version": stage.version, "config": stage.config_json}
    key = stage.key({name: manifest.digest for name, manifest in inputs.items()})
    made = {"execution": {"target": target, "seconds": seconds}, "attempt": "0", "files": ()}
    given = {"inputs": refs, "dependencies": stage.dependencies}
    draft = Manifest(key=key, **identity, **made, **given)
    return store.commit(draft, out)


def test_what_ran_is_cached_and_measures_the_next_plan(fake, capsys):
    plan(capsys)  # as before any run: it is what measured times are compared with
    store, recipe = open_store("store"), resolve("tiny.toml")
    distill = commit(store, recipe.stage("distill"), {}, "local", 20.0)
    rebalance = commit(store, recipe.stage("rebalance"), {"examples": distill}, "local", 5.0)
    commit(store, recipe.stage("sft"), {"examples": rebalance}, "v5e-8", 800.0)  # 4 x the roofline
    _, value = plan(capsys)
    stages = {stage["name"]: stage for stage in value["stages"]}
    cached = {name for name, stage in stages.items() if stage["cached"]}
    assert cached == {"distill", "rebalance", "sft"}
    assert (stages["sft"]["seconds"], stages["sft"]["programs"]) == (0.0, [])

    compiled = len(asked(fake, "compile"))
    _, value = plan(capsys, "--set", "stages.sft.config.sequence_length=512")
    sft = next(stage for stage in value["stages"] if stage["name"] == "sft")
    assert sft["seconds"] == pytest.approx(360 + 4.0 * 200)
    assert sft["basis"].startswith("median of 1 measured runs")
    # of the new programs; those of the run that was measured were known
    assert len(asked(fake, "compile")) == compiled + 2
    _, value = plan(capsys, "--set", "stages.sft.config.sequence_length=512", "--target", "v3-8")
    sft = next(stage for stage in value["stages"] if stage["name"] == "sft")
    assert sft["basis"].startswith("40% of the roofline")
