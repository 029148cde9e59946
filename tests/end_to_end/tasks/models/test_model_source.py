"""Models from Kaggle, by its own client."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from schemas.base import InputError
from tasks.models import decoder
from tasks.models.loading import base_model
from tasks.models.model_source import TINY
from tests.fakes.fake_hub import FakeHub
from tests.tasks.models.test_model_source import assert_same, cache, hub, published  # noqa: F401
from tests.tasks.models.test_orbax import library_params


def test_kaggle_in_both_formats(hub, published, tmp_path, monkeypatch):
    hub.repositories["google/gemma-3/transformers/small"] = published
    assert_same(base_model("kaggle://google/gemma-3/transformers/small/3", seed=0), published)
    hub.requests.clear()
    base_model("kaggle://google/gemma-3/transformers/small/3", seed=0)
    assert hub.requests == []
    config = replace(
        decoder.SIZES[TINY], num_layers=2, embed_dim=24, hidden_dim=40, num_heads=4, head_dim=8
    )
    monkeypatch.setitem(decoder.SIZES, "gemma3-small-it", config)
    params = library_params(config)
    flax = tmp_path / "flax"
    ocp.PyTreeCheckpointer().save(flax / "small", params)
    shutil.copy(published / "tokenizer.model", flax)
    hub.repositories["google/gemma-3/flax/small"] = flax
    loaded = base_model("kaggle://google/gemma-3/flax/small", seed=0)
    np.testing.assert_array_equal(
        np.asarray(loaded.model.final_norm.get_value()), params["transformer/final_norm"]["scale"]
    )


def test_kaggle_refusals(hub: FakeHub, published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.repositories["google/gemma-3/flax/small"] = published
    hub.gated.add("google/gemma-3/flax/small")
    with pytest.raises(
        InputError,
        match=(
            r"Accept its licence at https://www.kaggle.com/models/google/gemma-3, then set"
            r" KAGGLE_API_TOKEN"
        ),
    ):
        base_model("kaggle://google/gemma-3/flax/small/1", seed=0)
    with pytest.raises(InputError, match="there is no such model, framework, variation or version"):
        base_model("kaggle://google/gemma-3/flax/none/1", seed=0)
    with pytest.raises(InputError, match="jaxx"):
        base_model("kaggle://google/gemma-3/jaxx/small/1", seed=0)
    monkeypatch.setenv("KAGGLE_API_TOKEN", hub.token)
    assert_same(base_model("kaggle://google/gemma-3/flax/small/1", seed=0), published)
