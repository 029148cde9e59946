"""Tunix's own API loads an exported Orbax checkpoint, and has the model that was trained."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from tasks.exporting.orbax_checkpoint import CHECKPOINT, export_orbax
from tasks.models.loading import LoadedModel
from tests.flows.runs import synthetic_run
from tests.tasks.exporting.test_orbax_checkpoint import CONFIG, saved


def logits(loaded: LoadedModel, tokens: np.ndarray) -> np.ndarray:
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    hidden, _ = loaded.model(tokens, positions, np.ones_like(tokens))
    return np.asarray(loaded.model.unembed(hidden))


def test_tunix_loads_the_same_model(tmp_path: Path) -> None:
    from tunix.models.gemma3 import model as tunix_model
    from tunix.models.gemma3 import params

    ours, out = saved(tmp_path / "stage", CONFIG), tmp_path / "out"
    out.mkdir()
    export_orbax(tmp_path / "stage", out, print)
    sizes = {
        name: getattr(CONFIG, name)
        for name in ("num_layers", "embed_dim", "hidden_dim", "num_heads", "num_kv_heads")
    }
    theirs = params.create_model_from_checkpoint(
        str((out / CHECKPOINT).resolve()),
        tunix_model.ModelConfig(
            num_embed=CONFIG.vocab_size,
            head_dim=CONFIG.head_dim,
            sliding_window_size=CONFIG.window,
            local_base_frequency=10_000,
            global_base_frequency=1_000_000,
            param_dtype=jnp.float32,
            **sizes,
        ),
        dtype=jnp.float32,
    )
    tokens = np.random.default_rng(0).integers(5, CONFIG.vocab_size, (2, 12), np.int32)
    positions = np.broadcast_to(np.arange(12, dtype=np.int32), tokens.shape)
    mask = np.broadcast_to(np.tril(np.ones((12, 12), bool)), (2, 12, 12))
    found, _ = theirs(jnp.asarray(tokens), jnp.asarray(positions), None, jnp.asarray(mask))
    wanted = logits(ours, tokens)
    np.testing.assert_allclose(np.asarray(found), wanted, atol=1e-4)
    assert np.abs(wanted).max() > 0.1
    spoken = params.create_tokenizer(str(out / "tokenizer.model"))
    assert spoken.EncodeAsIds("a b") == ours.tokenizer.encode("a b")


def test_a_run_is_exported_by_the_command(tmp_path, monkeypatch, lyceum):
    saved(tmp_path / "model", CONFIG)
    store, _ = synthetic_run.write_run(tmp_path / "store")
    monkeypatch.setattr(type(store), "local_dir", lambda *_: tmp_path / "model")
    to = tmp_path / "to"
    command = ["export", "demo-1", "--to", to, "--store", store.uri, "--json", "--orbax"]
    assert "give one of them" in lyceum(*command, "--adapters", code=2).err
    told = lyceum(*command).json
    assert (told["stage"], told["directory"]) == ("grpo", str(to))
    assert told["files"]["tokenizer.model"] == (to / "tokenizer.model").stat().st_size
    assert any(name.startswith("checkpoint/") for name in told["files"])
