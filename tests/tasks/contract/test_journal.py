"""The journal: what was paid for comes back exactly or not at all, and a sampler samples only what
is missing."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from jax.sharding import Mesh

from infra.store.store import open_store
from infra.store.workspace import Workspace
from schemas.base import InputError
from tasks.contract.journal import Journal
from tasks.models import decoder
from tasks.models.loading import base_model
from tasks.sampling import sampler
from tasks.sampling.sampler import Sampler


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(Workspace(open_store(tmp_path / "store"), "key", "1"), "samples")


def the_file(tmp_path: Path, entry: str) -> Path:
    return tmp_path / "store" / "work" / "key" / "kept" / "journal" / "samples" / entry


def test_rows_come_back_to_the_last_bit(journal: Journal):
    generator = np.random.Generator(np.random.Philox(0))
    # every kind of float32, NaN and infinities among them
    values = generator.integers(0, 2**32, 10_000, np.uint32).view(np.float32)
    rows = [
        {"text": "a\nb\r\u2028 \x00 π", "logps": values.tolist(), "tokens": [1, 2], "none": None}
    ]
    journal.put("0", rows)
    (back,) = journal.get("0") or []
    assert back["text"] == rows[0]["text"]
    np.testing.assert_array_equal(np.array(back["logps"], np.float32), values)


def test_entries_are_apart_and_a_later_put_replaces(journal: Journal):
    journal.put("a", [{"n": 1}])
    journal.put("b", [])
    journal.put("a", [{"n": 2}])
    assert (journal.get("a"), journal.get("b"), journal.get("c")) == ([{"n": 2}], [], None)


def test_a_damaged_or_truncated_entry_is_none(journal, tmp_path, caplog):
    journal.put("a", [{"n": 1}])
    file = the_file(tmp_path, "a")
    whole = file.read_bytes()
    damages = [whole[:length] for length in (0, 10, 65, 70)]
    for position in (0, 63, 64, 65, len(whole) - 1):
        flipped = bytes([whole[position] ^ 1])
        damages.append(whole[:position] + flipped + whole[position + 1 :])
    for damaged in damages:
        caplog.clear()
        file.write_bytes(damaged)
        assert journal.get("a") is None
        assert "journal entry samples/a is damaged and will be computed again" in caplog.text


def test_names_that_would_leave_the_journal_are_refused(journal: Journal):
    with pytest.raises(InputError, match="is not allowed in a store"):
        journal.put("../a", [])


PROMPTS = [f"Add {number} and 2." for number in range(7)]


@pytest.fixture
def make_sampler(monkeypatch: pytest.MonkeyPatch):
    small = replace(decoder.SIZES["gemma3-tiny"], num_layers=1, hidden_dim=128)
    monkeypatch.setitem(decoder.SIZES, "gemma3-tiny", small)
    shapes = {"batch_size": 3, "prompt_length": 24, "response_length": 5}
    return lambda: Sampler(base_model("gemma3-tiny", seed=0), **shapes)


def test_batches_in_the_journal_are_not_sampled_again(make_sampler, journal, tmp_path, monkeypatch):
    """Seven prompts in batches of 3, 3 and 1. All are in the journal, then one is damaged."""
    first = make_sampler()
    sampled = first.generate(PROMPTS, temperature=1.0, seed=5, journal=journal)
    plain = first.generate(PROMPTS, temperature=1.0, seed=5)

    second, calls, spread = make_sampler(), [], sampler.spread

    def watched(batch: tuple[np.ndarray, np.ndarray], mesh: Mesh):
        calls.append(batch[1].tolist())  # the rows that are sampled
        return spread(batch, mesh)

    monkeypatch.setattr(sampler, "spread", watched)
    done: list[int] = []
    again = second.generate(PROMPTS, temperature=1.0, seed=5, journal=journal, progress=done.append)
    assert calls == []
    assert (first.compiles, second.compiles) == (1, 0)
    assert done == [3, 6, 7]

    the_file(tmp_path, "00000003").write_bytes(b"damaged")
    repaired = second.generate(PROMPTS, temperature=1.0, seed=5, journal=journal)
    assert calls == [[3, 4, 5]]
    assert second.compiles == 1
    for completions in (sampled, again, repaired):
        for ours, theirs in zip(completions, plain, strict=True):
            for name in ("tokens", "text", "terminated"):
                assert getattr(ours, name) == getattr(theirs, name)
            assert ours.logps.dtype == theirs.logps.dtype == np.float32
            assert ours.logps.tobytes() == theirs.logps.tobytes()
