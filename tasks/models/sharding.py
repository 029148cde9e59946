"""Places the weights of a model on the mesh: whole on every device while they are small, else in
parts.

A model that fits beside what a step needs is copied to every device, which moves a third fewer
bytes per step and per decoded token than gathering it (measured with the TPU compiler, Gemma 3 1B).
Larger ones, and those that are trained with their optimizer's state, are spread over the batch axis
and gathered layer by layer (ZeRO, 1910.02054). Heads, feed-forward width and vocabulary are spread
over "tp" always.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from infra.context import context
from tasks.devices.hosts import BATCH, TENSOR, put
from tasks.models.decoder import GemmaConfig, weight_shapes
from tasks.models.decoder_layer import PROJECTIONS

TRAINED_BYTES = 16
"""Bytes of a trained weight: itself, its gradient and Adam's two moments, each float32."""


def weight_specs(config: GemmaConfig, mesh: Mesh, *, trained: bool) -> dict[str, PartitionSpec]:
    """Name -> the partition of a weight over the mesh. Adapters (`layers.q_proj_lora_a`) follow
    their matrix.

    `Settings.whole_weights_gib` decides what is small. Its default leaves most of the 16 GiB of a
    v5e chip or a v3 core to the rest.

    Args:
        trained: all weights are trained, not adapters only.
    """
    shapes = weight_shapes(config)
    each = TRAINED_BYTES if trained else jnp.dtype(config.dtype).itemsize
    size = each * sum(int(np.prod(shape)) for shape in shapes.values())
    spread = size / mesh.shape[TENSOR] > context().settings.whole_weights_gib * 2**30
    # axis of a weight -> axis of the mesh that it is spread over, and its length; others are whole
    axes = {
        "f": (TENSOR, config.hidden_dim),
        "n": (TENSOR, config.num_heads),
        "k": (TENSOR, config.num_kv_heads),
        "v": (TENSOR, config.vocab_size),
        **({"d": (BATCH, config.embed_dim)} if spread else {}),
    }
    parted = {
        letter: axis
        for letter, (axis, length) in axes.items()
        if mesh.shape[axis] > 1 and length % mesh.shape[axis] == 0
    }

    def spec(letters: str) -> PartitionSpec:
        found = [parted.get(letter) for letter in letters]
        while found and found[-1] is None:  # as JAX writes the sharding of what a program returns
            found.pop()
        return PartitionSpec(*found)

    both = mesh.shape[BATCH] * mesh.shape[TENSOR]
    # over the vocabulary: gathering the other axis, and its gradient, makes the compiler copy both
    # into another layout
    whole_rows = spread and mesh.shape[BATCH] > 1 and config.vocab_size % both == 0
    specs = {"embedding": PartitionSpec((TENSOR, BATCH)) if whole_rows else spec("vd")}
    for name, (inside, outside) in PROJECTIONS.items():
        specs[f"layers.{name}"] = spec(f"L{inside}{outside}")
        specs[f"layers.{name}_lora_a"] = spec(f"L{inside}r")
        specs[f"layers.{name}_lora_b"] = spec(f"Lr{outside}")
    return specs | {name: PartitionSpec() for name in shapes if name not in specs}  # norms


def place(root: nnx.Module, mesh: Mesh, specs: dict[str, PartitionSpec]) -> None:
    """Put the variables of a model or of its optimizer where they belong, one by one, each freeing
    what it replaces.

    An optimizer keeps arrays of a weight's shape under that weight's name; variables without such a
    name lie whole on every device. A jax.ShapeDtypeStruct, a shape without a value, gets the
    sharding that its value would have.
    """
    variables = list(variables_of(root))
    abstract = any(isinstance(node.get_value(), jax.ShapeDtypeStruct) for _, node in variables)
    for path, node in variables:
        value = node.get_value()
        # a value among shapes, such as an optimizer's count of steps, is a shape too: devices to
        # compile for hold none
        if abstract:
            value = jax.ShapeDtypeStruct(value.shape, value.dtype)
        ends = (".".join(path[start:]) for start in range(len(path)))
        spec = next((specs[end] for end in ends if end in specs), PartitionSpec())
        if len(spec) > value.ndim:
            spec = PartitionSpec()
        node.set_value(placed(value, NamedSharding(mesh, spec)))


def placed(value: Any, sharding: NamedSharding) -> Any:
    """An array, or the shape of one, on the devices of `sharding`."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)
    return put(value, sharding)


def variables_of(root: nnx.Module) -> Iterator[tuple[list[str], "nnx.Variable[Any]"]]:
    """The path and variable of every array, or shape, of a model or of its optimizer, in which
    optax leaves place-holders of nothing, too."""
    for path, node in nnx.iter_graph(root):
        if isinstance(node, nnx.Variable) and isinstance(
            node.get_value(), (jax.Array, jax.ShapeDtypeStruct)
        ):
            yield [str(part) for part in path], node
