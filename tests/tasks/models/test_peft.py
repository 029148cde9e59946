"""Adapters in PEFT's format: its names, and products that are what merging adds to the weights."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from schemas.base import InputError
from schemas.trainer_config import LoraConfig, OptimizerConfig, TrainerConfig
from tasks.devices.hosts import make_mesh
from tasks.models.decoder import Gemma
from tasks.models.hf_weights import to_tensors
from tasks.models.loading import LoadedModel
from tasks.models.lora import add_lora, merge_lora
from tasks.models.model_source import published_as
from tasks.models.peft import load_adapters, write_adapters
from tasks.models.tiny import tiny_tokenizer
from tasks.models.weights import abstract, initialise
from tasks.training.trainer import Trainer, make_trainer
from tests.tasks.models.small_model import SMALL_MODEL

CONFIG = replace(SMALL_MODEL, hidden_dim=24, num_kv_heads=1)
LORA = LoraConfig(rank=3, alpha=6.0, targets=("q_proj", "o_proj", "down_proj"))


def test_the_adapters_are_what_merging_adds(tmp_path: Path) -> None:
    """W + 6 / 3 * B A, by the names of PEFT: A is (r, in), B is (out, r)."""
    model, base = trained(), initialise(CONFIG, 0)
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


def trained() -> Gemma:
    """A model with adapters that change it."""
    model = initialise(CONFIG, 0)
    add_lora(model, LORA, seed=1)
    for number, name in enumerate(LORA.targets):
        up = getattr(model.layers, f"{name}_lora_b")
        up.set_value(jax.random.normal(jax.random.key(number), up.get_value().shape))
    return model


def begun(directory: Path) -> Gemma:
    """The base with the adapters of a directory."""
    lora = LORA.model_copy(update={"adapters": str(directory)})
    model = initialise(CONFIG, 0)
    add_lora(model, lora, seed=2)
    load_adapters(model, lora, "gemma3-tiny")
    return model


def logits(model: Gemma) -> np.ndarray:
    positions = np.arange(5)[None]
    hidden, _ = model(np.array([[2, 7, 9, 11, 5]]), positions, np.ones((1, 5), np.int32))
    return np.asarray(model.unembed(hidden))


@pytest.mark.parametrize(
    "prefix", ["base_model.model.model.language_model.", "base_model.model.language_model.model."]
)
def test_adapters_of_a_model_that_sees_are_those_of_its_text(tmp_path: Path, prefix: str) -> None:
    """And in bfloat16, as they are stored where they were trained so."""
    write_adapters(trained(), LORA, None, tmp_path / "adapters")
    file = tmp_path / "adapters" / "adapter_model.safetensors"
    half = {
        key.replace("base_model.model.model.", prefix): value.astype(jnp.bfloat16)
        for key, value in load_file(file).items()
    }
    save_file(half, file)
    whole = trained()
    for name in LORA.targets:
        for side in "ab":
            param = getattr(whole.layers, f"{name}_lora_{side}")
            param.set_value(param.get_value().astype(jnp.bfloat16).astype(jnp.float32))
    np.testing.assert_array_equal(logits(begun(tmp_path / "adapters")), logits(whole))


def test_a_trainer_begins_with_them_and_a_plan_does_without(tmp_path: Path) -> None:
    before = trained()
    write_adapters(before, LORA, None, tmp_path / "adapters")
    lora = LORA.model_copy(update={"adapters": str(tmp_path / "adapters")})
    optimizer = OptimizerConfig(learning_rate=1e-3)
    config = TrainerConfig(steps=1, batch_size=1, optimizer=optimizer, lora=lora)

    def trainer(model: Gemma, config: TrainerConfig) -> Trainer:
        loaded = LoadedModel("gemma3-tiny", CONFIG, model, tiny_tokenizer(), make_mesh())
        return make_trainer(loaded, config, seed=0)

    began = trainer(initialise(CONFIG, 0), config)
    np.testing.assert_array_equal(logits(began.model), logits(before))
    assert np.abs(logits(before) - logits(initialise(CONFIG, 0))).max() > 0.1
    nowhere = config.model_copy(update={"lora": lora.model_copy(update={"adapters": "/nowhere"})})
    assert trainer(abstract(CONFIG), nowhere).trained is nnx.LoRAParam
    with pytest.raises(InputError, match=r"/nowhere has no adapter_config.json"):
        trainer(initialise(CONFIG, 0), nowhere)


def test_tensors_of_another_model_or_of_other_projections_are_refused(tmp_path: Path) -> None:
    write_adapters(trained(), LORA, None, tmp_path / "adapters")
    file = tmp_path / "adapters" / "adapter_model.safetensors"
    tensors = load_file(file)
    key = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"
    head = "base_model.model.lm_head.lora_A.weight"
    misshapen = {**tensors, key: np.zeros((3, 9), np.float32)}
    broken = {
        r"lora_A.weight is \(3, 9\) instead of \(3, 16\), one of 1": misshapen,
        r"lora_A.weight is missing instead of": {k: v for k, v in tensors.items() if k != key},
        r"lm_head.lora_A.weight is .* instead of nothing": {**tensors, head: tensors[key]},
    }
    for message, wrong in broken.items():
        save_file(wrong, file)
        with pytest.raises(InputError, match=message):
            begun(tmp_path / "adapters")
    file.write_bytes(b"not whole")
    with pytest.raises(InputError, match="damaged or not whole"):
        begun(tmp_path / "adapters")


def test_only_what_is_on_hugging_face_has_a_name_there() -> None:
    named = {"gemma3-1b-it": "google/gemma-3-1b-it", "hf://org/mine@v2": "org/mine"}
    named |= {"gemma3-tiny": None, "gs://bucket/model": None}
    assert {model: published_as(model) for model in named} == named
