"""Adapters that a recipe begins with: what their config may say, and that the stage key knows
their bytes."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.recipe.resolve import resolve
from infra.settings import Settings
from infra.store.store import open_store
from schemas.base import InputError
from schemas.job import JobRequest
from schemas.trainer_config import LoraConfig
from tasks.models import model_source, shipping
from tasks.models.adapters import check_adapters
from tasks.models.model_source import check_model, extra_dependencies, needed
from tasks.models.shipping import receive_model, ship_model, shipped_models

CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "base_model_name_or_path": "google/gemma-3-1b-it", "r": 4, "lora_alpha": 8,
    "lora_dropout": 0.05, "bias": "none", "use_dora": False, "use_rslora": False,
    "modules_to_save": None, "rank_pattern": {}, "target_modules": ["v_proj", "q_proj"],
    "init_lora_weights": True,
}  # fmt: skip
"""As PEFT writes it, but for what is null there."""


def adapters(root: Path, **changes: Any) -> Path:
    place = root / "adapters"
    place.mkdir(exist_ok=True)
    text = json.dumps({**CONFIG, **changes})
    (place / "adapter_config.json").write_text(text, encoding="utf-8")
    (place / "adapter_model.safetensors").write_bytes(b"1")
    return place


def lora(place: Any, **changes: Any) -> LoraConfig:
    known = {"rank": 4, "alpha": 8.0, "targets": ("q_proj", "v_proj")}
    return LoraConfig(**{**known, "adapters": str(place), **changes})


def test_what_peft_writes_is_taken(tmp_path: Path) -> None:
    place = adapters(tmp_path)
    for model in ("gemma3-1b-it", "hf://google/gemma-3-1b-it", "hf://mirror/gemma", "/a/model"):
        check_adapters(lora(place), model)
    check_adapters(lora(adapters(tmp_path, target_modules=".*proj")), "gemma3-1b-it")
    check_adapters(lora(adapters(tmp_path, init_lora_weights="gaussian")), "gemma3-1b-it")
    check_adapters(lora("hf://me/mine@v1"), "gemma3-1b-it")  # when it is fetched


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"r": 8}, r"theirs is rank 8, and lora.rank is 4: write 8"),
        ({"lora_alpha": 16}, r"theirs is alpha 16, and lora.alpha is 8: write 16"),
        ({"use_dora": True}, r"use_dora = True is not done here: merge them in PEFT"),
        ({"use_rslora": True}, r"use_rslora = false and lora_alpha = 16 into"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save = \['lm_head'\] is not done here"),
        ({"rank_pattern": {"q_proj": 2}}, r"rank_pattern = .* is not done here"),
        ({"alora_invocation_tokens": [7, 8]}, r"alora_invocation_tokens = \[7, 8\] is not done"),
        ({"init_lora_weights": "pissa_niter_4"}, r"'pissa_niter_4' took .*_conversion, or merge"),
        ({"bias": "all"}, r"bias = 'all' trains biases"),
        ({"peft_type": "IA3"}, r"peft_type is 'IA3'"),
        ({"target_modules": ["q_proj"]}, r'lora.targets are q_proj, v_proj: write .*\["q_proj"\]'),
        ({"base_model_name_or_path": "google/gemma-3-1b-pt"}, r"they belong to google/gemma-3-1b-"),
        ({"r": None}, r"is no config of LoRA adapters"),
    ],
)
def test_what_is_not_trained_here_is_refused_with_the_fix(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        check_adapters(lora(adapters(tmp_path, **changes)), "gemma3-1b-it")


def test_a_place_without_adapters_is_refused(tmp_path: Path) -> None:
    place = adapters(tmp_path)
    (place / "adapter_model.safetensors").rename(place / "adapter_model.bin")
    with pytest.raises(
        InputError, match=r"has no adapter_config.json and .*older adapter_model.bin"
    ):
        check_adapters(lora(place), "gemma3-1b-it")
    for nowhere in ("gemma3-1b-it", "gemma3-tiny", "kaggle://a/b/c/d"):
        with pytest.raises(InputError, match="is no place of adapters"):
            check_adapters(lora(nowhere), "gemma3-1b-it")
    with pytest.raises(InputError, match="there is no such directory"):
        check_adapters(lora(tmp_path / "gone"), "gemma3-1b-it")


def test_a_model_is_no_adapters(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds adapters and no model: .*lora.adapters ="):
        check_model(str(adapters(tmp_path)))
    names = ["README.md", "adapter_config.json", "adapter_model.safetensors", "optimizer.pt"]
    assert needed(names) == ["adapter_config.json", "adapter_model.safetensors"]


def test_a_machine_in_the_cloud_is_sent_them(tmp_path, monkeypatch):
    place, store = adapters(tmp_path), open_store(tmp_path / "store")
    (place / "optimizer.pt").write_bytes(b"not read")
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "cache"))
    table = lora(place).model_dump(mode="json")
    request: dict[str, Any] = {"stage": "sft", "kind": "sft", "key": "0" * 64, "run": "one"}
    request |= {"store": store.uri, "target": "v5e-8", "config": {"model": "gemma3-tiny"}}
    request["config"]["lora"] = table
    job = JobRequest(**request)
    assert shipped_models(job) == [str(place), "gemma3-tiny"]
    dependencies = extra_dependencies([str(place)])
    ship_model(store, str(place), dependencies, Settings(), lambda said: None)
    monkeypatch.setattr(model_source, "AT_HAND", {})
    monkeypatch.setattr(shipping, "AT_HAND", model_source.AT_HAND)
    receive_model(store, str(place), dependencies)
    [there] = model_source.AT_HAND.values()
    names = {path.name for path in there.iterdir()}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}


def test_a_recipe_begins_with_them_and_its_key_has_their_bytes(tiny_recipe, tmp_path):
    place = adapters(tmp_path, base_model_name_or_path=None)
    table = f'{{ rank = 4, alpha = 8.0, targets = ["q_proj", "v_proj"], adapters = "{place}" }}'
    sft = """
[stages.sft]
kind = "sft"
inputs = { examples = "rebalance" }
config = { steps = 1, batch_size = 2, sequence_length = 16, optimizer = { learning_rate = 1e-3 } }
[stages.more]
kind = "sft"
inputs = { examples = "rebalance", policy = "sft" }
config = { steps = 1, batch_size = 2, sequence_length = 16, optimizer = { learning_rate = 1e-3 } }
"""
    tiny_recipe.write_text(tiny_recipe.read_text() + sft)

    def key(*overrides: str) -> str:
        return resolve(str(tiny_recipe), overrides).stage("sft").key({"examples": "1"})

    began = f"stages.sft.config.lora={table}"
    before = key(began)
    (place / "adapter_model.safetensors").write_bytes(b"22")
    assert len({before, key(began), key()}) == 3
    assert f"model {place}" in resolve(str(tiny_recipe), [began]).stage("sft").dependencies
    with pytest.raises(InputError, match=r"stages.more.*belong to the base model.* 'sft'"):
        resolve(str(tiny_recipe), [f"stages.more.config.lora={table}"])
    begins = f"config = {{ lora = {table}, steps = 1,"
    text = tiny_recipe.read_text().replace("config = { steps = 1,", begins)
    tiny_recipe.write_text(text[: text.index("[stages.more]")])
    tiny = resolve(str(tiny_recipe), ["tiny"]).stage("sft")
    assert not any(name.startswith("model ") for name in tiny.dependencies), "of another model"
