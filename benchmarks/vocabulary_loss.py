"""The loss from hidden states on, and its gradient for them: Tunix's beside ours, on this CPU and as compiled for one v5e chip.

    python -m benchmarks.vocabulary_loss

Of each row's tokens some share has a target (a response after its prompt). CPU: `gemma3-tiny` in float32, 32 rows of 256 tokens, the best
of ten runs taken in turns. v5e: Gemma 3 1B in bfloat16, 2 rows of 1,024 tokens on a chip; memory is what the program needs beside its
arguments, time the larger of FLOPs and HBM bytes over the chip's peaks (`tasks.planning.hlo_cost` counts loops as often as they run).
Needs the [tpu] extra for the second part; no TPU.

CPU, 100% targets     Tunix   256.0 ms     ours   82.6 ms     3.1 x
CPU,  60% targets     Tunix   261.2 ms     ours   67.9 ms     3.8 x
CPU,  30% targets     Tunix   203.9 ms     ours   23.5 ms     8.7 x
v5e, 100% targets     Tunix 2.15 GB   12.6 ms     ours 0.54 GB   12.6 ms     1.0 x
v5e,  60% targets     Tunix 2.15 GB   12.6 ms     ours 0.54 GB    9.4 ms     1.3 x
v5e,  30% targets     Tunix 2.15 GB   12.6 ms     ours 0.54 GB    6.3 ms     2.0 x

Two cores shared with other work (the times vary by a third), Python 3.11, JAX 0.10.2, libtpu 0.0.42.1, google-tunix 0.1.7, 2026-11-21.
Tunix's memory grows with the batch and the length, ours does not. On v5e both are bound by FLOPs: ours needs fewer with fewer targets, in
steps of a chunk.
"""

import os
import time
from types import SimpleNamespace
from typing import Any

os.environ |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tunix.sft.peft_trainer import _default_loss_fn

from tasks.models.gemma import SIZES, GemmaConfig
from tasks.models.vocabulary import CHUNK, LOOP, token_logps
from tasks.planning.hlo_cost import cost_of

SHARES = (1.0, 0.6, 0.3)
V5E_FLOPS, V5E_BYTES = 197e12, 819e9
"""Peaks a second of one chip, bfloat16 and HBM: cloud.google.com/tpu/docs/v5e."""


def stock(config: GemmaConfig, embedding: jax.Array, hidden: jax.Array, tokens: jax.Array, mask: jax.Array) -> jax.Array:
    """Tunix's loss on the logits of its `Embedder.decode`."""
    return _default_loss_fn(lambda *_: (jnp.dot(hidden, embedding.T), None), tokens, mask, None, None)


def ours(config: GemmaConfig, embedding: jax.Array, hidden: jax.Array, tokens: jax.Array, mask: jax.Array) -> jax.Array:
    """`tasks.losses.cross_entropy` without the model."""
    model: Any = SimpleNamespace(config=config, embedding=SimpleNamespace(get_value=lambda: embedding))
    following = jnp.roll(mask, -1, axis=1).at[:, -1].set(False)
    return -jnp.sum(token_logps(model, hidden, jnp.roll(tokens, -1, axis=1), following)) / following.sum()


def step(loss: Any, config: GemmaConfig) -> Any:
    return jax.jit(jax.value_and_grad(lambda hidden, *rest: loss(config, rest[0], hidden, *rest[1:])))


def responses(rows: int, length: int, share: float) -> np.ndarray:
    """(rows, length) bool: the last `share` of each row."""
    return np.broadcast_to(np.arange(length) >= round((1 - share) * length), (rows, length))


def on_cpu(rows: int = 32, length: int = 256) -> None:
    """Print milliseconds, ours beside Tunix's, and check that both give the same."""
    config, random = SIZES["gemma3-tiny"], np.random.Generator(np.random.Philox(0))
    hidden = random.standard_normal((rows, length, config.embed_dim), np.float32)
    embedding = random.standard_normal((config.vocab_size, config.embed_dim), np.float32) / 11
    tokens = random.integers(0, config.vocab_size, (rows, length), np.int32)
    both = step(stock, config), step(ours, config)
    for share in SHARES:
        arguments = [jnp.asarray(array) for array in (hidden, embedding, tokens, responses(rows, length, share))]
        for theirs, own in zip(*(jax.tree.leaves(program(*arguments)) for program in both), strict=True):
            np.testing.assert_allclose(theirs, own, rtol=1e-3, atol=1e-6)
        best = [1e9, 1e9]
        for _ in range(10):
            for index, program in enumerate(both):
                began = time.perf_counter()
                jax.block_until_ready(program(*arguments))
                best[index] = min(best[index], 1e3 * (time.perf_counter() - began))
        print(f"CPU, {share:4.0%} targets     Tunix {best[0]:7.1f} ms     ours {best[1]:6.1f} ms     {best[0] / best[1]:.1f} x")


def on_v5e(rows: int = 2, length: int = 1024) -> None:
    """Print what the TPU compiler says of both programs."""
    config = SIZES["gemma3-1b-it"]
    topology = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    mesh = Mesh(np.array(topology.devices)[:1].reshape(1, 1), ("fsdp", "tp"))

    def shape(dtype: Any, *sides: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(sides, dtype, sharding=NamedSharding(mesh, PartitionSpec()))

    arguments = (
        shape(jnp.bfloat16, rows, length, config.embed_dim),
        shape(jnp.bfloat16, config.vocab_size, config.embed_dim),
        shape(jnp.int32, rows, length),
        shape(jnp.bool_, rows, length),
    )
    compiled = [step(loss, config).lower(*arguments).compile() for loss in (stock, ours)]
    memory = [program.memory_analysis().temp_size_in_bytes / 1e9 for program in compiled]
    for share in SHARES:
        trips = {LOOP: -(-int(responses(rows, length, share).sum()) // CHUNK)}
        costs = [cost_of(program.as_text(), trips) for program in compiled]
        times = [1e3 * max(cost.flops / V5E_FLOPS, cost.bytes / V5E_BYTES) for cost in costs]
        cells = [f"{used:.2f} GB {span:6.1f} ms" for used, span in zip(memory, times, strict=True)]
        print(f"v5e, {share:4.0%} targets     Tunix {cells[0]}     ours {cells[1]}     {times[0] / times[1]:.1f} x")


if __name__ == "__main__":
    on_cpu()
    on_v5e()
