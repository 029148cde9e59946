"""`lyceum plan` and `lyceum run` for a TPU, by the compiler of `conftest.py`."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.planning import compile_cache
from flows.planning import stage_plans as planning
from flows.planning.compile_cache import Compiler, Question
from flows.planning.fit_search import settings_to_try
from flows.recipe.resolve import resolve
from flows.runs.wording import duration
from infra.settings import Settings
from infra.store.store import open_store
from schemas.base import StageFailed
from tests.fakes.process import until
from tests.fakes.recipe import READS, TINY
from tests.flows.growing_stores import commit_stage
from tests.flows.planning.conftest import RECIPE

PLAN = ["plan", "tiny.toml", "--target", "v5e-8", "--store", "store"]


@pytest.fixture
def plan(fake: Path, lyceum: Any) -> Callable[..., dict[str, Any]]:
    """What `lyceum plan --json` prints."""
    return lambda *arguments, code=0: lyceum(*PLAN, *arguments, "--json", code=code).json


def asked(log: Path, what: str) -> list[str]:
    return [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith(what)]


def test_each_program_of_each_stage_on_devices_is_compiled_once_and_added_up(fake, plan):
    value = plan()
    assert value["fits"]
    assert set(value) == {"recipe", "target", "fits", "stages", "seconds", "cost_usd", "at_least"}
    stages = {stage["name"]: stage for stage in value["stages"]}
    named = {name: [one["name"] for one in stage["programs"]] for name, stage in stages.items()}
    assert named["sft"] == ["train_step", "validation_loss"]
    assert (named["sft_eval"], named["distill"]) == (["generate"], [])
    step = stages["sft"]["programs"][0]
    # 8 rows a device, and what is resident
    assert (step["hbm_bytes"], step["fits"], step["bound"]) == (10 * 2**30, True, "compute")
    assert step["roofline_seconds"] == pytest.approx(1.0)
    assert stages["sft"]["seconds"] == pytest.approx(360 + 200 / 0.4)
    assert stages["sft"]["cost_usd"] == pytest.approx(8 * 0.60 * stages["sft"]["seconds"] / 3600)
    # nobody has run the like of two stages: their machines boot
    assert (value["seconds"], stages["distill"]["cost_usd"]) == (None, None)
    known = 2 * 360 + sum(stages[name]["seconds"] for name in ("sft", "sft_eval"))
    usd = pytest.approx(8 * 0.60 * known / 3600)
    without = ["distill", "rebalance"]
    assert value["at_least"] == {"seconds": known, "cost_usd": usd, "without": without}
    # the model of its policy
    assert "programs reasoning_eval gemma3-tiny ['policy', 'prompts']" in asked(fake, "programs")
    assert len(asked(fake, "compile")) == 3


def test_a_plan_seen_before_starts_no_compiler(plan, monkeypatch):
    first = plan()
    monkeypatch.setattr(compile_cache, "COMMAND", ("false",))
    assert plan() == first


def test_a_cache_that_cannot_be_made_is_named(fake, tmp_path, lyceum, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "file"))
    said = lyceum("plan", "tiny.toml", "--target", "v5e-8", code=2).err
    assert "set LYCEUM_CACHE to a directory that can be written" in said


def test_a_changed_config_is_asked_about_and_programs_it_shares_are_not_compiled_again(fake, plan):
    plan()
    plan("--set", "stages.sft.config.steps=20")
    assert len(asked(fake, "compile")) == 3
    plan("--set", "stages.sft.config.sequence_length=512")
    assert len(asked(fake, "compile")) == 5


@pytest.mark.parametrize("name", ["LYCEUM_TENSOR_PARALLEL", "LYCEUM_WHOLE_WEIGHTS_GIB"])
def test_settings_that_spread_the_weights_are_asked_about(fake, plan, monkeypatch, name):
    monkeypatch.setenv(name, "1")
    plan()
    before = len(asked(fake, "programs"))
    monkeypatch.setenv(name, "2")
    plan()
    assert len(asked(fake, "programs")) == 2 * before


def test_what_fits_is_looked_for_and_compiled(plan, monkeypatch):
    monkeypatch.setenv("FAKE_GIB", "2.0")  # 1 + 1 + 8 rows x 2 GiB
    large = plan(code=3)
    # half of it, all else as it was
    half = ["stages.sft.config.micro_batch_size=32"]
    assert (large["fits"], large["suggestion"]) == (False, half)
    small = plan("--set", *half)
    assert (small["fits"], small["at_least"]) == (True, large["at_least"]), "as it would be"


@pytest.mark.parametrize(
    ("gib", "changes"),
    [
        ("20", "micro_batch_size=16 remat=layer"),  # a row takes 20 GiB, 10 with `dots`, 4 `layer`
        ("100", "micro_batch_size=8 remat=layer sequence_length=640"),  # 20 with `layer` at 1,024
    ],
)
def test_when_fewer_rows_are_not_enough_more_is_computed_again_and_lengths_are_cut_last(
    fake, plan, monkeypatch, gib, changes
):
    monkeypatch.setenv("FAKE_GIB", gib)
    assert plan(code=3)["suggestion"] == [f"stages.sft.config.{one}" for one in changes.split()]
    kept = all("length=1024" in line for line in asked(fake, "compile train_step"))
    assert kept == ("sequence_length" not in changes)


def test_stages_that_a_run_has_side_by_side_are_planned_so(fake, plan, lyceum, monkeypatch):
    """As the first lines of the run say; the price is that of both. With one at a time they are
    added up."""
    beside = RECIPE[RECIPE.index("[stages.sft]") :].split("[stages.sft_eval]")[0]
    other = beside.replace("stages.sft", "stages.other")
    Path("tiny.toml").write_text(f"{RECIPE}\n{other}", encoding="utf-8")
    monkeypatch.setenv("LYCEUM_PARALLEL_JOBS", "1")
    added = plan()["at_least"]
    monkeypatch.setenv("LYCEUM_PARALLEL_JOBS", "2")
    value = plan("--hours", "9")
    stages = {stage["name"]: stage["seconds"] or 360.0 for stage in value["stages"]}
    seconds = added["seconds"] - min(stages["other"], stages["sft_eval"] + stages["sft"])
    assert value["at_least"] == {**added, "seconds": pytest.approx(seconds)}
    assert sum(one["seconds"] for one in value["sessions"]["listed"]) == pytest.approx(seconds)
    said = f"(side by side; one after another {duration(added['seconds'])}), and what"
    assert said in " ".join(lyceum(*PLAN).out.split())


def test_where_nothing_helps_nothing_is_suggested(plan, lyceum, monkeypatch):
    monkeypatch.setenv("FAKE_GIB", "1000.0")
    value = plan(code=3)
    assert (value["fits"], value["suggestion"]) == (False, [])
    assert (value["seconds"], value["cost_usd"]) == (None, None)
    known = 2 * 360 + sum(stage["seconds"] or 0 for stage in value["stages"])
    without = ["distill", "rebalance", "sft"]
    assert (value["at_least"]["seconds"], value["at_least"]["without"]) == (known, without)
    usd = f"{value['at_least']['cost_usd']:.2f} USD by list price"
    said = f"Expected: at least {duration(known)}, {usd}, and what {', '.join(without)} will take"
    assert said in " ".join(lyceum(*PLAN, code=3).out.split())


def test_a_recipe_is_planned_without_the_data_it_reads(plan, lyceum):
    Path("tiny.toml").write_text(READS + RECIPE.removeprefix(TINY), encoding="utf-8")
    value = plan()
    assert value["fits"]
    assert "name it with --data DIR" in value["stages"][0]["reason"]
    assert value["stages"][1]["reason"] == "waits for distill"
    said = lyceum("run", "tiny.toml", "--store", "store", code=2).err
    assert "name it with --data DIR" in said


def test_micro_batches_stay_multiples_of_the_devices() -> None:
    config = {"batch_size": 48, "micro_batch_size": None, "remat": "dots"}
    question = Question("sft", "sft", 1, config, "gemma3-tiny", {})
    found = {setting.name: setting.values for setting in settings_to_try(question, 8)}
    assert found == {
        "micro_batch_size": (48, 24, 16, 8),
        "remat": ("dots", "layer", "chunks"),
        "batch_size": (48, 24, 8),
    }


def test_a_budget_is_part_of_the_plan(plan):
    plan("--hours", "9", "--usd", "100")
    value = plan("--hours", "0.5", code=3)
    assert not value["fits"]
    most = "It takes 0.61 of 0.5 hours; most of it: sft 0.24, sft_eval 0.17"
    assert value["problems"][0].startswith(most)
    assert "US dollars" in plan("--usd", "1", code=3)["problems"][0]


@pytest.mark.usefixtures("fake")
def test_people_see_memory_time_cost_and_the_fix(lyceum, monkeypatch):
    monkeypatch.setenv("FAKE_GIB", "2.0")
    shown = lyceum(*PLAN, code=3)
    assert "train_step needs 18.00 of 15.75 GiB" in shown.out
    assert "--set stages.sft.config.micro_batch_size=32" in shown.out
    assert "of 3: sft train_step" in shown.err, "side by side, in any order"
    assert "It fits" not in shown.out


@pytest.mark.usefixtures("fake")
def test_without_the_compiler_a_run_says_that_it_is_not_planned_and_a_plan_how_to_get_it(
    lyceum, capsys, monkeypatch
):
    for module in (compile_cache, planning):
        monkeypatch.setattr(module, "has_compiler", lambda: False)
    assert "`uv sync --extra tpu`" in lyceum(*PLAN, code=2).err
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


def test_what_ran_is_cached_and_measures_the_next_plan(fake, plan):
    plan()  # as before any run: it is what measured times are compared with
    store, made, recipe = open_store("store"), [], resolve("tiny.toml")
    for name, target, seconds in (
        ("distill", "local", 20.0),
        ("rebalance", "local", 5.0),
        ("sft", "v5e-8", 800.0),  # 4 x the roofline
    ):
        inputs = {"examples": made[-1].ref()} if made else {}
        took = {"target": target, "seconds": seconds}
        made.append(commit_stage(store, recipe.stage(name), Path(name), inputs, **took))
    stages = {stage["name"]: stage for stage in plan()["stages"]}
    cached = {name for name, stage in stages.items() if stage["cached"]}
    assert cached == {"distill", "rebalance", "sft"}
    assert (stages["sft"]["seconds"], stages["sft"]["programs"]) == (0.0, [])

    compiled = len(asked(fake, "compile"))
    shorter = "--set", "stages.sft.config.sequence_length=512"
    [sft] = [stage for stage in plan(*shorter)["stages"] if stage["name"] == "sft"]
    assert sft["seconds"] == pytest.approx(360 + 4.0 * 200)
    assert sft["basis"].startswith("median of 1 measured runs")
    # of the new programs; those of the run that was measured were known
    assert len(asked(fake, "compile")) == compiled + 2
    alike = "--set", "stages.sft.config.optimizer.learning_rate=0.5", "--target", "local"
    [sft] = [stage for stage in plan(*alike)["stages"] if stage["name"] == "sft"]
    assert sft["seconds"] is None, "a TPU's time is not this machine's"
    elsewhere = plan(*shorter, "--target", "v3-8")["stages"]
    [sft] = [stage for stage in elsewhere if stage["name"] == "sft"]
    assert sft["basis"].startswith("40% of the roofline")
