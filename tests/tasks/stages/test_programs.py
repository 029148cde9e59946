"""What `lyceum plan` compiles and what a stage runs are the same programs: their lowered texts are
compared."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import pytest

from infra.store.store import open_store
from infra.store.workspace import Workspace
from tasks.contract.job import Job, write_jsonl
from tasks.devices.hosts import make_mesh
from tasks.models.gemma import SIZES
from tasks.models.loading import base_model, save_model
from tasks.planning.programs import abstract_model
from tasks.stages import dpo, grpo, orpo, reasoning_eval, rebalance, safety_eval, sft, simpo
from tests.tasks.stages.tiny_stages import ADAMW, DPO, GRPO, LORA, PREFERENCES, SFT, example

EVAL = {
    "model": "gemma3-tiny",
    "batch_size": 4,
    "prompt_length": 20,
    "response_length": 8,
    "min_items": 1,
}
"""What is planned is the widest shape that an evaluation can need, and so long are these
prompts."""

STAGES: dict[str, tuple[ModuleType, dict[str, Any]]] = {
    "sft": (sft, SFT),
    "sft-lora": (
        sft,
        {
            **SFT,
            "micro_batch_size": None,
            "lora": {**LORA, "targets": ["q_proj", "down_proj"]},
            "optimizer": ADAMW,
        },
    ),
    "simpo": (simpo, PREFERENCES),
    "dpo": (dpo, DPO),
    "orpo": (orpo, PREFERENCES),
    "grpo": (grpo, {**GRPO, "num_iterations": 2}),
    "reasoning_eval": (reasoning_eval, EVAL),
    "safety_eval": (safety_eval, EVAL),
}
QUICK = ("sft", "dpo", "grpo", "reasoning_eval")
"""The others, in tests/end_to_end, are built of the same parts."""


@pytest.fixture
def inputs(one_layer: None, tmp_path: Path) -> dict[str, Path]:
    quotas = {"math": {"train": 8, "validation": 3, "heldout": 6}}
    upstream = rebalance.Config.parse(
        {"quotas": quotas, "grounding_quotas": {"answerable": {"heldout": 5}}}
    )
    (tmp_path / "policy").mkdir()
    (tmp_path / "rows").mkdir()
    save_model(base_model("gemma3-tiny", 0), tmp_path / "policy")
    write_jsonl(tmp_path / "rows" / "train.jsonl", [example(number) for number in range(8)])
    write_jsonl(
        tmp_path / "rows" / "prompts.jsonl", [example(number).as_prompt() for number in range(8)]
    )
    write_jsonl(tmp_path / "rows" / "pairs.jsonl", [])
    write_jsonl(
        tmp_path / "rows" / "validation.jsonl", [example(number) for number in range(10, 13)]
    )
    held_out = [example(number) for number in range(20, 26)]
    grounded = [example(number, "answerable") for number in range(30, 35)]
    write_jsonl(tmp_path / "rows" / "heldout.jsonl", [*held_out, *grounded])
    (tmp_path / "rows" / "config.json").write_text(json.dumps(upstream.model_dump(mode="json")))
    return {
        "policy": tmp_path / "policy",
        "prompts": tmp_path / "rows",
        "examples": tmp_path / "rows",
    }


@pytest.mark.parametrize("name", QUICK)
def test_a_stage_runs_the_programs_that_plan_compiles(
    name: str, inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs_what_plan_compiles(name, inputs, tmp_path, monkeypatch)


def runs_what_plan_compiles(
    name: str, inputs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run a stage of STAGES and compare each program's text with what `lyceum plan` lowers."""
    module, table = STAGES[name]
    config = module.Config.parse(table)
    rows = rebalance.Config.parse(json.loads((inputs["prompts"] / "config.json").read_text()))
    mesh = make_mesh({"devices": 1})
    model = abstract_model("gemma3-tiny", SIZES["gemma3-tiny"], mesh)
    planned = {}
    for program in module.KIND.programs(config, model, dict.fromkeys(module.KIND.inputs, rows)):
        with jax.set_mesh(mesh):
            planned[program.name] = program.function.lower(*program.args).as_text()

    ran: dict[str, dict[str, str]] = {}
    calls: dict[str, int] = {}
    jit = jax.jit

    def watched(function: Any, **options: Any) -> Any:
        compiled = jit(function, **options)
        name = function.__name__.lstrip("_")
        if name not in planned:
            return compiled

        class Watched:
            _cache_size = compiled._cache_size

            def __call__(self, *args: Any) -> Any:
                forms = str(
                    jax.tree.map(
                        lambda leaf: (jax.typeof(leaf), getattr(leaf, "sharding", None)), args
                    )
                )
                if forms not in ran.setdefault(name, {}):
                    ran[name][forms] = compiled.lower(*args).as_text()
                calls[name] = calls.get(name, 0) + 1
                return compiled(*args)

        return Watched()

    monkeypatch.setattr(jax, "jit", watched)
    (tmp_path / "out").mkdir()
    module.KIND.run(
        Job(config, inputs, tmp_path / "out", Workspace(open_store(tmp_path / "store"), "key", "1"))
    )
    assert ran.keys() == planned.keys()
    for program_name, text in planned.items():
        assert set(ran[program_name].values()) == {text}, program_name
