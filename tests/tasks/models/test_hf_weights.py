"""Checkpoints in Hugging Face's format: files, sizes, types and parts, published configs, and what
is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from schemas.base import InputError
from tasks.devices.hosts import make_mesh
from tasks.models import decoder, hf_weights
from tasks.models.decoder import GemmaConfig, weight_shapes
from tasks.models.hf_config import config_from_json, config_to_json, read_config
from tasks.models.hf_directory import INDEX, WEIGHTS
from tasks.models.hf_weights import Weights
from tasks.models.loading import LoadedModel, base_model, load_model, save_model
from tasks.models.tiny import tiny_tokenizer
from tasks.models.weights import initialise
from tests.tasks.models.small_model import weights_of

SMALL = GemmaConfig(
    family="gemma3", num_layers=7, embed_dim=24, hidden_dim=40, num_heads=4, num_kv_heads=2,
    vocab_size=1600,  # more than the tokenizer has
    head_dim=8, window=16, global_every=6, local_rope=10_000.0, global_rope=1_000_000.0,
    global_rope_scale=1.0, query_scale=12**-0.5, attention_softcap=None, final_softcap=None,
    dtype="float32",
)  # fmt: skip
SMALL2 = replace(
    SMALL, family="gemma2", global_every=2, global_rope=10_000.0, attention_softcap=50.0,
    final_softcap=30.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Family -> a directory with random weights in many files. What `transformers` saves is in
    tests/end_to_end."""
    root = tmp_path_factory.mktemp("checkpoints")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf_weights, "SHARD_BYTES", 60_000)
        for config in (SMALL, SMALL2):
            (root / config.family).mkdir()
            model = initialise(config, 1)
            loaded = LoadedModel(config.family, config, model, tiny_tokenizer(), make_mesh())
            save_model(loaded, root / config.family)
    return {name: root / name for name in ("gemma2", "gemma3")}


@pytest.fixture
def copy(directories: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the Gemma 3 to damage, its weights in one file."""
    directory = tmp_path / "model"
    directory.mkdir()
    for name in ("config.json", "tokenizer.model"):
        shutil.copy(directories["gemma3"] / name, directory)
    tensors: dict[str, np.ndarray] = {}
    for path in directories["gemma3"].glob("*.safetensors"):
        tensors |= load_file(path)
    save_file(tensors, directory / WEIGHTS, metadata={"format": "pt"})
    return directory


@pytest.mark.parametrize("prefix", ["model.language_model.", ""])
def test_other_prefixes_and_tied_copies_are_known(directories, copy, prefix):
    """Of the multimodal class in `transformers` since 4.52, which writes the tied unembedding, too;
    and of the class without a head."""
    before = weights_of(load_model(copy))
    tensors = {
        prefix + name.removeprefix("model."): value
        for name, value in load_file(copy / WEIGHTS).items()
    }
    tied = {
        "lm_head.weight": tensors[f"{prefix}embed_tokens.weight"],
        "model.vision_tower.x.weight": np.zeros(2, np.float32),
    }
    save_file(tensors | tied, copy / WEIGHTS)
    found = weights_of(load_model(copy))
    assert all(np.array_equal(found[name], value) for name, value in before.items())


def test_an_unembedding_that_is_no_copy_is_refused(copy: Path) -> None:
    """`transformers` computes with it, and says so in a warning."""
    tensors = load_file(copy / WEIGHTS)
    embedding = tensors["model.embed_tokens.weight"]
    trained = embedding.copy()
    trained[-1, -1] += 1
    for head in (trained, np.concatenate([embedding, embedding[:1]])):
        save_file(tensors | {"lm_head.weight": head}, copy / WEIGHTS)
        with pytest.raises(InputError, match=r"lm_head.weight is no copy of the embedding"):
            load_model(copy)


def test_many_files_hold_what_one_does(directories, tmp_path, monkeypatch):
    loaded = load_model(directories["gemma2"])
    one, many = tmp_path / "one", tmp_path / "many"
    for directory in (one, many):
        directory.mkdir()
        save_model(loaded, directory)
        monkeypatch.setattr(hf_weights, "SHARD_BYTES", 80_000)
    assert sorted(path.name for path in one.glob("*.safetensors*")) == [WEIGHTS]
    files, whole = sorted(many.glob("*.safetensors")), load_file(one / WEIGHTS)
    assert len(files) > 2
    assert not (many / WEIGHTS).exists()
    index = json.loads((many / INDEX).read_text())
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in whole.values())
    parts = {path.name: load_file(path) for path in files}
    assert all(
        sum(value.nbytes for value in part.values()) <= 80_000 or len(part) == 1
        for part in parts.values()
    )
    assert {name: file for file, part in parts.items() for name in part} == index["weight_map"]
    for name, value in whole.items():
        np.testing.assert_array_equal(parts[index["weight_map"][name]][name], value)
    for name, value in weights_of(load_model(many)).items():
        np.testing.assert_array_equal(value, weights_of(loaded)[name])


def test_the_same_weights_make_the_same_bytes_through_a_chain_of_models(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
    save_model(base_model("gemma3-tiny", seed=1), tmp_path / "a")
    companions = {"tokenizer.json": b"{}", "chat_template.jinja": b"{{ bos_token }}"}
    for name, data in companions.items():
        (tmp_path / "a" / name).write_bytes(data)
    loaded = load_model(tmp_path / "a")
    assert (loaded.name, loaded.config) == ("gemma3-tiny", decoder.SIZES["gemma3-tiny"])
    save_model(loaded, tmp_path / "b")
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()
    }
    assert companions.keys() < {path.name for path in (tmp_path / "b").iterdir()}


@pytest.mark.parametrize(
    ("stored", "said", "held"),
    [
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float16", "float16", "bfloat16"),
        ("bfloat16", "float32", "float32"),
    ],
)
def test_weights_are_held_in_the_configs_dtype(copy, stored, said, held):
    before = {name: value.astype(stored) for name, value in load_file(copy / WEIGHTS).items()}
    save_file(before, copy / WEIGHTS)
    _change_config(copy, dtype=said)
    loaded = load_model(copy)
    assert loaded.config.dtype == held
    found = weights_of(loaded)
    assert {str(value.dtype) for value in found.values()} == {held}
    np.testing.assert_array_equal(
        found["embedding"], before["model.embed_tokens.weight"].astype(held)
    )


def test_any_part_of_a_weight_can_be_read(directories, monkeypatch):
    """As a mesh of any shape asks for them: every axis cut, also heads within a head, and the
    embedding in pieces."""
    config, _ = read_config(directories["gemma3"])
    weights = Weights(directories["gemma3"], config)
    whole = {
        name: weights.read(name, tuple(slice(None) for _ in shape))
        for name, shape in weight_shapes(config).items()
    }
    monkeypatch.setattr(hf_weights, "READ_BYTES", 4 * 24 * 100)
    generator = np.random.default_rng(0)
    for name, value in whole.items():
        for _ in range(4):
            ends = [
                sorted(generator.choice(length + 1, 2, replace=False)) for length in value.shape
            ]
            index = tuple(slice(int(start), int(stop)) for start, stop in ends)
            np.testing.assert_array_equal(
                weights.read(name, index), value[index], err_msg=f"{name} {index}"
            )


# config.json, as Google publishes it (google/gemma-3-1b-it, -4b-it, -12b-it, gemma-2-2b-it, -9b)

G3_1B = {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "torch_dtype": "bfloat16",
    "attention_bias": False, "attn_logit_softcapping": None, "final_logit_softcapping": None,
    "eos_token_id": [1, 106], "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-06,
    "head_dim": 256, "hidden_size": 1152, "intermediate_size": 6912, "vocab_size": 262144,
    "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256, "max_position_embeddings": 32768,
    "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
    "sliding_window": 512, "sliding_window_pattern": 6,
}  # fmt: skip
G3_270M = G3_1B | {
    "hidden_size": 640,
    "intermediate_size": 2048,
    "num_hidden_layers": 18,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 3,
    "_sliding_window_pattern": 6,
    "rope_local_base_freq": 10000.0,
}
G3_4B_TEXT = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "model_type": "gemma3_text",
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
G3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "model_type": "gemma3",
    "text_config": G3_4B_TEXT,
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "model_type": "siglip_vision_model"},
}
G3_12B_TEXT = G3_4B_TEXT | {
    "hidden_size": 3840,
    "intermediate_size": 15360,
    "num_attention_heads": 16,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
}
G3_12B = G3_4B | {"text_config": G3_12B_TEXT}
G2_9B = {
    "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "torch_dtype": "float32",
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256, "hidden_size": 3584, "intermediate_size": 14336, "vocab_size": 256000,
    "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8,
    "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
    "sliding_window": 4096, "sliding_window_size": 4096,
}  # fmt: skip
G2_2B = G2_9B | {
    "hidden_size": 2304, "intermediate_size": 9216, "num_attention_heads": 8,
    "num_hidden_layers": 26, "num_key_value_heads": 4, "torch_dtype": "bfloat16",
}  # fmt: skip
PUBLISHED = {
    "gemma3-270m": G3_270M, "gemma3-1b": G3_1B, "gemma3-4b": G3_4B, "gemma3-12b": G3_12B,
    "gemma2-2b": G2_2B, "gemma2-9b": G2_9B,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_configs_are_our_sizes_and_survive_being_written(name: str) -> None:
    known = decoder.SIZES[f"{name}-it"]
    found = config_from_json(PUBLISHED[name], name)
    assert replace(found, dtype=known.dtype) == known
    written = config_to_json(
        found, name, {"bos_token_id": 2, "eos_token_id": [1, 106], "pad_token_id": 0}
    )
    assert config_from_json(written, name) == found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["LlamaModel"]}, "describes LlamaModel. Valid architectures: Gemma2For"),
        ({"architectures": [], "model_type": "gemma"}, "describes gemma. Valid"),
        ({"hidden_activation": "silu"}, "hidden_activation = 'silu' is not supported"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings = False"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn and default are not supported. Valid: def"),
        ({"layer_types": ["full_attention"] * 2 + ["sliding_attention"] * 5}, "irregular"),
    ],
)
def test_another_architecture_is_refused(copy: Path, change: dict[str, Any], words: str) -> None:
    _change_config(copy, **change)
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        load_model(copy)


def test_scaled_positions_of_a_gemma_2_are_refused_in_each_spelling() -> None:
    """They would be those of its local layers, too, which ours are not."""
    scaling = {"rope_type": "linear", "factor": 2.0}
    for said in ({"rope_scaling": scaling}, {"rope_parameters": scaling | {"rope_theta": 1e4}}):
        with pytest.raises(InputError, match="of type linear and linear are not supported"):
            config_from_json(G2_2B | said, "config.json")


def test_a_config_made_from_a_gguf_file_is_read() -> None:
    """`transformers` writes the file's float32 as it is."""
    eps = float(np.float32(1e-6))
    assert config_from_json(G2_2B | {"rms_norm_eps": eps}, "x") == config_from_json(G2_2B, "x")


def test_missing_and_misshapen_tensors_are_named(copy: Path) -> None:
    tensors = load_file(copy / WEIGHTS)
    for layer in range(5):
        del tensors[f"model.layers.{layer}.mlp.up_proj.weight"]
    tensors["model.layers.0.extra.weight"] = np.zeros(3, np.float32)
    tensors["model.layers.0.input_layernorm.weight"] = np.zeros(23, np.float32)
    save_file(tensors, copy / WEIGHTS)
    with pytest.raises(InputError) as caught:
        load_model(copy)
    text = str(caught.value)
    assert "model.layers.0.extra.weight is (3,) instead of nothing" in text
    assert "model.layers.0.input_layernorm.weight is (23,) instead of (24,)" in text
    assert "model.layers.0.mlp.up_proj.weight is missing instead of (40, 24)" in text
    assert "and 3 more" in text
    assert "layers.4" not in text


def test_damaged_files_are_refused(copy: Path) -> None:
    """Those that are missing are in test_hf_directory."""
    whole = (copy / WEIGHTS).read_bytes()
    for damaged in (whole[:-100], whole[:5], b"<html>"):
        (copy / WEIGHTS).write_bytes(damaged)
        with pytest.raises(InputError, match=r"model.safetensors is damaged or not whole"):
            load_model(copy)
    (copy / "config.json").write_text("{")
    with pytest.raises(InputError, match=r"config.json is no JSON"):
        load_model(copy)


def test_quantised_weights_and_a_missing_tokenizer_are_refused(copy: Path) -> None:
    tensors = load_file(copy / WEIGHTS)
    save_file(tensors | {"model.norm.weight": np.zeros(24, np.int8)}, copy / WEIGHTS)
    with pytest.raises(InputError, match=r"stored as I8.*not quantised"):
        load_model(copy)
    (copy / "tokenizer.model").unlink()
    with pytest.raises(
        InputError, match=r"has no tokenizer.model. Copy it there from the base model"
    ):
        load_model(copy)


def _change_config(directory: Path, **change: Any) -> None:
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | change))
