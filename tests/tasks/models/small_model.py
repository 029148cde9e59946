"""A whole model of two layers, as a directory in Hugging Face's format, and a loaded one's
weights."""

from dataclasses import replace
from pathlib import Path

import numpy as np
from flax import nnx

from tasks.models.decoder import SIZES, weight_shapes
from tasks.models.hf_directory import TOKENIZER
from tasks.models.hf_weights import write_model
from tasks.models.loading import LoadedModel
from tasks.models.model_source import TINY
from tasks.models.tiny import tiny_tokenizer

SMALL_MODEL = replace(
    SIZES[TINY], num_layers=2, embed_dim=16, hidden_dim=16, num_heads=2, head_dim=8
)


def write_small_model(directory: Path) -> Path:
    """Write it to a new directory; returns that."""
    directory.mkdir()
    tokenizer, shapes = tiny_tokenizer(), weight_shapes(SMALL_MODEL)
    weights = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()}
    write_model(directory, SMALL_MODEL, "x", tokenizer, weights.__getitem__)
    tokenizer.save(directory / TOKENIZER)
    return directory


def weights_of(loaded: LoadedModel) -> dict[str, np.ndarray]:
    """By the names of `weight_shapes`."""
    found = nnx.to_flat_state(nnx.state(loaded.model, nnx.Param))
    return {".".join(map(str, path)): np.asarray(node.get_value()) for path, node in found}
