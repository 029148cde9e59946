"""The sampler: parity with running the model token by token, one program, and randomness that
belongs to the row."""

from collections.abc import Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from schemas.base import InputError
from schemas.trainer_config import LoraConfig
from tasks.data.tokens import prompt_tokens
from tasks.models import decoder
from tasks.models.decoder import SIZES
from tasks.models.loading import LoadedModel, base_model
from tasks.models.lora import add_lora
from tasks.models.weights import initialise
from tasks.sampling.sampler import Sampler

PROMPTS = ["Add 1 and 2.", "Name a colour that is warm.", "Hi", "Sort 3 1 2"]


@pytest.fixture(scope="module")
def two_layers() -> Iterator[None]:
    """`gemma3-tiny` with a local and a global layer, which compiles quickly."""
    small = replace(SIZES["gemma3-tiny"], num_layers=2, global_every=2, hidden_dim=128)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "gemma3-tiny", small)
        yield


@pytest.fixture(scope="module")
def sampler(two_layers: None) -> Sampler:
    shapes = {"batch_size": 3, "prompt_length": 32, "response_length": 6}
    return Sampler(base_model("gemma3-tiny", seed=0), **shapes)


def full_forward(sampler: Sampler, tokens: list[int]) -> np.ndarray:
    """(T, V) log-probabilities of the next token from one pass without a cache; right padding to
    200 cannot be seen by earlier tokens."""
    ids = jnp.zeros((1, 200), jnp.int32).at[0, : len(tokens)].set(jnp.asarray(tokens))
    logits = forward(sampler.loaded.model, ids)[0, : len(tokens)]
    return np.asarray(jax.nn.log_softmax(logits))


@nnx.jit
def forward(model, ids):
    length = ids.shape[1]
    return model.unembed(model(ids, jnp.arange(length)[None], jnp.ones((1, length), jnp.int32))[0])


WINDOWED = {"window": 8, "num_layers": 4, "global_every": 2, "hidden_dim": 64}
SOFT_CAPPED = {"family": "gemma2", "attention_softcap": 1.0, "final_softcap": 30.0}


@pytest.mark.parametrize(
    ("changes", "behind"),
    [
        ({}, False),
        (WINDOWED, False),
        (WINDOWED | {"num_layers": 10}, False),
        (WINDOWED, True),
        (WINDOWED | SOFT_CAPPED, True),
    ],
    ids=["no longer than the window", "gemma 3", "its layers in a loop", "as on a TPU", "gemma 2"],
)
def test_greedy_tokens_and_logps_equal_a_full_forward_pass(sampler, changes, behind, monkeypatch):
    """Also where local layers read their window of a longer cache; a TPU's steps write their tokens
    behind the layers."""
    if changes:
        config = replace(sampler.loaded.config, **changes)
        model = initialise(config, 1)
        loaded = LoadedModel("small", config, model, sampler.loaded.tokenizer, sampler.loaded.mesh)
        monkeypatch.setattr(decoder, "platform", lambda: "tpu" if behind else "cpu")
        sampler = Sampler(loaded, batch_size=4, prompt_length=160, response_length=24)
    for prompt, completion in zip(PROMPTS, sampler.generate(PROMPTS), strict=True):
        context = prompt_tokens(sampler.loaded.tokenizer, prompt)
        logps = full_forward(sampler, context + completion.tokens)
        for step, token in enumerate(completion.tokens):
            row = logps[len(context) + step - 1]
            assert token == row.argmax()
            assert completion.logps[step] == pytest.approx(row[token], abs=1e-4)


def test_a_rows_sample_depends_on_its_index_and_the_seed_only(sampler):
    alone = sampler.generate(PROMPTS[:1], temperature=1.0, seed=5)[0]
    together = sampler.generate(PROMPTS, temperature=1.0, seed=5)
    assert together[0].tokens == alone.tokens
    assert sampler.generate(PROMPTS, temperature=1.0, seed=6)[0].tokens != alone.tokens
    same_prompt = sampler.generate([PROMPTS[0]] * 2, temperature=1.0, seed=5)
    assert same_prompt[0].tokens != same_prompt[1].tokens


def test_a_group_reads_its_prompt_once_and_samples_what_each_row_would(sampler):
    """Three groups of two in batches of four: two prompts are read at a time, the last batch is
    filled up."""
    prompts = [prompt for prompt in PROMPTS[:3] for _ in range(2)]
    shapes = {"batch_size": 4, "prompt_length": 32, "response_length": 6}
    together, alone = (Sampler(sampler.loaded, group_size=size, **shapes) for size in (2, 1))
    assert together.program(1).args[1].shape == (2, 32)
    both = (one.generate(prompts, temperature=1.0, seed=5) for one in (together, alone))
    for grouped, single in zip(*both, strict=True):
        assert grouped.tokens == single.tokens
        np.testing.assert_allclose(grouped.logps, single.logps, atol=1e-4)
    assert together.compiles == 1


def test_any_number_of_prompts_and_seeds_compiles_one_program(sampler):
    for count in (1, 3, 4):
        assert len(sampler.generate((PROMPTS * 2)[:count], temperature=0.5, seed=count)) == count
    assert sampler.compiles == 1
    seen: list[int] = []
    sampler.generate(PROMPTS, progress=seen.append)
    assert seen == [3, 4], "prompts, and no padding"
    with pytest.raises(InputError, match="prompt_length = 32"):
        sampler.generate(["word " * 100])


def test_sampling_follows_the_distribution(sampler):
    """The first token of 600 samples of one prompt: each of the likeliest tokens within 4 standard
    errors of its probability."""
    count, prompt = 600, PROMPTS[0]
    logps = full_forward(sampler, prompt_tokens(sampler.loaded.tokenizer, prompt))[-1]
    drawn = sampler.generate([prompt] * count, temperature=1.0, seed=1)
    first = np.array([one.tokens[0] for one in drawn])
    for token in np.argsort(logps)[-3:]:
        p = np.exp(logps[token])
        assert abs((first == token).mean() - p) < 4 * np.sqrt(p * (1 - p) / count)


def test_samples_are_of_the_likeliest_and_their_logps_of_the_whole_distribution(sampler) -> None:
    """Three tokens may come; each as often as its probability among them says, within 4 standard
    errors. What its log-probability says is the policy's."""
    loaded, count = sampler.loaded, 300
    few = Sampler(loaded, batch_size=150, prompt_length=32, response_length=2, top_k=3, top_p=0.999)
    logps = full_forward(sampler, prompt_tokens(loaded.tokenizer, PROMPTS[0]))[-1]
    best = np.argsort(logps)[-3:]
    drawn = few.generate([PROMPTS[0]] * count, temperature=1.0, seed=1)
    first = np.array([one.tokens[0] for one in drawn])
    assert set(first) == set(best)
    for token in best:
        p = np.exp(logps[token]) / np.exp(logps[best]).sum()
        assert abs((first == token).mean() - p) < 4 * np.sqrt(p * (1 - p) / count)
    for one in drawn[:20]:
        assert one.logps[0] == pytest.approx(logps[one.tokens[0]], abs=1e-4)
    greedy = few.generate(PROMPTS)
    assert [one.tokens for one in greedy] == [one.tokens[:2] for one in sampler.generate(PROMPTS)]
    assert few.compiles == 1


def test_a_model_with_adapters_samples_like_the_plain_one_before_training(sampler):
    loaded = base_model("gemma3-tiny", seed=0)
    add_lora(loaded.model, LoraConfig(rank=2, alpha=2.0), seed=0)
    adapted = Sampler(loaded, batch_size=3, prompt_length=32, response_length=6)
    ours, plain = ([c.tokens for c in one.generate(PROMPTS)] for one in (adapted, sampler))
    assert ours == plain
