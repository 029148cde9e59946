"""Adapters in the format of the PEFT library: `adapter_config.json` and
`adapter_model.safetensors`.

PEFT's names: `base_model.model.` before the module's own name, `lora_A` (r, in) and `lora_B`
(out, r), in float32; the update is lora_B lora_A times lora_alpha / r, as here.
"""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from schemas.training import LoraConfig
from tasks.devices.hosts import fetch
from tasks.models.gemma import Gemma
from tasks.models.huggingface import tensor_name

ADAPTERS = "adapters"
"""The directory of an artifact that they are in."""

_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


def write_adapters(model: Gemma, lora: LoraConfig, base: str | None, directory: Path) -> None:
    """Write the adapters of a model, which `merge_lora` has not merged yet, into a new directory.

    Args:
        base: Hugging Face's name of the model that they belong to; None: an earlier stage made it.
    """
    tensors: dict[str, np.ndarray] = {}
    for name in lora.targets:
        down, up = (
            fetch(getattr(model.layers, f"{name}_lora_{part}").get_value()) for part in "ab"
        )
        for layer in range(len(down)):
            module = tensor_name(f"layers.{name}", layer).removesuffix(".weight")
            pair = down[layer].reshape(-1, lora.rank), up[layer].reshape(lora.rank, -1)
            for side, matrix in zip("AB", pair, strict=True):
                key = f"base_model.model.{module}.lora_{side}.weight"
                tensors[key] = np.ascontiguousarray(matrix.T, np.float32)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "target_modules": sorted(lora.targets),
    }
    directory.mkdir()
    (directory / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})
