"""Log-probabilities of tokens over a vocabulary of hundreds of thousands, for every loss and
without a (B, T, V) array.

A token's log-probability depends on its hidden state h (D,) alone, so d log p / d h is one vector
of D numbers. The forward pass computes it while the token's logits exist, and keeps nothing else:
whatever scalar a loss makes of the log-probabilities, its gradient is that vector times a number,
so no logits are computed twice. (If the embedding itself is trained, its gradient computes them
again.)

Each device takes `CHUNK` of its own tokens at a time, those with a target first, and stops after
the last of them: masked tokens cost nothing. Liger's fused loss (2410.10989) forms gradients in the
forward pass, too, but for cross-entropy alone.

The same works for any number that a token's logits give (`per_token`), such as their divergence
from a teacher's (`tasks.losses.distillation`).
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from tasks.devices.hosts import BATCH, batch_parts
from tasks.models.decoder import GemmaConfig, unembed

CHUNK = 512
"""Tokens whose float32 logits exist at one time on one device: 0.54 GB at Gemma 3's 262,144 words.
XLA fuses the rest of a chunk (softmax, gradient, rounding) into its two products, so it takes no
other memory."""

LOOP = "vocabulary_chunks"
"""The `jax.named_scope` of the loops over chunks; they run ceil(supervised tokens of the device /
CHUNK) times."""

ROWS, WHOLE = PartitionSpec(BATCH), PartitionSpec()

Arrays = tuple[jax.Array, ...]
OfChunk = Callable[..., tuple[jax.Array, Any]]


def token_logps(
    model: Any,
    hidden: jax.Array,
    targets: jax.Array,
    mask: jax.Array,
    *,
    temperature: float | jax.Array = 1.0,
    entropy: bool = False,
) -> Any:
    """Log-probability of each target token.

    Differentiable in `hidden` and in the model's embedding; what is not differentiated is not
    computed.

    Args:
        model: a Gemma: has `config` and `embedding`.
        hidden: (B, T, D) input of the unembedding; position t predicts targets[:, t].
        targets: (B, T) token ids.
        mask: (B, T) bool: where there is a target.
        temperature: divides the logits; a constant for differentiation.
        entropy: also return the entropies of the next-token distributions, in nats, not
            differentiated.

    Returns:
        (B, T) float32, 0 where masked out; with `entropy` a pair of such arrays.
    """
    of_chunk = partial(_chunk_logps, model.config, entropy)
    scale = jax.lax.stop_gradient(jnp.asarray(temperature, jnp.float32))
    logps, entropies = per_token(of_chunk, model, hidden, mask, (targets,), (scale,))
    return (logps, entropies) if entropy else logps


def per_token(
    of_chunk: OfChunk, model: Any, hidden: jax.Array, mask: jax.Array, rows: Arrays, whole: Arrays
) -> tuple[jax.Array, Any]:
    """A number for each token, and further outputs that are not differentiated.

    Differentiable in `hidden` and in the model's embedding; what is not differentiated is not
    computed.

    Args:
        of_chunk: (embedding (V, D), hidden (C, D), *rows, each (C, ...), *whole) -> (C,) float32,
            and a tree of (C, ...) or None. Its result for a token depends on that token's rows
            alone.
        model: a Gemma: has `config` and `embedding`.
        hidden: (B, T, D) input of the unembedding.
        mask: (B, T) bool: the tokens wanted.
        rows: arrays (B, T, ...), from which `of_chunk` gets the elements of its tokens.
        whole: arrays that it gets as they are, such as a temperature.

    Returns:
        (B, T) float32, and a tree of (B, T, ...); 0 where masked out.
    """
    return _per_token(
        model.config, of_chunk, model.embedding.get_value(), hidden, mask, rows, whole
    )


def positions_of(real: jax.Array) -> jax.Array:
    """(B, T) bool, the real tokens of rows of one text each -> (B, T) positions within the text,
    from 0."""
    return jnp.maximum(jnp.cumsum(real, axis=-1) - 1, 0)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _per_token(
    config: GemmaConfig,
    of_chunk: OfChunk,
    embedding: jax.Array,
    hidden: jax.Array,
    mask: jax.Array,
    rows: Arrays,
    whole: Arrays,
) -> tuple[jax.Array, Any]:
    values, more, _ = _forward(config, of_chunk, False, embedding, hidden, mask, rows, whole)
    return values, more


def _keep(
    config: GemmaConfig, of_chunk: OfChunk, *primals: Any
) -> tuple[tuple[jax.Array, Any], Any]:
    """The forward pass of a differentiated program. It keeps d value / d hidden if that is wanted,
    and all arguments if d embedding is."""
    embedding, hidden = primals[:2]
    arrays = jax.tree.map(
        lambda primal: primal.value, primals, is_leaf=lambda leaf: hasattr(leaf, "perturbed")
    )
    values, more, slopes = _forward(config, of_chunk, hidden.perturbed, *arrays)
    return (values, more), (slopes, arrays if embedding.perturbed else None)


def _backward(
    config: GemmaConfig, of_chunk: OfChunk, saved: Any, cotangents: Any
) -> tuple[Any, ...]:
    slopes, arrays = saved
    of_values = cotangents[0]
    if isinstance(of_values, jax.custom_derivatives.SymbolicZero):
        return (None,) * 5
    of_hidden = None if slopes is None else (slopes * of_values[..., None]).astype(slopes.dtype)
    of_embedding = (
        None if arrays is None else _embedding_gradient(config, of_chunk, *arrays, of_values)
    )
    return of_embedding, of_hidden, None, None, None


_per_token.defvjp(_keep, _backward, symbolic_zeros=True)


def _forward(
    config: GemmaConfig, of_chunk: OfChunk, slopes: bool, embedding: jax.Array, *arrays: Any
) -> tuple[jax.Array, Any, Any]:
    """Arguments as of `_per_token`. Returns (B, T) values, a tree of (B, T, ...), and (B, T, D) d
    value / d hidden, if asked for."""

    def of_device(
        embedding: jax.Array, hidden: jax.Array, mask: jax.Array, rows: Arrays, whole: Arrays
    ) -> Any:
        def of_rows(hidden: jax.Array, *rows: jax.Array) -> tuple[jax.Array, Any, jax.Array | None]:
            def of_hidden(hidden: jax.Array) -> tuple[jax.Array, Any]:
                return of_chunk(embedding, hidden, *rows, *whole)

            if not slopes:
                return *of_hidden(hidden), None
            values, pull, more = jax.vjp(of_hidden, hidden, has_aux=True)
            # rows are independent: each row's own gradient
            return (values, more, *pull(jnp.ones_like(values)))

        order, chunks = _supervised_first(mask)

        def step(index: jax.Array, found: Any) -> Any:
            chunk = jax.lax.dynamic_slice_in_dim(order, index * CHUNK, CHUNK)
            of_this = of_rows(*_rows(chunk, hidden, *rows))
            return jax.tree.map(
                lambda whole, part: jax.lax.dynamic_update_slice_in_dim(
                    whole, part, index * CHUNK, 0
                ),
                found,
                of_this,
            )

        shapes = jax.eval_shape(of_rows, *_rows(order[:CHUNK], hidden, *rows))
        zeros = jax.tree.map(lambda x: jnp.zeros((len(order), *x.shape[1:]), x.dtype), shapes)
        with jax.named_scope(LOOP):
            found = jax.lax.fori_loop(0, chunks, step, zeros)
        place = jnp.maximum(jnp.cumsum(mask.reshape(-1)) - 1, 0).reshape(mask.shape)
        return jax.tree.map(
            lambda x: jnp.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 1)), x[place], 0), found
        )

    return _each_device(of_device, (WHOLE, ROWS, ROWS, ROWS, WHOLE), ROWS)(
        embedding.astype(config.dtype), *arrays
    )


def _embedding_gradient(
    config: GemmaConfig, of_chunk: OfChunk, embedding: jax.Array, *arrays: Any
) -> jax.Array:
    """(V, D): the sum over tokens of cotangent x d value / d embedding. Arguments as of
    `_per_token`, and (B, T) cotangents."""

    def of_device(
        embedding: jax.Array,
        hidden: jax.Array,
        mask: jax.Array,
        rows: Arrays,
        whole: Arrays,
        cotangents: jax.Array,
    ) -> jax.Array:
        order, chunks = _supervised_first(mask)
        exact = embedding.astype(jnp.float32)  # chunks are summed in float32

        def step(index: jax.Array, total: jax.Array) -> jax.Array:
            chunk = jax.lax.dynamic_slice_in_dim(order, index * CHUNK, CHUNK)
            cotangent_rows, *own = _rows(chunk, cotangents, hidden, *rows)
            _, pull = jax.vjp(lambda x: of_chunk(x, *own, *whole)[0], exact)
            return total + pull(cotangent_rows)[0]

        with jax.named_scope(LOOP):
            total = jax.lax.fori_loop(0, chunks, step, jnp.zeros_like(exact))
        return total if batch_parts() == 1 else jax.lax.psum(total, BATCH)

    total = _each_device(of_device, (WHOLE, ROWS, ROWS, ROWS, WHOLE, ROWS), WHOLE)(
        embedding.astype(config.dtype), *arrays
    )
    return total.astype(embedding.dtype)


def _chunk_logps(
    config: GemmaConfig,
    entropy: bool,
    embedding: jax.Array,
    hidden: jax.Array,
    targets: jax.Array,
    temperature: jax.Array,
) -> tuple[jax.Array, jax.Array | None]:
    """(C, D) hidden states and (C,) targets -> (C,) log-probabilities and, if asked for,
    entropies."""
    logits = unembed(config, embedding, hidden) / temperature
    top = jax.lax.stop_gradient(jnp.max(logits, axis=-1))
    weights = jnp.exp(logits - top[:, None])
    total = jnp.sum(weights, axis=-1)  # in one pass with the entropy's sum
    normaliser = top + jnp.log(total)
    # fuses, and works on a part of the vocabulary
    chosen = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1) == targets[:, None]
    logps = jnp.sum(jnp.where(chosen, logits, 0), axis=-1) - normaliser
    if not entropy:
        return logps, None
    return logps, normaliser - jnp.sum(weights * logits, axis=-1) / total


def _supervised_first(mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Indices of the flattened mask's True elements, padded with its size to a multiple of CHUNK,
    and the number of chunks that have any."""
    flat = mask.reshape(-1)
    order = jnp.sort(jnp.where(flat, jnp.arange(flat.size), flat.size))
    padded = jnp.pad(order, (0, -flat.size % CHUNK), constant_values=flat.size)
    return padded, -(-flat.sum() // CHUNK)


def _rows(chunk: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
    """Elements `chunk` of arrays (b, T, ...), zeros where the index is their number."""
    return [
        array.reshape(-1, *array.shape[2:]).at[chunk].get(mode="fill", fill_value=0)
        for array in arrays
    ]


def _each_device(
    function: Callable[..., Any], inputs: tuple[PartitionSpec, ...], outputs: PartitionSpec
) -> Callable[..., Any]:
    """Run the function on each device's own rows. The compiler handles the other axes of the
    mesh."""
    if batch_parts() == 1:
        return function
    return jax.shard_map(
        function, in_specs=inputs, out_specs=outputs, axis_names={BATCH}, check_vma=False
    )
