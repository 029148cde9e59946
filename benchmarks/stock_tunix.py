"""Stock Tunix's LoRA SFT step for Gemma 3, as `tasks.plan` can compile it for a TPU that is not here: the peer of the tables in README.md.

Tunix 0.1.7's own modules, qwix adapters, default loss (one-hot and log-softmax of all logits), optimizer and train step, sharded as its
annotations say. One thing is replaced: its sharding constraints, which do nothing where no TPU is, by real ones; without them the compiler
chooses worse layouts, and the comparison would flatter us.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import qwix
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tunix.models.gemma3 import model as tunix_gemma3
from tunix.rl import common
from tunix.sft import peft_trainer
from tunix.utils import sharding_utils

PROJECTIONS = ".*(q_einsum|kv_einsum|qkv_einsum|attn_vec_einsum|gate_proj|up_proj|down_proj)"


def program(mesh: Mesh, *, rank: int, batch: int, length: int, remat: bool, layers: int | None = None) -> tuple[Any, tuple[Any, ...]]:
    """The jitted step and its abstract arguments: for `tasks.plan.analyse`.

    Args:
        mesh: with axes "fsdp" and "tp".
        rank: of the adapters.
        batch: rows of the whole mesh.
        length: tokens of a row.
        remat: Tunix's RematConfig.DECODER instead of NONE.
        layers: fewer than the model has, to try things out.
    """
    sharding_utils.shard = lambda x, spec: jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*spec[: x.ndim])))
    config = tunix_gemma3.ModelConfig.gemma3_1b_it()
    config.remat_config = tunix_gemma3.RematConfig.DECODER if remat else tunix_gemma3.RematConfig.NONE
    config.num_layers = layers or config.num_layers

    def make() -> nnx.Module:
        model = tunix_gemma3.Gemma3(config, rngs=nnx.Rngs(0))
        provider = qwix.LoraProvider(module_path=PROJECTIONS, rank=rank, alpha=2.0 * rank)
        adapted: nnx.Module = qwix.apply_lora_to_model(model, provider, rngs=nnx.Rngs(0), **model.get_model_input())
        return adapted

    with mesh:
        model = nnx.eval_shape(make)
        optimizer = nnx.eval_shape(lambda: nnx.Optimizer(make(), optax.adamw(1e-4), wrt=nnx.LoRAParam))
    graph, state = nnx.split((model, optimizer))

    def train_step(state: nnx.State, tokens: jax.Array, mask: jax.Array) -> Any:
        model, optimizer = nnx.merge(graph, state)
        real = tokens != 0

        def loss_of(model: Any, tokens: jax.Array, mask: jax.Array) -> Any:
            positions, attention = common.build_positions_from_mask(real), common.make_causal_attn_mask(real)
            return peft_trainer._default_loss_fn(model, tokens, mask, positions, attention)

        loss, gradients = nnx.value_and_grad(loss_of, argnums=nnx.DiffState(0, nnx.LoRAParam))(model, tokens, mask)
        optimizer.update(model, gradients)
        return loss, nnx.state(optimizer), nnx.state(model, nnx.LoRAParam)

    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    tokens, mask = (jax.ShapeDtypeStruct((batch, length), kind, sharding=rows) for kind in (jnp.int32, jnp.bool_))
    return jax.jit(train_step), (_placed(state, mesh), tokens, mask)


def _placed(state: nnx.State, mesh: Mesh) -> nnx.State:
    """The state's shapes, sharded as Tunix's annotations say; what has none lies whole on every device."""

    def place(leaf: Any, spec: Any) -> jax.ShapeDtypeStruct:
        found = tuple(spec) if isinstance(spec, PartitionSpec) else ()
        axes = [axis if axis and leaf.shape[i] % mesh.shape[axis] == 0 else None for i, axis in enumerate(found[: len(leaf.shape)])]
        return jax.ShapeDtypeStruct(leaf.shape, np.dtype(leaf.dtype), sharding=NamedSharding(mesh, PartitionSpec(*axes)))

    specs = nnx.get_partition_spec(state)
    leaves, tree = jax.tree.flatten(state)
    flat_specs = jax.tree.leaves(specs, is_leaf=lambda x: isinstance(x, PartitionSpec) or x is None)
    flat = [spec if isinstance(spec, PartitionSpec) else PartitionSpec() for spec in flat_specs]
    assert len(flat) == len(leaves), (len(flat), len(leaves))
    return jax.tree.unflatten(tree, [place(leaf, spec) for leaf, spec in zip(leaves, flat, strict=True)])
