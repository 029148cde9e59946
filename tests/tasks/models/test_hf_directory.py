"""A directory that cannot be a model is refused before anything runs: one line with the fix, exit
code 2, no traceback."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sentencepiece import sentencepiece_model_pb2

from flows.cli.main import main
from schemas.base import InputError
from tasks.models import hf_weights
from tasks.models.decoder import weight_shapes
from tasks.models.hf_directory import INDEX, TOKENIZER, WEIGHTS
from tasks.models.hf_tokenizer import CHAT_TEMPLATE
from tasks.models.hf_weights import write_model
from tasks.models.loading import load_model
from tasks.models.model_source import check_model
from tasks.models.tiny import tiny_tokenizer
from tests.tasks.models.small_model import SMALL_MODEL, write_small_model

GEMMA2_TEMPLATE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/...') }}{% endif %}"
    "{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}"
    "{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n'"
    " + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"
)
"""Of google/gemma-2-2b-it."""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A whole model in several files."""
    monkeypatch.setattr(hf_weights, "SHARD_BYTES", 50_000)
    directory = write_small_model(tmp_path / "model")
    assert (directory / INDEX).exists()
    return directory


def gguf(model: Path) -> Path:
    """A file of llama.cpp's in place of a directory."""
    path = model.parent / "gemma-3-270m.Q4_K_M.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0")
    return path


def gguf_inside(model: Path, pattern: str = "model*") -> Path:
    for path in model.glob(pattern):
        path.unlink()
    (model / "gemma-3-270m.Q4_K_M.gguf").write_bytes(b"GGUF\x03\0\0\0")
    return model


def gguf_alone(model: Path) -> Path:
    return gguf_inside(model, "*")


def without_a_shard(model: Path) -> Path:
    sorted(model.glob("model-*"))[1].unlink()
    return model


def with_another_vocabulary(model: Path) -> Path:
    """Fewer pieces than rows: Gemma 2's tokenizer beside Gemma 3's weights."""
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 8192}))
    return model


def without_turns(model: Path) -> Path:
    """A tokenizer of another family."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(tiny_tokenizer().model_proto)
    for piece in proto.pieces:
        piece.piece = piece.piece.replace("_of_turn>", "_of_line>")
    (model / TOKENIZER).write_bytes(proto.SerializeToString())
    return model


def with_half_a_tokenizer(model: Path) -> Path:
    (model / TOKENIZER).write_bytes((model / TOKENIZER).read_bytes()[:1000])
    return model


def with_turns_of_another_family(model: Path) -> Path:
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
    )
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return model


def with_thoughts_of_its_own(model: Path) -> Path:
    """A model that was taught to reason: its template opens the thoughts, by the name that
    `transformers` takes of several."""
    template = CHAT_TEMPLATE.replace("turn>model\\n'", "turn>model\\n<think>\\n'")
    assert template != CHAT_TEMPLATE
    named = [{"name": "tools", "template": "x"}, {"name": "default", "template": template}]
    (model / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    return model


def with_a_template_that_is_no_text(model: Path) -> Path:
    (model / "chat_template.jinja").write_bytes(b"<start_of_turn>\xff")
    return model


def with_an_index_of_no_names(model: Path) -> Path:
    for weights in (["a"], {"a": "x", "b": None}, {"a": 1}):
        with contextlib.suppress(InputError):  # a TypeError is none
            check_model(str(model))
        (model / INDEX).write_text(json.dumps({"weight_map": weights}))
    return model


def emptied(model: Path) -> Path:
    for path in model.iterdir():
        path.unlink()
    return model


BAD = {
    emptied: r"has no config.json and no Orbax checkpoint",
    gguf: r"Q4_K_M.gguf' is a GGUF file, .* no directory. Name a directory .* hf://google/gemma",
    gguf_inside: r"neither model.safetensors .* but gemma-3-270m.Q4_K_M.gguf, a GGUF file.* Name a",
    gguf_alone: r"no config.json .* but gemma-3-270m.Q4_K_M.gguf, a GGUF file.* Name a directory",
    without_a_shard: r"names model-00002-of-\d+.safetensors, which is not there; download it again",
    with_another_vocabulary: r"has 1536 pieces, and the model's vocabulary 8192: .* Copy tokenizer",
    without_turns: r"has no <start_of_turn>, <end_of_turn>: it is no Gemma tokenizer. Copy",
    with_half_a_tokenizer: r"tokenizer.model is no SentencePiece model, or not whole; download it",
    with_turns_of_another_family: r"chat template without <start_of_turn>.* Remove the template",
    with_a_template_that_is_no_text: r"chat_template.jinja is no text .*; download it again",
    with_an_index_of_no_names: r"index.json is damaged .*; download it again",
    with_thoughts_of_its_own: r"renders '.*model.n<think>.n' instead of '<bos>.* Remove the templ",
}


@pytest.mark.parametrize("damaged", BAD, ids=lambda damaged: damaged.__name__)
def test_it_is_refused_in_one_line_before_anything_runs(damaged, model, capsys):
    check_model(str(model))
    name = str(damaged(model))
    store = model.parent / "store"
    with pytest.raises(InputError, match=BAD[damaged]):
        check_model(name)
    assert main(["run", "quickstart", "--set", f"model={name}", "--store", str(store)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    assert "Traceback" not in printed.err
    assert not store.exists()


def test_a_base_model_needs_no_chat_template_and_may_have_gemmas(model: Path) -> None:
    """Prompts are put in Gemma's turns by us; exports get Gemma's template."""
    check_model(str(model))
    (model / "tokenizer_config.json").write_text('{"tokenizer_class": "GemmaTokenizer"}')
    check_model(str(model))
    with_a_tag = CHAT_TEMPLATE + "{% generation %}{% endgeneration %}"  # of `transformers` alone
    for template in (CHAT_TEMPLATE, GEMMA2_TEMPLATE, with_a_tag):
        (model / "chat_template.jinja").write_text(template)
        check_model(str(model))


@pytest.mark.parametrize(
    ("dtype", "value", "name"),
    [
        ("float32", np.nan, "embedding"),
        ("bfloat16", np.inf, "layers.up_proj"),
        ("bfloat16", np.nan, "final_norm"),
        ("float32", -np.inf, "layers.up_proj"),
    ],
)
def test_weights_that_are_no_numbers_are_refused(tmp_path, dtype, value, name):
    """One value of a weight; the largest number of float32 is one."""
    config, tokenizer = replace(SMALL_MODEL, dtype=dtype), tiny_tokenizer()
    tokenizer.save(tmp_path / TOKENIZER)

    def write(last: float) -> None:
        (tmp_path / WEIGHTS).unlink(missing_ok=True)

        def weight(one: str) -> np.ndarray:
            made = np.full(weight_shapes(config)[one], 0.5, np.float32)
            made.flat[-1] = last if one == name else 0.5
            return made

        write_model(tmp_path, config, "x", tokenizer, weight)

    write(np.finfo(np.float32).max if dtype == "float32" else 3e38)
    load_model(tmp_path)
    write(value)
    with pytest.raises(InputError, match=r"values that are no numbers .*Download them again"):
        load_model(tmp_path)
