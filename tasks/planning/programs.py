"""The programs of a stage: the very functions it runs, with the shapes, dtypes and placement of
their arguments.

A stage file that computes on devices has `programs(config, model, upstream) -> list[Program]`, and
its `run` calls the same functions on real arrays, so that `lyceum plan` compiles for a TPU what the
stage runs there (tests/tasks/stages/test_laws.py compares the lowered texts).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tasks.devices.hosts import BATCH, make_mesh
from tasks.models.attention import WINDOWS
from tasks.models.decoder import GemmaConfig
from tasks.models.loading import LoadedModel
from tasks.models.sharding import place, weight_specs
from tasks.models.vocabulary import CHUNK, LOOP
from tasks.models.weights import abstract


@dataclass(frozen=True)
class Program:
    """One compiled function of a stage.

    Attributes:
        name: `train_step`, `validation_loss`, `generate`, `token_logps`.
        function: what `jax.jit` returned; compile it with `function.lower(*args)` inside
            `jax.set_mesh(mesh)`.
        args: pytrees of jax.ShapeDtypeStruct with their NamedSharding.
        calls: how often the stage runs it.
        resident: pytree of jax.ShapeDtypeStruct of further arrays on the devices meanwhile.
        trips: iterations of the loops whose number depends on data, and how often conditionals take
            their second branch, as far as the config tells, by the scope: see
            `tasks.planning.hlo_cost.cost_of`.
        beside: it computes on its own devices beside the other programs, so that a stage takes as
            long as the longer of both.
    """

    name: str
    function: Any
    args: tuple[Any, ...]
    calls: float
    resident: Any = None
    trips: Mapping[str, float] = field(default_factory=dict)
    beside: bool = False


@dataclass(frozen=True)
class SpecialTokens:
    """The token ids that programs contain, without a tokenizer: those of the published checkpoints
    and of `gemma3-tiny`."""

    pad_id: int
    stop_ids: tuple[int, ...]


_SPECIAL_TOKENS = {
    "gemma2": SpecialTokens(0, (1, 107)),
    "gemma3": SpecialTokens(0, (1, 106)),
    "gemma3-tiny": SpecialTokens(0, (1, 5)),
}


def abstract_model(name: str, config: GemmaConfig, mesh: Mesh) -> LoadedModel:
    """A model of shapes, placed on `mesh` like a loaded one."""
    model = abstract(config)
    place(model, mesh, weight_specs(config, mesh, trained=False))
    tokenizer: Any = _SPECIAL_TOKENS.get(name) or _SPECIAL_TOKENS[config.family]
    return LoadedModel(name, config, model, tokenizer, mesh)


def shapes(tree: Any) -> Any:
    """A tree of jax.ShapeDtypeStruct with the shapes and placement of arrays, or of shapes."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None)
        ),
        tree,
    )


def rows(tree: Any, mesh: Mesh) -> Any:
    """The shapes of a batch's arrays as `tasks.devices.hosts.spread` places them: each device has
    its part of the rows."""
    sharding = NamedSharding(mesh, PartitionSpec(BATCH))
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(
            leaf.shape, jax.dtypes.canonicalize_dtype(leaf.dtype), sharding=sharding
        ),
        tree,
    )


def on_devices(model: LoadedModel, batch_sizes: Mapping[str, int]) -> LoadedModel:
    """A model of shapes on the devices that a stage with these batches uses, as `make_mesh`
    chooses."""
    return abstract_model(
        model.name, model.config, make_mesh(batch_sizes, list(model.mesh.devices.flat))
    )


def vocabulary_trips(tokens: int, mesh: Mesh) -> dict[str, float]:
    """Iterations of the loop over the vocabulary's chunks for a batch with so many target
    tokens."""
    return {LOOP: -(-tokens // mesh.shape[BATCH] // CHUNK)}


def global_share(config: GemmaConfig) -> dict[str, float]:
    """The part of a decoded token's layers that read all of the cache."""
    return {WINDOWS: float(config.is_global().mean())}


def compilations(function: Any) -> int:
    """The number of programs that a function of `jax.jit` has compiled: one for each shape, dtype
    and placement of its arguments."""
    count: int = function._cache_size()  # JAX has no public name for it
    return count


def scalar(dtype: Any) -> jax.ShapeDtypeStruct:
    """The shape of a number that the host passes."""
    return jax.ShapeDtypeStruct((), np.dtype(dtype))
