"""Log-probabilities of responses, each after its prompt, in packed rows
(`tasks.data.packing.PackedResponses`)."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from tasks.data.packing import Group, Shape, pack_responses
from tasks.devices.hosts import fetch, spread
from tasks.models.decoder import GemmaConfig, weight_shapes
from tasks.models.vocabulary import token_logps


def work_of_token(config: GemmaConfig) -> float:
    """A token's FLOPs in a layer's weight products, divided by those of its attention to one token
    (`tasks.data.packing.tightest`): weights / (2 x heads x head width)."""
    shapes = weight_shapes(config)
    sizes = (math.prod(shape[1:]) for name, shape in shapes.items() if name.startswith("layers."))
    return sum(sizes) / (2 * config.num_heads * config.head_dim)


def row_logps(
    model: Any,
    tokens: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    predicts: jax.Array,
    **options: Any,
) -> Any:
    """(N, L) log-probabilities of the next tokens where they are predicted
    (`tasks.models.vocabulary.token_logps` with these options); 0 elsewhere."""
    hidden, _ = model(tokens, positions, segments)
    # keep L, a size that the compiler need not pad
    return token_logps(model, hidden, jnp.roll(tokens, -1, axis=1), predicts, **options)


def token_logps_fn(model: Any) -> Any:
    """The compiled function (state, rows, temperature) -> (N, L) log-probabilities, as `row_logps`;
    `rows` are its four arrays.

    Weights and temperature are arguments, so one program serves the reference, the policy of the
    last rollout and the current policy.
    """
    graph, _ = nnx.split(model)

    def token_logps(state: nnx.State, rows: Any, temperature: jax.Array) -> Any:
        return row_logps(nnx.merge(graph, state), *rows, temperature=temperature)

    return jax.jit(token_logps)


def texts_logps(
    program: Any,
    state: Any,
    groups: Sequence[Group],
    shape: Shape,
    response_length: int,
    *,
    pad_id: int,
    mesh: Mesh,
    temperature: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """(S, R) float32 log-probabilities of the S responses, of at most `response_length` = R tokens;
    0 past their ends.

    Args:
        program: from `token_logps_fn`.
        shape: of the rows that it takes at a time.
        progress: called with the number of finished rows, and of all.
    """
    packed = pack_responses(groups, shape, response_length, pad_id, blocks=True)
    filled = int((packed.segments[:, 0] > 0).sum())
    found = np.zeros(packed.tokens.size + 1, np.float32)  # places past an end read the last
    for start in range(0, filled, shape.rows):
        rows = tuple(array[start : start + shape.rows] for array in packed[:4])
        with jax.set_mesh(mesh):
            logps = program(state, spread(rows, mesh), np.float32(temperature))
        begin = start * shape.length
        found[begin : begin + shape.rows * shape.length] = fetch(logps).reshape(-1)
        if progress:
            progress(min(start + shape.rows, filled), filled)
    return found[packed.places]
