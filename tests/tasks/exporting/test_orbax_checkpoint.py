"""An exported Orbax checkpoint: what reads it back, and what is refused. That Tunix's own API loads
it is in tests/end_to_end."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from schemas.base import InputError, StageFailed
from tasks.devices.hosts import make_mesh
from tasks.exporting import orbax_checkpoint
from tasks.exporting.orbax_checkpoint import export_orbax
from tasks.models import decoder
from tasks.models.decoder import GemmaConfig
from tasks.models.loading import LoadedModel, base_model, save_model
from tasks.models.tiny import tiny_tokenizer
from tasks.models.weights import initialise

CONFIG = replace(
    decoder.SIZES["gemma3-tiny"],
    num_layers=7,  # the sixth sees all, in both
    embed_dim=24,
    hidden_dim=40,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    query_scale=8**-0.5,
    window=4,
)


def saved(place: Path, config: GemmaConfig) -> LoadedModel:
    place.mkdir()
    model = initialise(config, 3)
    loaded = LoadedModel("gemma3-tiny", config, model, tiny_tokenizer(), make_mesh())
    save_model(loaded, place)
    return loaded


def test_it_is_read_as_the_same_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, out = saved(tmp_path / "stage", CONFIG), tmp_path / "out"
    out.mkdir()
    said: list[str] = []
    export_orbax(tmp_path / "stage", out, said.append)
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint", "tokenizer.model"]
    assert len(said) == 2
    monkeypatch.setitem(decoder.SIZES, "gemma3-small-it", CONFIG)
    monkeypatch.setenv("LYCEUM_CACHE", str(tmp_path / "cache"))
    read = base_model(str(out), 0)
    state = {name: vars(model.layers) for name, model in (("a", ours.model), ("b", read.model))}
    assert read.config == CONFIG
    for name, weight in state["a"].items():
        if hasattr(weight, "get_value"):
            np.testing.assert_array_equal(state["b"][name].get_value(), weight.get_value())


def test_what_tunix_does_not_load_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "stage", replace(CONFIG, family="gemma2", attention_softcap=50.0))
    (tmp_path / "out").mkdir()
    with pytest.raises(InputError, match=r"this model is a gemma2. Leave --orbax out"):
        export_orbax(tmp_path / "stage", tmp_path / "out", print)


def test_what_is_not_what_was_written_is_an_error(tmp_path, monkeypatch):
    saved(tmp_path / "stage", CONFIG)
    (tmp_path / "out").mkdir()
    real = orbax_checkpoint.Arrays.read

    def damaged(self: orbax_checkpoint.Arrays, name: str) -> np.ndarray:
        return real(self, name) + (name == "layer_2/mlp/linear/w")

    monkeypatch.setattr(orbax_checkpoint.Arrays, "read", damaged)
    with pytest.raises(StageFailed, match="layer_2/mlp/linear/w, one of 1"):
        export_orbax(tmp_path / "stage", tmp_path / "out", print)
