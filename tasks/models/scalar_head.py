"""A Gemma with a scalar head: a score for each token, read from its hidden state by one vector. On
disk it is the class `Gemma3TextForSequenceClassification` of `transformers` with one label, whose
logit is the score of the last token."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from schemas.base import InputError
from tasks.models.decoder import Gemma
from tasks.models.hf_weights import read_head
from tasks.models.loading import LoadedModel, load_model
from tasks.models.sharding import placed


def add_head(
    loaded: LoadedModel, head: np.ndarray | None = None, *, beside_adapters: bool = False
) -> None:
    """Give the model the head `score` (D,), float32.

    Args:
        head: by default 0 everywhere, so that every trace is worth the same. For an abstract model
            it is a shape.
        beside_adapters: it is trained beside adapters instead of all weights.
    """
    width = loaded.config.embed_dim
    value: Any = np.zeros(width, np.float32) if head is None else head
    if isinstance(loaded.model.embedding.get_value(), jax.ShapeDtypeStruct):
        value = jax.ShapeDtypeStruct((width,), jnp.float32)
    whole = placed(value, NamedSharding(loaded.mesh, PartitionSpec()))
    setattr(loaded.model, "score", (nnx.LoRAParam if beside_adapters else nnx.Param)(whole))  # noqa: B010  not every Gemma has one


def load_scoring_model(directory: Path, mesh: Mesh) -> LoadedModel:
    """Load a model with a head that `tasks.models.loading.save_model` wrote.

    Raises:
        InputError: as `load_model`, or there is no head.
    """
    head = read_head(directory)
    if head is None:
        raise InputError(
            f"{directory} has no tensor score.weight: it is no reward model. Connect a stage of"
            " kind reward_model."
        )
    loaded = load_model(directory, mesh)
    add_head(loaded, head)
    return loaded


def token_scores(
    model: Gemma, tokens: jax.Array, positions: jax.Array, segments: jax.Array, length: int
) -> jax.Array:
    """Run the model on (N, T) rows: (N, length) float32 scores of their last tokens, each of which
    has seen what comes before it."""
    hidden, _ = model(tokens, positions, segments)
    last, head = hidden[:, -length:].astype(jnp.float32), vars(model)["score"].get_value()
    return jnp.einsum("nrd,d->nr", last, head, precision=jax.lax.Precision.HIGHEST)
