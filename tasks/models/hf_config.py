"""config.json in Hugging Face's format <-> an architecture, and generation_config.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from schemas.base import InputError
from tasks.data.tokens import Tokenizer
from tasks.models.decoder import GemmaConfig
from tasks.models.hf_directory import read_object

_TEXT = {"gemma2": "gemma2", "gemma3_text": "gemma3"}
_CLASSES = {
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Gemma2ForSequenceClassification": "gemma2",
    "Gemma3TextForSequenceClassification": "gemma3",
}
_SIZES = {
    "vocab_size": "vocab_size",
    "hidden_size": "embed_dim",
    "intermediate_size": "hidden_dim",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "head_dim": "head_dim",
    "sliding_window": "window",
}
_SOFTCAPS = {
    "attn_logit_softcapping": "attention_softcap",
    "final_logit_softcapping": "final_softcap",
}
"""Keys whose values are those of our config -> their names there."""

# What the classes of `transformers` take for a key that a config.json leaves out, as those of the
# 4B and larger do.
_SHARED_DEFAULTS: dict[str, Any] = {
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "vocab_size": 262208,
        **_SHARED_DEFAULTS,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        "sliding_window_pattern": 6,
    },
    "gemma2": {
        "vocab_size": 256000,
        **_SHARED_DEFAULTS,
        "rope_theta": 10_000.0,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window_pattern": 2,
    },
}
_FIXED: dict[str, tuple[Any, ...]] = {
    "hidden_activation": ("gelu_pytorch_tanh", None),
    "rms_norm_eps": (1e-6, 9.999999974752427e-07),  # the second as a float32, from a GGUF file
    "attention_bias": (False, None),
    "tie_word_embeddings": (True,),
    "use_bidirectional_attention": (False, None),
    "quantization_config": (None,),
}
"""Keys that our model fixes, with the values that mean what it computes."""


def read_config(directory: Path) -> tuple[GemmaConfig, str]:
    """The architecture in a directory's config.json, and the name in it (empty if there is none).
    Raises InputError."""
    path = directory / "config.json"
    if not path.exists():
        raise InputError(
            f"{directory} has no config.json: it is no model directory in Hugging Face's format."
        )
    config = read_object(path)
    return config_from_json(config, str(path)), str(config.get("_name_or_path", ""))


def is_multimodal(directory: Path) -> bool:
    """Whether the directory's model sees images, too: its text model is a part of it."""
    path = directory / "config.json"
    return path.is_file() and _is_multimodal(read_object(path))


def _is_multimodal(config: Mapping[str, Any]) -> bool:
    return config.get("model_type") == "gemma3"


def config_from_json(config: Mapping[str, Any], where: str) -> GemmaConfig:
    """The architecture that a config.json describes, in the spelling of today's `transformers` or
    of 2024's.

    Args:
        config: the parsed file.
        where: what to call it in messages.

    Raises:
        InputError: another architecture, or a variant that our model does not compute.
    """
    classes = config.get("architectures") or []
    found = next((name for name in classes if name in _CLASSES), None)
    text = config.get("text_config") if _is_multimodal(config) else config
    family = _TEXT.get(
        str((text or {}).get("model_type", "gemma3_text" if text is not config else None))
    )
    if text is None or family is None or (classes and (found is None or _CLASSES[found] != family)):
        said = ", ".join(classes) or config.get("model_type", "nothing")
        raise InputError(f"{where} describes {said}. Valid architectures: {', '.join(_CLASSES)}.")
    for key, valid in _FIXED.items():
        value = text.get(key, config.get(key, valid[0]))
        if value not in valid:
            raise InputError(
                f"{where}: {key} = {value!r} is not supported; a Gemma 2 or 3 for text has"
                f" {valid[0]!r}."
            )
    value = {**_DEFAULTS[family], **{key: text[key] for key in _DEFAULTS[family] if key in text}}
    local, glob, scale = _rope(text, value, where)
    return GemmaConfig(
        family=cast(Any, family),
        **{ours: value[theirs] for theirs, ours in (_SIZES | _SOFTCAPS).items()},
        global_every=_global_every(text, value, where),
        local_rope=local,
        global_rope=glob,
        global_rope_scale=scale,
        query_scale=float(value["query_pre_attn_scalar"]) ** -0.5,
        dtype="float32" if _dtype(config, text) == "float32" else "bfloat16",
    )


def _dtype(config: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    values = (place.get(key) for place in (config, text) for key in ("dtype", "torch_dtype"))
    return next((str(value) for value in values if value), "bfloat16")


def _rope(
    text: Mapping[str, Any], value: Mapping[str, Any], where: str
) -> tuple[float, float, float]:
    """Base of local layers, base of global ones, and the linear scale of positions in the
    latter."""
    rope, base = text.get("rope_parameters"), float(value["rope_theta"])
    if rope is None:  # before transformers 5
        scaling = text.get("rope_scaling") or {}
        of_local = {} if "rope_local_base_freq" in value else scaling  # Gemma 2 scales all layers
        rope = {"full_attention": scaling, "sliding_attention": of_local}
    elif "full_attention" not in rope:  # one for all layers: Gemma 2
        rope = {"full_attention": rope, "sliding_attention": rope}
    everywhere, local = rope["full_attention"], rope.get("sliding_attention") or {}
    kinds = [one.get("rope_type", one.get("type", "default")) for one in (everywhere, local)]
    if kinds[0] not in ("default", "linear") or kinds[1] != "default":
        raise InputError(
            f"{where}: rotary embeddings of type {' and '.join(kinds)} are not supported. Valid:"
            " default, linear."
        )
    scale = float(everywhere.get("factor", 1.0)) if kinds[0] == "linear" else 1.0
    return (
        float(local.get("rope_theta", value.get("rope_local_base_freq", base))),
        float(everywhere.get("rope_theta", base)),
        scale,
    )


def _global_every(text: Mapping[str, Any], value: Mapping[str, Any], where: str) -> int:
    """The distance between global layers. Raises InputError where the layers' types have no such
    period."""
    every = int(text.get("_sliding_window_pattern", value["sliding_window_pattern"]))
    types = text.get("layer_types")
    if types is not None:
        is_local = "full_attention" not in types
        every = max(every, len(types) + 1) if is_local else types.index("full_attention") + 1
        if types != layer_types(len(types), every) or len(types) != value["num_hidden_layers"]:
            raise InputError(
                f"{where}: layer_types is irregular; in a Gemma every n-th layer has full attention"
                " and no other."
            )
    return every


def layer_types(layers: int, every: int) -> list[str]:
    """The layers' types, local or global, in the words of `transformers`."""
    return [
        "sliding_attention" if (index + 1) % every else "full_attention" for index in range(layers)
    ]


def config_to_json(
    config: GemmaConfig, name: str, tokens: Mapping[str, Any], *, scalar: bool = False
) -> dict[str, Any]:
    """A config.json as Google publishes them, which every version of `transformers` that knows the
    family reads.

    Args:
        name: kept as `_name_or_path`.
        tokens: bos_token_id, eos_token_id, pad_token_id.
        scalar: of a model with a scalar head: a classifier with one label.
    """
    gemma3 = config.family == "gemma3"
    text = "Text" if gemma3 and scalar else ""
    task = "SequenceClassification" if scalar else "CausalLM"
    labels = {"id2label": {"0": "score"}, "label2id": {"score": 0}} if scalar else {}
    rope = (
        {"rope_local_base_freq": config.local_rope, "sliding_window_pattern": config.global_every}
        if gemma3
        else {}
    )
    scaled = (
        {"rope_scaling": {"rope_type": "linear", "factor": config.global_rope_scale}}
        if config.global_rope_scale != 1
        else {}
    )
    long = 131072 if scaled else 32768
    return {
        "_name_or_path": name,
        "architectures": [f"Gemma{3 if gemma3 else 2}{text}For{task}"],
        "model_type": "gemma3_text" if gemma3 else "gemma2",
        **{theirs: getattr(config, ours) for theirs, ours in _SIZES.items()},
        "layer_types": layer_types(config.num_layers, config.global_every),
        "rope_theta": config.global_rope,
        **rope,
        **scaled,
        "query_pre_attn_scalar": round(config.query_scale**-2),
        **{theirs: getattr(config, ours) for theirs, ours in _SOFTCAPS.items()},
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "max_position_embeddings": long if gemma3 else 8192,
        "use_cache": True,
        "torch_dtype": config.dtype,
        **tokens,
        **labels,
    }


def write_config(
    directory: Path, config: GemmaConfig, name: str, tokenizer: Tokenizer, *, scalar: bool = False
) -> None:
    """Write config.json and generation_config.json. A model stops at the end of its turn or of the
    text."""
    stops = list(tokenizer.stop_ids)
    tokens = {
        "bos_token_id": tokenizer.bos_id,
        "eos_token_id": stops,
        "pad_token_id": tokenizer.pad_id,
    }
    for file, value in (
        ("config.json", config_to_json(config, name, tokens, scalar=scalar)),
        ("generation_config.json", tokens),
    ):
        (directory / file).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
