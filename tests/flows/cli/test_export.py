"""`lyceum export --adapters`: what a stage kept, as PEFT reads it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard
from safetensors.numpy import load_file, save_file

from flows.cli.export import card_of
from infra.store.store import Store
from schemas.recipe import StageSpec
from schemas.reports import RunRecord
from tasks.exporting.model_card import write_card
from tasks.models.hf_config import write_config
from tasks.models.hf_directory import TOKENIZER
from tasks.models.model_source import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from tasks.models.tiny import tiny_tokenizer
from tests.flows.runs.synthetic_run import spec, write_run
from tests.tasks.models.small_model import SMALL_MODEL

MODULE = "base_model.model.model.{}layers.0.self_attn.q_proj.lora_A.weight"


def with_adapters(root: Path, spare: int) -> tuple[Store, RunRecord]:
    """A run whose stages keep adapters of a model with so many rows more than its tokenizer has
    pieces."""
    tokenizer = tiny_tokenizer()
    config = replace(SMALL_MODEL, vocab_size=len(tokenizer) + spare)

    def trained(stage: StageSpec, out: Path) -> None:
        write_config(out, config, "x", tokenizer)
        tokenizer.save(out / TOKENIZER)
        (out / "adapters").mkdir(exist_ok=True)
        described = {"r": 2, "target_modules": ["o_proj", "q_proj"]}
        (out / "adapters" / ADAPTER_CONFIG).write_text(json.dumps(described))
        tensors = {MODULE.format(""): np.ones((2, 16), np.float32)}
        save_file(tensors, out / "adapters" / ADAPTER_WEIGHTS)

    return write_run(root, trained=trained)


def test_adapters_are_handed_out_where_a_stage_kept_them(tmp_path, lyceum):
    store, _ = write_run(tmp_path / "store")
    command = ["export", "demo-1", "--adapters", "--to", tmp_path / "to", "--stage", "sft"]
    said = lyceum(*command, "--store", store.uri, code=2).err
    assert "stages.sft.config.lora.keep=true" in said
    assert not (tmp_path / "to").exists()

    store, _ = with_adapters(tmp_path / "other", 0)
    told = lyceum(*command, "--store", store.uri, "--json").json
    assert (told["stage"], {*told["files"]}) == ("sft", {ADAPTER_CONFIG, ADAPTER_WEIGHTS})
    assert [*load_file(tmp_path / "to" / ADAPTER_WEIGHTS)] == [MODULE.format("")]


def test_adapters_have_the_names_of_the_base_that_they_belong_to(tmp_path, lyceum):
    """`AutoModelForCausalLM` loads a base that sees images as Gemma3ForConditionalGeneration, with
    the text model one module deeper, and a vision tower; the model that a stage leaves is text
    alone, and so is the base of what is trained on it."""
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text('{"model_type": "gemma3"}')
    store, record = with_adapters(tmp_path / "store", 64)
    recipe = record.recipe.model_copy(update={"model": str(tmp_path / "base")})
    store.write_json("runs/demo-1/run.json", record.model_copy(update={"recipe": recipe}))
    found = {}
    for stage in ("sft", "simpo"):
        to = tmp_path / stage
        given = "--adapters", "--to", to, "--stage", stage
        lyceum("export", "demo-1", *given, "--store", store.uri)
        targets = json.loads((to / ADAPTER_CONFIG).read_text())["target_modules"]
        found[stage] = targets, [*load_file(to / ADAPTER_WEIGHTS)]
    assert found["simpo"] == (["o_proj", "q_proj"], [MODULE.format("")])
    targets, names = found["sft"]
    assert names == [MODULE.format("language_model.")]
    module = names[0].removeprefix("base_model.model.").removesuffix(".lora_A.weight")
    assert re.fullmatch(targets, module)
    seen = "model.vision_tower.vision_model.encoder.layers.0.self_attn.q_proj"
    assert not re.fullmatch(targets, seen)


@pytest.mark.parametrize(
    ("stage", "asked"),
    [("simpo", [("Reasoning", 120)]), ("grpo", [("Reasoning", 120), ("Safety", 60)])],
)
def test_the_hub_is_told_no_rate_of_another_model(tmp_path, stage, asked):
    """Safety was asked of the base and of `grpo` alone, and reasoning of `grpo` twice."""
    more = spec("grpo_more", "reasoning_eval", {"min_items": 9}, prompts="rebalance", policy="grpo")
    store, record = write_run(tmp_path / "store", more=[more])
    write_card(tmp_path, card_of(store, record, stage)[0], None, "gemma3")
    card = ModelCard.load(tmp_path / "README.md")
    results = card.data.eval_results or ()
    told = [(one.task_name, one.dataset_name) for one in results]
    assert list(dict.fromkeys(told)) == [(title, f"heldout, {n} prompts") for title, n in asked]
    assert len({(one.task_name, one.metric_type) for one in results}) == len(results)
    assert ("safe_rate" in {one.metric_type for one in results}) == (stage == "grpo")
    assert card.text.count(f"By domain, {stage}") == len(asked)
