"""Slots: the answers that one prompt at a time gives, in any mix of lengths; one program per shape;
a journal that may end anywhere."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from infra.store.store import open_store
from infra.store.workspace import Workspace
from tasks.contract.journal import Journal
from tasks.data.tokens import TooLong, prompt_tokens
from tasks.devices.hosts import make_mesh
from tasks.models import decoder
from tasks.models.attention import reads_windows
from tasks.models.loading import LoadedModel, base_model
from tasks.planning.programs import abstract_model
from tasks.sampling import slot_programs
from tasks.sampling.sampler import Sampler
from tasks.sampling.slot_programs import Device, SlotPrograms, halves
from tasks.sampling.slots import Request, SlotSampler

WORDS = [
    "red", "blue", "warm", "cold", "sort", "list", "add", "name", "first", "last", "count", "over",
    "under", "seven", "three", "nine",
]  # fmt: skip
PROMPTS = [
    " ".join(WORDS[(number * 5 + step) % len(WORDS)] for step in range(1 + number * 7 % 23)) + "?"
    for number in range(29)
]
REQUESTS = [Request(prompt, row) for row, prompt in enumerate(PROMPTS)]
SHAPE = {"prompt_length": 72, "response_length": 24}


@pytest.fixture(autouse=True)
def every_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shape is worth compiling, however few prompts need it."""
    monkeypatch.setattr(slot_programs, "WORTH", 0)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    """One layer, random, whose answers end after 1 to 24 tokens and do not repeat themselves: the
    terminator and `<eos>` have longer embeddings than other tokens, and the last norm turns some
    dimensions round, without which the tied embedding says the last token again."""
    small = replace(decoder.SIZES["gemma3-tiny"], num_layers=1, hidden_dim=64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(decoder.SIZES, "gemma3-tiny", small)
        loaded = base_model("gemma3-tiny", seed=0)
    embedding, norm = loaded.model.embedding.get_value(), loaded.model.final_norm.get_value()
    turned = -2.0 * jax.random.bernoulli(jax.random.key(2), 0.5, norm.shape)
    loaded.model.final_norm.set_value(turned)
    stops = jnp.asarray(loaded.tokenizer.stop_ids)
    ends = jax.random.normal(jax.random.key(1), (len(stops), *norm.shape))
    length = 1.6 * jnp.sqrt(jnp.mean(embedding[7] ** 2))
    loaded.model.embedding.set_value(embedding.at[stops].set(length * ends))
    return loaded


@pytest.fixture(scope="module")
def slots(loaded: LoadedModel) -> SlotSampler:
    return SlotSampler(loaded, batch_size=8, **SHAPE, sampled=True)


@pytest.fixture(scope="module")
def one_by_one(loaded: LoadedModel) -> Sampler:
    return Sampler(loaded, batch_size=29, **SHAPE)


def test_answers_are_those_of_the_plain_sampler_in_any_company(slots, one_by_one, meanwhile):
    """29 prompts of 11 to 60 tokens in 8 slots; their answers end after 1 to 24 tokens."""
    tokenizer = slots.loaded.tokenizer
    short = [one for one in REQUESTS if len(prompt_tokens(tokenizer, one.prompt)) <= 40]
    widths = set[int]()
    meanwhile(SlotPrograms, "read", lambda self, *args: widths.add(args[-1]))
    first = slots.generate(short)
    assert widths == {40}
    ours, theirs = slots.generate(REQUESTS), one_by_one.generate(PROMPTS)
    assert widths == set(halves(72)) == {40, 72}
    assert [one.tokens for one in first] == [ours[request.row].tokens for request in short]
    assert [one.tokens for one in ours] == [one.tokens for one in theirs]
    assert [one.terminated for one in ours] == [one.terminated for one in theirs]
    lengths = {len(one.tokens) for one in ours}
    assert len(lengths) > 10
    assert {one.terminated for one in ours} == {True, False}
    stops = set(slots.loaded.tokenizer.stop_ids)
    assert {one.tokens[-1] for one in ours if one.terminated} == stops
    assert not any(stops.intersection(one.tokens[:-1]) for one in ours)
    assert slots.excess == 0


def test_programs_that_are_compiled_twice_for_a_shape_are_noticed(loaded: LoadedModel) -> None:
    """Another precision is another program: of reading, admitting, decoding and making room."""
    slots = SlotSampler(loaded, batch_size=8, prompt_length=72, response_length=8)
    slots.generate(REQUESTS[:1])
    assert slots.excess == 0
    with jax.default_matmul_precision("highest"):
        slots.generate(REQUESTS[:1])
    assert slots.excess == 4


def test_a_sampled_answer_is_a_function_of_seed_and_row(slots, one_by_one):
    theirs = {
        seed: [one.tokens for one in one_by_one.generate(PROMPTS, temperature=0.9, seed=seed)]
        for seed in (3, 4)
    }
    mixed = [Request(prompt, row, seed) for seed in (4, 3) for row, prompt in enumerate(PROMPTS)]
    ours = [one.tokens for one in slots.generate(mixed, temperature=0.9)]
    assert ours == theirs[4] + theirs[3]
    assert theirs[4] != theirs[3]


DECODE = Device.decode


def counted(monkeypatch: pytest.MonkeyPatch, fail_at: int | None = None) -> list[int]:
    """The contexts of the chunks that are decoded from now on; the `fail_at`-th fails."""
    contexts: list[int] = []

    def decode(self: Device, context: int) -> np.ndarray:
        contexts.append(context)
        if len(contexts) == fail_at:
            raise KeyboardInterrupt
        return DECODE(self, context)

    monkeypatch.setattr(Device, "decode", decode)
    return contexts


def files(store: Path) -> dict[str, bytes]:
    paths = sorted(path for path in store.rglob("journal/answers/*") if path.is_file())
    return {path.name: path.read_bytes() for path in paths}


@pytest.mark.parametrize("layers", [4, 10])
def test_answers_are_the_same_where_local_layers_read_windows(layers, monkeypatch):
    """Of a cache that is shifted, and not a ring; of unrolled layers, and of a loop."""
    tiny = decoder.SIZES["gemma3-tiny"]
    shape = {"num_layers": layers, "window": 8, "global_every": 2, "hidden_dim": 64}
    monkeypatch.setitem(decoder.SIZES, "gemma3-tiny", replace(tiny, **shape))
    loaded = base_model("gemma3-tiny", seed=0)
    sizes = {"prompt_length": 150, "response_length": 20}
    slots, plain = (made(loaded, batch_size=8, **sizes) for made in (SlotSampler, Sampler))
    assert reads_windows(slots.cache_widths[-1], 8)
    assert not reads_windows(slots.cache_widths[0], 8)
    prompts = [" ".join([prompt] * (1 + row % 3)) for row, prompt in enumerate(PROMPTS[:12])]
    ours = slots.generate([Request(prompt, row) for row, prompt in enumerate(prompts)])
    assert [one.tokens for one in ours] == [one.tokens for one in plain.generate(prompts)]
    assert slots.excess == 0


def test_a_killed_call_goes_on_and_ends_with_the_same_bytes(slots, tmp_path, monkeypatch):
    """Killed in the second chunk, the last, and some between: what the journal has is not computed
    again, and every entry has the bytes it would have."""

    def journal(name: str) -> Journal:
        return Journal(Workspace(open_store(tmp_path / name), "key", "1"), "answers")

    whole = counted(monkeypatch)
    expected = slots.generate(REQUESTS, temperature=0.7, journal=journal("whole"))
    entries = files(tmp_path / "whole")
    assert len(entries) == 4
    saved = 0
    for chunk in sorted({*range(2, len(whole), 4), len(whole)}):
        name = f"killed-{chunk}"
        counted(monkeypatch, fail_at=chunk)
        with pytest.raises(KeyboardInterrupt):
            slots.generate(REQUESTS, temperature=0.7, journal=journal(name))
        resumed = counted(monkeypatch)
        done: list[int] = []
        given = {"journal": journal(name), "progress": done.append}
        again = slots.generate(REQUESTS, temperature=0.7, **given)
        assert [one.tokens for one in again] == [one.tokens for one in expected]
        assert files(tmp_path / name) == entries
        assert done == sorted(done)
        assert done[-1] == len(REQUESTS)
        saved += len(whole) - len(resumed)
    assert saved > 0
    untouched = counted(monkeypatch)
    slots.generate(REQUESTS, temperature=0.7, journal=journal("whole"))
    assert untouched == []


def test_a_damaged_entry_is_computed_again(slots: SlotSampler, tmp_path: Path) -> None:
    journal = Journal(Workspace(open_store(tmp_path), "key", "1"), "answers")
    expected = slots.generate(REQUESTS, journal=journal)
    entries = files(tmp_path)
    next(tmp_path.rglob("journal/answers/000001")).write_bytes(b"damaged")
    again = slots.generate(REQUESTS, journal=journal)
    assert [one.tokens for one in again] == [one.tokens for one in expected]
    assert files(tmp_path) == entries


def test_what_does_not_fit_and_a_temperature_without_random_numbers_are_refused(slots, loaded):
    with pytest.raises(TooLong):
        slots.generate([Request("word " * 100, 0)])
    with pytest.raises(ValueError, match="made for greedy answers"):
        SlotSampler(loaded, batch_size=8, **SHAPE).generate(REQUESTS, temperature=0.5)


def test_the_plan_counts_full_lengths() -> None:
    """100 greedy and 200 sampled answers in 16 slots, 2 prompts at a time; 24 tokens are the
    prompt's and three chunks of 8."""
    model = abstract_model("gemma3-tiny", decoder.SIZES["gemma3-tiny"], make_mesh({"devices": 1}))
    programs = SlotSampler(model, batch_size=16, **SHAPE).programs([100, 200])
    planned = {program.name: program for program in programs}
    calls = {name: program.calls for name, program in planned.items()}
    assert calls == {"prefill": 150, "admit": 150, "decode": (7 + 13) * 3}
    assert planned["prefill"].args[1].shape == (2, 72)
    assert [one.shape for one in planned["decode"].args[1]["k"]] == [(16, 4, 96, 32)] * 3


def test_there_are_few_widths_and_the_last_one_is_the_longest():
    for longest, widths in ((60, [32, 60]), (8, [8]), (1024, [32, 64, 128, 256, 512, 1024])):
        assert halves(longest) == widths


def test_shapes_that_spare_too_little_are_not_compiled(slots, one_by_one, monkeypatch):
    """48 columns for 96 spare 29 prompts, with 24 tokens each and 4 heads of 32 dimensions,
    48 x 29 x 24 x 2 x 128 products: 8.6 million. 40 tokens for 72 of prompts spare more."""
    lengths = [len(prompt_tokens(slots.loaded.tokenizer, one.prompt)) for one in REQUESTS]
    assert slots.worthwhile(lengths) == ([40, 72], [48, 96])
    monkeypatch.setattr(slot_programs, "WORTH", 1e7)
    assert slots.worthwhile(lengths) == ([40, 72], [96])
    assert slots.worthwhile([40] * 29) == ([40], [96])
    few = SlotSampler(slots.loaded, batch_size=8, **SHAPE)
    monkeypatch.setattr(slot_programs, "WORTH", 1e12)
    answers = few.generate(REQUESTS)
    assert [one.tokens for one in answers] == [one.tokens for one in one_by_one.generate(PROMPTS)]
    assert few.wanted == {
        ("prefill", 72), ("resize", 0, 96), ("admit", 96), ("decode", 96)
    }  # fmt: skip
    assert few.excess == 0
