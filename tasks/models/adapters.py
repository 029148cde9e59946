"""Checks adapters in the PEFT library's format with which a recipe's `lora` table begins training.
It neither loads JAX nor downloads.

    lora = { rank = 16, alpha = 32.0, adapters = "hf://me/my-adapters" }

`adapters` says where they lie in the forms of `model` (`tasks.models.model_source`): a hub's
repository, a bucket's or this machine's directory with `adapter_config.json` and
`adapter_model.safetensors`, as `lyceum export --adapters` and PEFT write them. They belong to the
base model, so the stage has no `policy` input; rank, alpha and targets equal the file's. Adapters
that we cannot train are refused.
"""

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from schemas.base import InputError
from schemas.trainer_config import LoraConfig
from tasks.models.model_source import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    SHIPPED,
    check_readable,
    source_of,
)

ADAPTERS = "adapters"
"""The directory of a stage's own adapters in its artifact."""

_MERGE = (
    "merge them in PEFT, `model.merge_and_unload().save_pretrained(DIR)`, put the base's"
    " tokenizer.model there, and write model = DIR"
)
_UNUSED = (
    "modules_to_save",
    "layers_to_transform",
    "layer_replication",
    "rank_pattern",
    "alpha_pattern",
    "fan_in_fan_out",
    "lora_bias",
    "trainable_token_indices",
    "target_parameters",
    "alora_invocation_tokens",
    "arrow_config",
)
"""Options of PEFT beyond one low-rank product for each matrix. We refuse adapters that set them."""
_KEEPS_THE_BASE = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of `init_lora_weights` that leave the base's weights as they are. Others ("pissa",
"olora", "corda", "loftq", "lora_ga") take the first adapters out of them, also when PEFT
loads such adapters (`update_layer` in peft/tuners/lora/layer.py)."""


def adapters_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The adapters that a stage with this config (as JSON) begins with."""
    found = (config.get("lora") or {}).get("adapters")
    return (found,) if found else ()


def check_adapters(lora: LoraConfig, model: str) -> None:
    """Refuse adapters that cannot work with a recipe's `model`, before anything runs and without
    the network. Raises InputError as `require_fit`, or for a place where adapters cannot lie."""
    source = source_of(str(lora.adapters))
    if source.kind in ("tiny", "kaggle") or lora.adapters in SHIPPED:
        raise InputError(
            f"lora.adapters = {lora.adapters!r} is no place of adapters. Valid: hf://ORG/NAME,"
            " gs://BUCKET/DIRECTORY, or an absolute path."
        )
    if source.kind == "local":
        check_readable(str(lora.adapters))
        require_fit(Path(source.path), lora, model)


def require_fit(directory: Path, lora: LoraConfig, model: str) -> None:
    """Check that training can continue from the adapters with this config.

    Args:
        model: the recipe's, which they adapt.

    Raises:
        InputError: the config is missing or damaged, has another rank, alpha, targets or base, or
            sets an option that we do not support.
    """
    path = directory / ADAPTER_CONFIG
    if not path.is_file() or not (directory / ADAPTER_WEIGHTS).is_file():
        pickle = (
            " PEFT's older adapter_model.bin is not read; save it again with PEFT 0.10 or newer."
        )
        raise InputError(
            f"lora.adapters = {lora.adapters!r}: {directory} has no {ADAPTER_CONFIG} and"
            f" {ADAPTER_WEIGHTS}, as PEFT writes them."
            + (pickle if (directory / "adapter_model.bin").is_file() else "")
        )
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        rank, alpha = int(found["r"]), float(found["lora_alpha"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise InputError(f"{path} is no config of LoRA adapters ({error!r}).") from error
    for problem in _problems(found, rank, alpha, lora, model):
        raise InputError(f"lora.adapters = {lora.adapters!r}: {problem}.")


def _problems(
    found: Mapping[str, Any], rank: int, alpha: float, lora: LoraConfig, model: str
) -> Iterator[str]:
    if found.get("peft_type") != "LORA":
        yield f"peft_type is {found.get('peft_type')!r}; only LORA is trained here: {_MERGE}"
    if found.get("use_rslora"):
        same = f"lora_alpha = {alpha * math.sqrt(rank):g}"
        yield (
            "use_rslora scales by lora_alpha / sqrt(r), here it is lora_alpha / r: write"
            f" use_rslora = false and {same} into {ADAPTER_CONFIG}, which is the same"
        )
    variants = [name for name in found if name.startswith("use_")]
    for name in (*variants, *_UNUSED):
        if found.get(name):
            yield f"{name} = {found[name]!r} is not done here: {_MERGE}"
    if (began := found.get("init_lora_weights")) not in _KEEPS_THE_BASE:
        yield (
            f"init_lora_weights = {began!r} took their beginning out of the base's weights, where"
            " it is still here: save them in PEFT with path_initial_model_for_weight_conversion,"
            f" or {_MERGE}"
        )
    if found.get("bias") not in (None, "none"):
        yield f"bias = {found['bias']!r} trains biases, which Gemma has none of: {_MERGE}"
    for name, theirs, wanted in (("rank", rank, lora.rank), ("alpha", alpha, lora.alpha)):
        if theirs != wanted:
            yield f"theirs is {name} {theirs:g}, and lora.{name} is {wanted:g}: write {theirs:g}"
    listed = found.get("target_modules")
    if isinstance(listed, list) and not any("." in str(name) for name in listed):
        targets = sorted(set(map(str, listed)))
        if set(targets) != set(lora.targets):
            names = ", ".join(f'"{name}"' for name in targets)
            yield (
                f"they are on {', '.join(targets)}, and lora.targets are"
                f" {', '.join(sorted(lora.targets))}: write targets = [{names}]"
            )
    base, ours = found.get("base_model_name_or_path"), SHIPPED.get(model, model)
    if f"hf://{base}" in SHIPPED.values() and ours in SHIPPED.values() and ours != f"hf://{base}":
        yield f"they belong to {base}, and the model is {ours.removeprefix('hf://')}"
