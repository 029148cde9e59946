"""Streaming: what the sampler generates greedily, token by token, in whole characters, with
programs that questions share."""

from dataclasses import replace

import jax
import pytest

from tasks.data.tokens import prompt_tokens
from tasks.devices.hosts import make_mesh
from tasks.models.decoder import SIZES
from tasks.models.loading import LoadedModel
from tasks.models.tiny import tiny_tokenizer
from tasks.models.weights import initialise
from tasks.sampling.sampler import Sampler
from tasks.sampling.slot_programs import Device
from tasks.sampling.streaming import CHUNK, Streamer, pieces

PROMPTS = [
    "Add 1 and 2.",
    "Name a colour that is warm, and say why in a sentence or two, please, if you can.",
    "Hi",
]
LENGTH = 24


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    """Windows shorter than the prompts, one global layer; norms with which it does not say one word
    again and again."""
    config = replace(SIZES["gemma3-tiny"], num_layers=2, window=8, global_every=2)
    model = initialise(config, 3)
    model.layers.post_attention_layernorm.set_value(jax.numpy.full((2, config.embed_dim), 4.0))
    model.layers.q_norm.set_value(jax.numpy.full((2, config.head_dim), 2.0))
    model.final_norm.set_value(3 * jax.random.normal(jax.random.key(0), (config.embed_dim,)))
    return LoadedModel("gemma3-tiny", config, model, tiny_tokenizer(), make_mesh())


@pytest.fixture(scope="module")
def streamer(loaded: LoadedModel) -> Streamer:
    return Streamer(loaded, response_length=LENGTH)


def test_the_stream_is_the_samplers_greedy_answer(loaded: LoadedModel, streamer: Streamer) -> None:
    sampler = Sampler(loaded, batch_size=3, prompt_length=64, response_length=LENGTH)
    for prompt, completion in zip(PROMPTS, sampler.generate(PROMPTS), strict=True):
        tokens = list(streamer.tokens(prompt))
        assert len(set(tokens)) > LENGTH // 3
        assert tokens == completion.tokens
        assert "".join(pieces(loaded.tokenizer, tokens)) == completion.text


def test_an_answer_ends_with_its_terminator(loaded, streamer, monkeypatch):
    tokens = list(streamer.tokens(PROMPTS[0]))
    assert len(tokens) == LENGTH  # a model that was not trained goes on
    context = prompt_tokens(loaded.tokenizer, PROMPTS[0])
    monkeypatch.setattr("tasks.sampling.streaming.prompt_tokens", lambda *_: context)
    monkeypatch.setattr(loaded.tokenizer, "stop_ids", (tokens[5],))
    assert list(streamer.tokens(PROMPTS[0])) == tokens[: tokens.index(tokens[5]) + 1]


def test_questions_share_programs(streamer: Streamer) -> None:
    for prompt in PROMPTS:
        assert len(prompt_tokens(streamer.loaded.tokenizer, prompt)) <= 64
        list(streamer.tokens(prompt))
    before = streamer.compiles
    list(streamer.tokens(PROMPTS[0]))
    assert streamer.compiles == before
    list(streamer.tokens("long " * 30))
    assert streamer.compiles == before + 1  # another prefill, the same slot


def test_what_was_decoded_is_told_at_once(streamer, meanwhile):
    """A chunk is computed when its first token is asked for: whoever stops listening stops the
    work. The first token comes of the prompt."""
    chunks: list[int] = []
    meanwhile(Device, "decode", lambda self, context: chunks.append(context))
    stream = streamer.tokens(PROMPTS[0])
    for told in range(1, 2 * CHUNK + 2):
        next(stream)
        assert len(chunks) == -(-max(told - 1, 1) // CHUNK)
    stream.close()
    assert len(chunks) == 2


def test_characters_of_several_tokens_come_whole() -> None:
    tokenizer = tiny_tokenizer()
    for text in ("naïve café, 数学 😀😀 und Grün", "😀", "a\ufffdb", " two  spaces\n"):
        tokens = tokenizer.encode(text)
        assert len(tokens) > len(text.split())
        told = list(pieces(tokenizer, [*tokens, tokenizer.end_of_turn_id]))
        assert "".join(told) == text
        assert all("\ufffd" not in piece for piece in told) or "\ufffd" in text
        for piece in told:
            piece.encode("utf-8")


def test_bytes_that_never_become_a_character_are_told_at_the_end() -> None:
    tokenizer = tiny_tokenizer()
    broken = tokenizer.encode("a😀")[:-1]
    assert list(pieces(tokenizer, broken)) == ["a", tokenizer.decode(broken)[1:]]
    followed = [*broken, *tokenizer.encode("b")]
    assert "".join(pieces(tokenizer, followed)) == tokenizer.decode(followed)
