"""Adapters in the format of the PEFT library: `adapter_config.json` and
`adapter_model.safetensors`.

PEFT's names: `base_model.model.` before the module's own name, `lora_A` (r, in) and `lora_B`
(out, r), in float32; the update is lora_B lora_A times lora_alpha / r, as here.
"""

import json
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from infra.context import context
from schemas.base import InputError
from schemas.trainer_config import LoraConfig
from tasks.devices.hosts import fetch
from tasks.models import model_download
from tasks.models.adapters import require_fit
from tasks.models.decoder import Gemma
from tasks.models.hf_weights import differences, opened, tensor_name
from tasks.models.model_source import ADAPTER_CONFIG, ADAPTER_WEIGHTS, source_of

_PREFIX = re.compile(r"^base_model\.model\.(model\.)?(language_model\.)?(model\.)?(?=layers\.)")
"""Prefixes of a layer's name, in a language model and in a multimodal one."""
_WITHIN = "base_model.model.model.language_model."


def write_adapters(model: Gemma, lora: LoraConfig, base: str | None, directory: Path) -> None:
    """Write the adapters of a model, which `merge_lora` has not merged yet, into a new directory.

    Args:
        base: Hugging Face's name of the model that they adapt; None: an earlier stage made it.
    """
    tensors: dict[str, np.ndarray] = {}
    for name in lora.targets:
        down, up = (
            fetch(getattr(model.layers, f"{name}_lora_{part}").get_value()) for part in "ab"
        )
        for layer in range(len(down)):
            module = tensor_name(f"layers.{name}", layer)
            pair = down[layer].reshape(-1, lora.rank), up[layer].reshape(lora.rank, -1)
            for side, matrix in zip("AB", pair, strict=True):
                tensors[f"base_model.model.{_adapter(module, side)}"] = np.ascontiguousarray(
                    matrix.T, np.float32
                )
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
    (directory / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors, directory / ADAPTER_WEIGHTS, metadata={"format": "pt"})


def name_within_multimodal(directory: Path) -> None:
    """Rename adapters in place for a base that sees images, too, as `AutoModelForCausalLM` loads
    it: its text model lies one module deeper, and its vision tower has projections of the same
    names. PEFT leaves adapters of other names at zero, with a warning."""
    path, described = directory / ADAPTER_WEIGHTS, directory / ADAPTER_CONFIG
    tensors = load_file(path)
    deeper = {_PREFIX.sub(_WITHIN, name): tensor for name, tensor in tensors.items()}
    save_file(deeper, path, metadata={"format": "pt"})
    config = json.loads(described.read_text(encoding="utf-8"))
    targets = "|".join(config["target_modules"])
    config["target_modules"] = rf".*\.language_model\..*\.({targets})"
    described.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_adapters(model: Gemma, lora: LoraConfig, base: str) -> None:
    """Replace the new adapters of `add_lora` by those in `lora.adapters`, in float32.

    Args:
        base: the recipe's model.

    Raises:
        InputError: they are out of reach, or do not fit `lora` and the model (`require_fit`;
            missing, unknown or misshapen tensors).
    """
    directory = model_download.fetch(source_of(str(lora.adapters)), context().settings)
    require_fit(directory, lora, base)
    file = opened(directory / ADAPTER_WEIGHTS)
    tensors = {_PREFIX.sub("model.", key): key for key in file.keys()}  # noqa: SIM118  no dict
    wanted: dict[str, tuple[int, ...]] = {}
    places: list[tuple[Any, list[str]]] = []
    for name in lora.targets:
        for side in "ab":
            param = getattr(model.layers, f"{name}_lora_{side}")
            layers, *shape = param.get_value().shape
            width = int(np.prod(shape)) // lora.rank
            stored = (lora.rank, width) if side == "a" else (width, lora.rank)
            keys = [
                _adapter(tensor_name(f"layers.{name}", layer), side.upper())
                for layer in range(layers)
            ]
            wanted |= dict.fromkeys(keys, stored)
            places.append((param, keys))
    found = {key: tuple(file.get_slice(own).get_shape()) for key, own in tensors.items()}
    if wrong := differences(wanted, found):
        raise InputError(
            f"lora.adapters = {lora.adapters!r} do not fit the model {base} and lora.targets:"
            f" {wrong[0]}, one of {len(wrong)}. Name the model that they were trained on, and its"
            " projections."
        )
    for param, keys in places:
        matrices = [np.asarray(file.get_tensor(tensors[key]), np.float32).T for key in keys]
        param.set_value(jnp.asarray(np.stack(matrices).reshape(param.get_value().shape)))


def _adapter(tensor: str, side: str) -> str:
    """The name of a tensor's adapter matrix, A or B."""
    return f"{tensor.removesuffix('.weight')}.lora_{side}.weight"
