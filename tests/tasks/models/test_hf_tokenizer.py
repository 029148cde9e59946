"""Tokenizers in Hugging Face's format: `transformers` encodes with what we write as we do. No torch
is needed."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from tasks.data.control_tokens import CONTROL_TOKENS
from tasks.data.tokens import Tokenizer, prompt_tokens
from tasks.models.hf_tokenizer import CHAT_TEMPLATE, write_tokenizer
from tasks.models.tiny import tiny_tokenizer

TEXTS = [
    "What is 17 + 25?", "0123456789 3.14159", "naïve café 数学 😀\u200d🔬 \u0000 \ufeff",
    "two  spaces,\ttabs\nand\n\nlines", "<reasoning>a</reasoning>\n<answer>b</answer>",
    "=" * 29 + " " * 13 + "a" * 17, "▁ the piece of a space",
]  # fmt: skip


def read_back(tokenizer: Tokenizer, directory: Path) -> Any:
    """What transformers makes of what we write."""
    from transformers import AutoTokenizer

    write_tokenizer(directory, tokenizer)
    (directory / "config.json").write_text('{"model_type": "gemma3_text"}', encoding="utf-8")
    return AutoTokenizer.from_pretrained(directory)


@pytest.fixture(scope="module")
def exported_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return read_back(tiny_tokenizer(), tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("text", TEXTS)
def test_the_exported_tokenizer_encodes_as_ours_does(exported_tokenizer: Any, text: str) -> None:
    tokenizer = tiny_tokenizer()
    tokens = tokenizer.encode(text)
    assert exported_tokenizer.encode(text, add_special_tokens=False) == tokens
    assert exported_tokenizer.encode(text) == [tokenizer.bos_id, *tokens]
    assert exported_tokenizer.decode(tokens) == tokenizer.decode(tokens)
    chat = [{"role": "user", "content": f"  {text}\n"}]
    rendered = exported_tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert rendered == prompt_tokens(tokenizer, f"  {text}\n")


RUNS = ("▁" * 2, "▁" * 4, "▁" * 7, "\n" * 2, "\n" * 5, "\t" * 3, "<b>", "</b>", "a▁b")


@pytest.fixture(scope="module")
def with_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    """Ours and transformers' of a vocabulary with user-defined runs of blanks, as Gemma's has, and
    with one more control token."""
    model = sentencepiece_model_pb2.ModelProto.FromString(tiny_tokenizer().model_proto)
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    for piece in RUNS:
        model.pieces.add(piece=piece, score=0.0, type=kinds.USER_DEFINED)
    model.pieces.add(piece="<mask>", score=0.0, type=kinds.CONTROL)
    tokenizer = Tokenizer(model.SerializeToString())
    return tokenizer, read_back(tokenizer, tmp_path_factory.mktemp("runs"))


@given(st.lists(st.sampled_from([*RUNS, " ", "  ", "\n", "\t", "a", "b", "<", "<mask>", "return"])))
def test_runs_of_blanks_are_the_pieces_that_they_are_to_us(with_runs, parts):
    ours, theirs = with_runs
    text = "".join(parts)
    assert theirs.encode(text, add_special_tokens=False) == ours.encode(text)
    assert theirs.decode(ours.encode(text)) == ours.decode(ours.encode(text))


def test_the_exported_tokenizer_has_our_ids_and_no_more(exported_tokenizer: Any) -> None:
    tokenizer = tiny_tokenizer()
    assert len(exported_tokenizer) == len(tokenizer)
    named = exported_tokenizer.convert_tokens_to_ids(list(CONTROL_TOKENS))
    assert named == list(map(exported_tokenizer.vocab.get, CONTROL_TOKENS))
    ids = [getattr(exported_tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")]
    assert ids == [tokenizer.bos_id, 1, tokenizer.pad_id]


def test_turns_must_alternate(exported_tokenizer: Any) -> None:
    from jinja2 import TemplateError

    user = {"role": "user", "content": "a"}
    with pytest.raises(TemplateError, match="must alternate"):
        exported_tokenizer.apply_chat_template([user, user])
    said = exported_tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be kind."}, user], tokenize=False
    )
    assert said == "<bos><start_of_turn>user\nBe kind.\n\na<end_of_turn>\n"


def test_files_of_the_base_model_are_kept(tmp_path: Path) -> None:
    theirs = json.dumps({"chat_template": "{{ bos_token }}", "tokenizer_class": "GemmaTokenizer"})
    (tmp_path / "tokenizer_config.json").write_text(theirs, encoding="utf-8")
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    write_tokenizer(tmp_path, tiny_tokenizer())
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {
        "tokenizer_config.json": theirs,
        "tokenizer.json": "{}",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tokenizer_config.json", {"chat_template": None}),
        ("chat_template.json", {"chat_template": CHAT_TEMPLATE}),
    ],
)
def test_a_template_is_where_a_tokenizer_reads_one(tmp_path: Path, name: str, value: Any) -> None:
    """Neither a null nor a processor's file is read as the tokenizer's."""
    (tmp_path / name).write_text(json.dumps(value), encoding="utf-8")
    loaded = read_back(tiny_tokenizer(), tmp_path)
    said = loaded.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert said == "<bos><start_of_turn>user\na<end_of_turn>\n"
