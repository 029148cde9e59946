"""Checkpoints in Hugging Face's format: what `transformers` writes we read, what we write it reads,
tensor for tensor."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.models import decoder
from tasks.models.decoder import GemmaConfig, weight_shapes
from tasks.models.hf_config import config_from_json, config_to_json
from tasks.models.hf_directory import WEIGHTS
from tasks.models.loading import load_model, save_model
from tasks.models.tiny import tiny_tokenizer
from tests.end_to_end.tasks.models.test_parity import our_weights
from tests.tasks.devices.fake_devices import printed
from tests.tasks.models.small_model import weights_of
from tests.tasks.models.test_hf_weights import PUBLISHED

torch = pytest.importorskip("torch", reason="round trips need torch (CPU): uv sync --extra export")
transformers = pytest.importorskip("transformers")

SMALL = {
    "vocab_size": 1600,  # more than the tokenizer has
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 12,
}  # fmt: skip
VISION = {
    "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip
KINDS = ("gemma2", "gemma3", "multimodal")


def theirs(kind: str) -> Any:
    """A random model of `transformers`; norms are random, too."""
    torch.manual_seed(0)
    if kind == "gemma2":
        model = transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SMALL))
    elif kind == "gemma3":
        model = transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**SMALL))
    else:
        scaled = {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default"},
        }
        text = transformers.Gemma3TextConfig(**SMALL, rope_parameters=scaled).to_dict()
        config = transformers.Gemma3Config(
            text_config=text, vision_config=VISION, mm_tokens_per_image=4
        )
        model = transformers.Gemma3ForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Kind -> a directory that `transformers` saved in many files, with a tokenizer."""
    root = tmp_path_factory.mktemp("checkpoints")
    for kind in KINDS:
        theirs(kind).save_pretrained(root / kind, max_shard_size="60KB")
        tiny_tokenizer().save(root / kind / "tokenizer.model")
    return {kind: root / kind for kind in KINDS}


def expected_weights(state: dict[str, Any], config: GemmaConfig) -> dict[str, np.ndarray]:
    """Our weights of a state dict of torch, whatever class of `transformers` has it."""
    text = {
        f"model.{name.split('language_model.')[-1].removeprefix('model.')}": value
        for name, value in state.items()
        if "vision" not in name
    }
    return {name: np.asarray(value) for name, value in our_weights(config, text).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_tensor_arrives(directories: dict[str, Path], kind: str) -> None:
    assert len(list(directories[kind].glob("*.safetensors"))) > 3
    loaded = load_model(directories[kind])
    found, expected = weights_of(loaded), expected_weights(theirs(kind).state_dict(), loaded.config)
    assert found.keys() == expected.keys() == weight_shapes(loaded.config).keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert len(loaded.tokenizer) < loaded.config.vocab_size


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_what_we_write(directories, tmp_path, kind):
    save_model(load_model(directories[kind]), tmp_path)
    back, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report[f"{problem}_keys"] for problem in ("missing", "unexpected", "mismatched"))
    original = theirs(kind)
    text = original.model.language_model if kind == "multimodal" else original.model
    for name, value in text.state_dict().items():
        assert torch.equal(back.model.state_dict()[name], value), name
    assert type(back).__name__ == ("Gemma2ForCausalLM" if kind == "gemma2" else "Gemma3ForCausalLM")
    said, meant = back.config.to_dict(), text.config.to_dict()
    computes = (
        "layer_types", "rope_parameters", "sliding_window", "query_pre_attn_scalar",
        "final_logit_softcapping", "tie_word_embeddings",
    )  # fmt: skip
    assert {key: said[key] for key in computes} == {key: meant[key] for key in computes}
    # <eos> and <end_of_turn> of the tiny tokenizer
    assert back.generation_config.eos_token_id == [1, 5]
    assert tiny_tokenizer().end_of_turn_id == 5


ON_FOUR_DEVICES = """
import sys, tracemalloc
from pathlib import Path
import jax
import numpy as np
from jax.sharding import Mesh
from tasks.models import loading
from tasks.models.decoder import weight_shapes
from tasks.models.loading import load_model, save_model
whole = load_model(Path(sys.argv[1]))
largest, reads, read = 0, 0, loading.Weights.read
def counted(self, name, index):
    global largest, reads
    part = read(self, name, index)
    largest, reads = max(largest, part.nbytes), reads + 1
    return part
loading.Weights.read = counted
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("fsdp", "tp"))
loaded = load_model(Path(sys.argv[1]), mesh, trained=True)
def weight(model, name):
    owner, _, leaf = name.rpartition(".")
    return getattr(model.layers if owner else model, leaf).get_value()
for name, shape in weight_shapes(loaded.config).items():
    array, expected = weight(loaded.model, name), np.asarray(weight(whole.model, name))
    assert array.shape == shape and np.array_equal(np.asarray(array), expected), name
    assert len({shard.device for shard in array.addressable_shards}) == 4
    assert "norm" in name or array.addressable_shards[0].data.size <= expected.size // 2, name
save_model(loaded, Path(sys.argv[2]))
print([largest, reads, weight(whole.model, "embedding").nbytes])
"""


def test_parts_lie_where_the_mesh_says_and_each_is_read_once(directories, tmp_path):
    save_model(load_model(directories["gemma3"]), tmp_path)
    whole = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).unlink()
    given = str(directories["gemma3"]), str(tmp_path)
    found = printed(ON_FOUR_DEVICES, *given, devices=4, LYCEUM_WHOLE_WEIGHTS_GIB="0")
    largest, reads, embedding = found
    assert largest <= embedding // 4
    # norms lie on all four and are read once
    assert reads < 4 * len(weight_shapes(decoder.SIZES["gemma3-tiny"]))
    assert (tmp_path / WEIGHTS).read_bytes() == whole


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_configs_that_we_write_are_read_back_from_transformers(name: str) -> None:
    found = config_from_json(PUBLISHED[name], name)
    written = config_to_json(
        found, name, {"bos_token_id": 2, "eos_token_id": [1, 106], "pad_token_id": 0}
    )
    again = transformers.AutoConfig.for_model(**written)
    assert config_from_json(again.to_dict(), name) == found
