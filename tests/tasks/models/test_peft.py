"""Adapters in PEFT's format: its names, and products that are what merging adds to the weights."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from schemas.training import LoraConfig
from tasks.models.gemma import SIZES
from tasks.models.huggingface import to_tensors
from tasks.models.lora import add_lora, merge_lora
from tasks.models.peft import write_adapters
from tasks.models.source import published_as
from tasks.models.weights import initialise

CONFIG = replace(
    SIZES["gemma3-tiny"],
    num_layers=2,
    embed_dim=16,
    hidden_dim=24,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    dtype="float32",
)
LORA = LoraConfig(rank=3, alpha=6.0, targets=("q_proj", "o_proj", "down_proj"))


def test_the_adapters_are_what_merging_adds(tmp_path: Path) -> None:
    """W + 6 / 3 * B A, by the names of PEFT: A is (r, in), B is (out, r)."""
    model, base = initialise(CONFIG, 0), initialise(CONFIG, 0)
    add_lora(model, LORA, seed=1)
    for number, name in enumerate(LORA.targets):
        up = getattr(model.layers, f"{name}_lora_b")
        up.set_value(jax.random.normal(jax.random.key(number), up.get_value().shape))
    write_adapters(model, LORA, "google/gemma-3-1b-it", tmp_path / "adapters")
    merge_lora(model)
    found = load_file(tmp_path / "adapters" / "adapter_model.safetensors")
    name = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    assert (found[name].shape, len(found)) == ((3, 16), 2 * 2 * 3)
    assert found["base_model.model.model.layers.0.mlp.down_proj.lora_B.weight"].shape == (16, 3)
    for target in LORA.targets:
        before, after = (
            dict(to_tensors(CONFIG, f"layers.{target}", np.asarray(value)))
            for value in (
                getattr(base.layers, target).get_value(),
                getattr(model.layers, target).get_value(),
            )
        )
        for tensor, weight in before.items():
            key = f"base_model.model.{tensor.removesuffix('.weight')}"
            change = 2 * found[f"{key}.lora_B.weight"] @ found[f"{key}.lora_A.weight"]
            np.testing.assert_allclose(after[tensor] - weight, change, atol=1e-5)
    config = json.loads((tmp_path / "adapters" / "adapter_config.json").read_text())
    wanted = {"r": 3, "lora_alpha": 6.0, "target_modules": ["down_proj", "o_proj", "q_proj"]}
    assert wanted.items() <= config.items()
    assert config["base_model_name_or_path"] == "google/gemma-3-1b-it"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gemma3-1b-it", "google/gemma-3-1b-it"),
        ("hf://org/mine@v2", "org/mine"),
        ("gemma3-tiny", None),
        ("gs://bucket/model", None),
    ],
)
def test_only_what_is_on_hugging_face_has_a_name_there(model: str, name: str | None) -> None:
    assert published_as(model) == name
