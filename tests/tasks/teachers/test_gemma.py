"""A Gemma in this process answers prompts (`tasks.teachers.gemma`)."""

from pathlib import Path
from typing import Any

import pytest

from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.base import InputError
from tasks.contract.job import Job, read_rows
from tasks.contract.kinds import stage_kind
from tasks.stages import distill
from tasks.teaching.lesson import FILES

pytestmark = pytest.mark.usefixtures("one_layer")
LENDER = {"name": "procedural", "rows": {"math": 6}, "grounded": {}}
TEACHER = {"name": "gemma", "model": "gemma3-tiny", "instructions": "", "prompts": [LENDER]}
TEACHER |= {"samples": 2, "batch_size": 4, "temperature": 1.0}
TEACHER |= {"prompt_length": 90, "max_response_tokens": 16}


def run(store: Path, out: Path, **changes: Any) -> dict[str, Any]:
    out.mkdir()
    config = distill.Config.parse({"teachers": [{**TEACHER, **changes}]})
    return distill.run(Job(config, {}, out, Workspace(open_store(store), "key", "1")))


def test_random_weights_solve_nothing_and_every_prompt_is_accounted_for(tmp_path: Path) -> None:
    metrics = run(tmp_path / "store", tmp_path / "out")
    assert (metrics["rows"], metrics["unsolved"]) == (0, {"math": 6})
    assert metrics["dropped"] == {"unsolved": 6}
    (tally,) = metrics["teachers"]
    assert tally["requests"] == 12
    assert sum(count for name, count in tally.items() if name.startswith("samples.")) == 12
    assert {row["difficulty"] for row in read_rows(tmp_path / "out" / "unsolved.jsonl")} == {5}


def test_what_was_sampled_is_sampled_once(tmp_path: Path) -> None:
    """The same question again, as after a kill: all from the store, and the same bytes. Another
    temperature is another question."""
    run(tmp_path / "store", tmp_path / "first")
    (tally,) = run(tmp_path / "store", tmp_path / "second")["teachers"]
    assert (tally.get("requests", 0), tally["cached"]) == (0, 12)
    for file in FILES.values():
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    (other,) = run(tmp_path / "store", tmp_path / "third", temperature=0.5)["teachers"]
    assert other["requests"] == 12


def test_prompts_that_do_not_fit_are_dropped_with_their_length(tmp_path: Path) -> None:
    metrics = run(tmp_path / "store", tmp_path / "out", prompt_length=12)
    assert metrics["dropped"]["too_long"] >= 1
    rows = read_rows(tmp_path / "out" / "dropped.jsonl")
    row = next(row for row in rows if row["cause"] == "too_long")
    assert "prompt_length is 12" in row["detail"]


def test_a_distill_stage_computes_on_devices_only_with_this_teacher() -> None:
    config = {"teachers": [TEACHER]}
    assert stage_kind("distill").devices(config)
    assert stage_kind("distill").base_model(config) == "gemma3-tiny"
    assert not stage_kind("distill").devices({"teachers": [{"name": "procedural"}]})
    assert stage_kind("distill").base_model({"teachers": [{"name": "procedural"}]}) is None


def test_two_models_in_one_stage_are_refused() -> None:
    with pytest.raises(InputError, match="a distill stage of its own"):
        distill.Config.parse({"teachers": [TEACHER, TEACHER]})


def test_plan_compiles_what_the_teacher_runs() -> None:
    """12 responses in batches of 4, of which 2 are to one prompt: the program is called 3 times, on
    the shapes that `run` uses."""
    from tasks.devices.hosts import make_mesh
    from tasks.models import decoder
    from tasks.planning.programs import abstract_model

    model = abstract_model("gemma3-tiny", decoder.SIZES["gemma3-tiny"], make_mesh())
    (program,) = distill.programs(distill.Config.parse({"teachers": [TEACHER]}), model, {})
    assert (program.name, program.calls, program.args[1].shape) == ("generate", 3, (2, 90))
