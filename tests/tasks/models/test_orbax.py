"""Orbax checkpoints of the Gemma library, as Kaggle has them: read into our weights, converted
once; what is something else is refused."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp
import pytest

from schemas.base import InputError
from tasks.models import decoder, orbax
from tasks.models.decoder import GemmaConfig
from tasks.models.hf_directory import INDEX
from tasks.models.loading import LoadedModel, base_model, model_config
from tasks.models.tiny import tiny_tokenizer
from tests.tasks.models.small_model import weights_of

SMALL: dict[str, Any] = {
    "num_layers": 3, "vocab_size": 1600, "embed_dim": 24, "hidden_dim": 40, "num_heads": 4,
    "head_dim": 8,
}  # fmt: skip
CONFIGS = {
    "gemma3": replace(decoder.SIZES["gemma3-tiny"], **SMALL, num_kv_heads=1),
    "gemma2": replace(decoder.SIZES["gemma2-2b-it"], **SMALL, num_kv_heads=2, dtype="float32"),
}
ROWS = 1700
"""The library pads vocabularies to other lengths than Hugging Face does."""


def library_params(config: GemmaConfig, *, transposed_gate: bool = False) -> dict[str, Any]:
    """What `gemma.gm.ckpts` of the library saves for such a model."""
    embed, hidden, head = config.embed_dim, config.hidden_dim, config.head_dim
    heads, kv_heads = config.num_heads, config.num_kv_heads
    shapes: dict[str, tuple[int, ...]] = {
        "attn/q_einsum:w": (heads, embed, head),
        "attn/kv_einsum:w": (2, kv_heads, embed, head),
        "attn/attn_vec_einsum:w": (heads, head, embed),
        "mlp/gating_einsum:w": (2, embed, hidden) if transposed_gate else (2, hidden, embed),
        "mlp/linear:w": (hidden, embed),
    }
    for place in ("pre_attention", "post_attention", "pre_ffw", "post_ffw"):
        shapes[f"{place}_norm:scale"] = (embed,)
    if config.qk_norm:
        shapes |= {f"attn/_{side}_norm:scale": (head,) for side in ("query", "key")}
    shapes = {
        f"layer_{layer}/{name}": shape
        for layer in range(config.num_layers)
        for name, shape in shapes.items()
    }
    shapes |= {"embedder:input_embedding": (ROWS, embed), "final_norm:scale": (embed,)}
    generator, params = np.random.default_rng(0), {}
    for name, shape in shapes.items():
        module, _, leaf = name.partition(":")
        weight = generator.standard_normal(shape).astype(np.float32)
        params.setdefault(f"transformer/{module}", {})[leaf] = weight
    return params


def save(directory: Path, params: dict[str, Any], *, ocdbt: bool = True) -> None:
    """As Kaggle lays it out: the checkpoint in a directory of its own, beside the tokenizer."""
    directory.mkdir()
    ocp.PyTreeCheckpointer(use_ocdbt=ocdbt).save(directory / "gemma-ckpt", params)
    tiny_tokenizer().save(directory / "tokenizer.model")


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, GemmaConfig]:
    for family, config in CONFIGS.items():
        monkeypatch.setitem(decoder.SIZES, f"{family}-small-it", config)
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "cache"))
    return CONFIGS


@pytest.mark.parametrize(
    ("family", "ocdbt", "gates"),
    [("gemma3", True, "cfd"), ("gemma2", True, "cdf"), ("gemma3", False, "cfd")],
)
def test_projections_compute_what_the_librarys_einsums_do(known, tmp_path, family, ocdbt, gates):
    """Both orders of the gate are known."""
    params = library_params(known[family], transposed_gate=gates == "cdf")
    save(tmp_path / "model", params, ocdbt=ocdbt)
    loaded = base_model(str(tmp_path / "model"), 0)
    assert loaded.config == replace(known[family], vocab_size=ROWS)
    assert loaded.config == model_config(str(tmp_path / "model"))
    weights = weights_of(loaded)
    x = np.random.default_rng(1).standard_normal((2, 24)).astype(np.float32)
    h = np.random.default_rng(2).standard_normal((2, 4, 8)).astype(np.float32)
    f = np.random.default_rng(3).standard_normal((2, 40)).astype(np.float32)
    norms = {
        "input_layernorm": "pre_attention",
        "post_attention_layernorm": "post_attention",
        "pre_feedforward_layernorm": "pre_ffw",
        "post_feedforward_layernorm": "post_ffw",
    }
    if family == "gemma3":
        norms |= {"q_norm": "attn/_query", "k_norm": "attn/_key"}
    for layer in range(3):
        theirs = {
            name.partition(f"layer_{layer}/")[2]: next(iter(leaf.values()))
            for name, leaf in params.items()
            if f"layer_{layer}/" in name
        }
        stacks = {name: value for name, value in weights.items() if "layers." in name}
        ours = {name.removeprefix("layers."): value[layer] for name, value in stacks.items()}
        k, v = np.einsum("td,ckdh->ctkh", x, theirs["attn/kv_einsum"])
        gate, up = np.einsum(f"td,{gates}->ctf", x, theirs["mlp/gating_einsum"])
        q = np.einsum("td,ndh->tnh", x, theirs["attn/q_einsum"])
        o = np.einsum("tnh,nhd->td", h, theirs["attn/attn_vec_einsum"])
        for axes, given, name, wanted in (
            ("td,dnh->tnh", x, "q_proj", q),
            ("td,dkh->tkh", x, "k_proj", k),
            ("td,dkh->tkh", x, "v_proj", v),
            ("tnh,nhd->td", h, "o_proj", o),
            ("td,df->tf", x, "gate_proj", gate),
            ("td,df->tf", x, "up_proj", up),
            ("tf,fd->td", f, "down_proj", f @ theirs["mlp/linear"]),
        ):
            found = np.einsum(axes, given, ours[name])
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5, err_msg=name)
        for name, their_name in norms.items():
            np.testing.assert_array_equal(ours[name], theirs[f"{their_name}_norm"])
    embedding = params["transformer/embedder"]["input_embedding"]
    np.testing.assert_array_equal(weights["embedding"], embedding)
    assert_norm_is(loaded, params["transformer/final_norm"]["scale"])


def assert_norm_is(loaded: LoadedModel, scale: np.ndarray) -> None:
    np.testing.assert_array_equal(loaded.model.final_norm.get_value(), scale)


def test_it_is_converted_once_in_files_of_bounded_size(known, tmp_path, monkeypatch):
    monkeypatch.setattr(orbax, "SHARD_BYTES", 200_000)
    save(tmp_path / "model", library_params(known["gemma3"]))
    first = base_model(str(tmp_path / "model"), 0)
    assert (first.companions / INDEX).exists()
    monkeypatch.setattr(orbax.Arrays, "read", None)  # it would fail
    again = base_model(str(tmp_path / "model"), 0)
    assert_norm_is(again, first.model.final_norm.get_value())
    converted = [path.name for path in (tmp_path / "cache" / "models").iterdir()]
    assert converted == [first.companions.name]


def test_vision_towers_and_a_name_for_the_whole_are_passed_over(known, tmp_path):
    params = library_params(known["gemma3"])
    vision = {"SigLiPFromPatches_0/siglip_encoder/embedding": {"kernel": np.zeros((2, 2), "f4")}}
    save(tmp_path / "model", {"params": params | vision})
    loaded = base_model(str(tmp_path / "model"), 0)
    assert_norm_is(loaded, params["transformer/final_norm"]["scale"])


def test_other_checkpoints_are_refused(known: dict[str, GemmaConfig], tmp_path: Path) -> None:
    part, shape = library_params(known["gemma3"]), library_params(known["gemma3"])
    del part["transformer/layer_1/mlp/linear"]
    shape["transformer/layer_2/attn/_key_norm"]["scale"] = np.zeros(5, np.float32)
    odd = library_params(replace(known["gemma3"], num_layers=2))
    valid = "Valid: the sizes of gemma3-tiny, gemma3-270m-it"
    other = {"decoder": {"kernel": np.zeros(3, np.float32)}}
    for name, params, said in (
        ("other", other, "no checkpoint of a Gemma 2 or 3. It has decoder/kernel"),
        ("odd", odd, f"no published Gemma: gemma3, 2 layers, width 24.*{valid}"),
        ("part", part, "has no layer_1/mlp/linear/w; download it again"),
        ("shape", shape, r"layers.2.self_attn.k_norm.weight the shape \(5,\) instead of \(8,\)"),
        ("mute", library_params(known["gemma3"]), "no tokenizer.model. Copy that of the same fam"),
    ):
        save(tmp_path / name, params)
        if name == "mute":
            (tmp_path / "mute" / "tokenizer.model").unlink()
        with pytest.raises(InputError, match=said):
            base_model(str(tmp_path / name), 0)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


# of a thread of the library that was told too late
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_damaged_checkpoints_are_refused(known: dict[str, GemmaConfig], tmp_path: Path) -> None:
    save(tmp_path / "model", library_params(known["gemma3"]))
    checkpoint = tmp_path / "model" / "gemma-ckpt"
    for data in (checkpoint / "ocdbt.process_0" / "d").iterdir():
        data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(
        InputError, match=r"embedder/input_embedding cannot be read .*; download it again"
    ):
        base_model(str(tmp_path / "model"), 0)
    shutil.rmtree(checkpoint / "d")
    with pytest.raises(InputError, match=r"what describes its arrays is missing"):
        base_model(str(tmp_path / "model"), 0)
    assert not list((tmp_path / "cache" / "models").iterdir())
