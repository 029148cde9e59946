"""Generation: one compiled program per shape, prefill and decode together, randomness per row.

Tunix's sampler computes logits for every prompt position in prefill, assembles its state eagerly at
each call, and draws one key for the whole batch. Here prefill unembeds the last position only, the
loop stops when every row has ended its turn, and row i draws from `fold_in(fold_in(key(seed), i),
t)`, so that a row's sample does not depend on the rest of its batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from schemas.base import InputError
from tasks.contract.journal import Journal
from tasks.data.tokens import Tokenizer, TooLong, pad_left, prompt_tokens
from tasks.devices.hosts import BATCH, by_rows, constrained, fetch, spread
from tasks.models.decoder import cache_axes
from tasks.models.loading import LoadedModel
from tasks.models.vocabulary import positions_of
from tasks.planning.programs import Program, compilations, global_share, scalar, shapes
from tasks.planning.programs import rows as rows_of
from tasks.sampling.next_token import drawn, truncated


@dataclass(frozen=True)
class Completion:
    """One sampled response.

    Attributes:
        tokens: its ids, including the terminator if there is one.
        text: the decoded response without the terminator.
        terminated: False when the response was cut off at the fixed length.
        logps: (len(tokens),) log-probability of each token under the model at the temperature of
            sampling; greedy: at 1. It is normalised over all tokens, also with top_k or top_p, like
            the trainer's. (vLLM's "processed" ones are normalised over the remaining tokens, so
            that a ratio to the trainer's is off by the mass left out: TRL's issue 6789.)
    """

    tokens: list[int]
    text: str
    terminated: bool
    logps: np.ndarray


def completion(
    tokenizer: Tokenizer, tokens: Sequence[int] | np.ndarray, logps: np.ndarray | None = None
) -> Completion:
    """The completion of sampled tokens up to the first terminator; unknown log-probabilities are
    empty."""
    known = np.zeros(0, np.float32) if logps is None else logps
    sampled = np.asarray(tokens)
    ends = np.flatnonzero(np.isin(sampled, tokenizer.stop_ids))
    terminated = len(ends) > 0
    length = int(ends[0]) + 1 if terminated else len(sampled)
    said = sampled[:length].tolist()
    text = tokenizer.decode(said[:-1] if terminated else said)
    return Completion(said, text, terminated, known[:length])


class Sampler:
    """Samples from a model's current weights in batches of a fixed shape, each device its part of
    the rows.

    Attributes:
        compiles: the number of programs that this sampler has compiled: 1 after any number of
            calls, 0 where all batches were in a journal.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        batch_size: int,
        prompt_length: int,
        response_length: int,
        group_size: int = 1,
        top_k: int | None = None,
        top_p: float | None = None,
    ):
        """
        Args:
            batch_size: rows per call of the program.
            prompt_length, response_length: tokens, fixed.
            group_size: the number of consecutive equal prompts. Prefill reads such a group once, or
                once on each device that shares it.
            top_k, top_p: see `schemas.trainer_config.Nucleus`.
        """
        self.loaded, self.top_k, self.top_p = loaded, top_k, top_p
        self._shared = gcd(group_size, batch_size // loaded.mesh.shape[BATCH])
        self.batch_size = batch_size
        self.prompt_length, self.response_length = prompt_length, response_length
        self._graph, _ = nnx.split(loaded.model)
        self._program: Any = jax.jit(self._generate)

    @property
    def compiles(self) -> int:
        return compilations(self._program)

    def generate(
        self,
        prompts: Sequence[str],
        *,
        temperature: float = 0.0,
        seed: int = 0,
        journal: Journal | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Sample one response for each prompt.

        Args:
            prompts: any number of user prompts, in whole groups; the last batch is filled by
                repeating rows.
            temperature: 0 is greedy.
            seed: row i's randomness is a function of (seed, i).
            journal: batches in it are not sampled again, others are added; it belongs to this one
                call, with these arguments.
            progress: called with the number of finished prompts after each batch.

        Raises:
            InputError: a prompt has more tokens than `prompt_length`.
        """
        tokenizer = self.loaded.tokenizer
        try:
            rows = pad_left(
                [prompt_tokens(tokenizer, prompt) for prompt in prompts],
                self.prompt_length,
                tokenizer.pad_id,
            )
        except TooLong as error:
            raise InputError(
                f"a prompt does not fit prompt_length = {self.prompt_length}: {error}. Raise"
                " prompt_length."
            ) from error
        state, mesh = nnx.state(self.loaded.model), self.loaded.mesh
        out: list[Completion] = []
        for start in range(0, len(rows), self.batch_size):
            entry = f"{start:08d}"
            stored = journal.get(entry) if journal else None
            if stored is None:
                indices = np.minimum(np.arange(start, start + self.batch_size), len(rows) - 1)
                with jax.set_mesh(mesh):
                    drawn = self._program(
                        state,
                        *spread((rows[indices[:: self._shared]], indices), mesh),
                        np.uint32(seed),
                        np.float32(temperature),
                    )
                tokens, logps = map(fetch, drawn)
                wanted = min(self.batch_size, len(rows) - start)
                batch = [self.completion_of(tokens[row], logps[row]) for row in range(wanted)]
                if journal:
                    kept = [{"tokens": one.tokens, "logps": one.logps.tolist()} for one in batch]
                    journal.put(entry, kept)
            else:
                batch = [
                    self.completion_of(row["tokens"], np.array(row["logps"], np.float32))
                    for row in stored
                ]
            out.extend(batch)
            if progress:
                progress(len(out))
        return out

    def program(self, calls: float, resident: Any = None) -> Program:
        """The program that `generate` compiles. `calls`: the number of batches; `resident`: see
        `Program`."""
        batch = (
            np.zeros((self.batch_size // self._shared, self.prompt_length), np.int32),
            np.zeros(self.batch_size, np.int64),
        )
        state = shapes(nnx.state(self.loaded.model))
        args = (state, *rows_of(batch, self.loaded.mesh), scalar(np.uint32), scalar(np.float32))
        return Program(
            "generate",
            self._program,
            args,
            calls,
            resident,
            trips={"decode": self.response_length - 1, **global_share(self.loaded.config)},
        )

    def completion_of(
        self, tokens: Sequence[int] | np.ndarray, logps: np.ndarray | None = None
    ) -> Completion:
        """The completion of tokens, e.g. of those that were sampled before; lost log-probabilities
        are empty."""
        return completion(self.loaded.tokenizer, tokens, logps)

    def _generate(
        self,
        state: nnx.State,
        prompts: jax.Array,
        rows: jax.Array,
        seed: jax.Array,
        temperature: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        """The program: left-padded prompts (B / shared, P) -> (B, R) tokens, padded after the
        terminator, and their log-probabilities."""
        tokenizer = self.loaded.tokenizer
        model = nnx.merge(self._graph, state)
        batch, (prompts_read, length) = rows.shape[0], prompts.shape
        real = prompts != tokenizer.pad_id
        hidden, cache = model(
            prompts,
            positions_of(real),
            real.astype(jnp.int32),
            model.init_cache(prompts_read, length + self.response_length),
        )
        assert cache is not None

        def each(array: jax.Array, *axes: str | None) -> jax.Array:
            """Repeat a prompt's values for each response to it."""
            if self._shared == 1:
                return array
            return constrained(jnp.repeat(array, self._shared, axis=axes.index(BATCH)), *axes)

        lengths, last = each(real.sum(-1), BATCH), each(hidden[:, -1], BATCH)
        axes = cache_axes(self.loaded.config)
        for name in ("k", "v"):
            cache[name] = jax.tree.map(lambda array: each(array, *axes), cache[name])
        cache |= {"segments": each(cache["segments"], BATCH)}
        keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), rows)
        ones = jnp.ones((batch, 1), jnp.int32)
        scale = jnp.where(temperature > 0, temperature, 1.0)

        def draw(hidden: jax.Array, step: jax.Array) -> tuple[jax.Array, jax.Array]:
            logits = model.unembed(hidden)
            allowed = truncated(logits, scale, self.top_k, self.top_p)
            token = drawn(allowed, temperature, keys, jnp.full(batch, step))
            logp = jnp.take_along_axis(logits, token[:, None], -1)[:, 0] / scale - jax.nn.logsumexp(
                logits / scale, -1
            )
            return token, logp

        token, logp = draw(last, jnp.int32(0))
        tokens = by_rows(
            jnp.full((batch, self.response_length), tokenizer.pad_id, jnp.int32).at[:, 0].set(token)
        )
        logps = by_rows(jnp.zeros((batch, self.response_length), jnp.float32).at[:, 0].set(logp))

        def stops(token: jax.Array) -> jax.Array:
            return jnp.isin(token, jnp.asarray(tokenizer.stop_ids))

        def unfinished(carry: tuple[Any, ...]) -> jax.Array:
            step, done = carry[0], carry[1]
            return (step < self.response_length) & ~done.all()

        def decode(carry: tuple[Any, ...]) -> tuple[Any, ...]:
            step, done, tokens, logps, cache = carry
            last = jax.lax.dynamic_slice_in_dim(tokens, step - 1, 1, axis=1)
            hidden, cache = model(last, (lengths + step - 1)[:, None], ones, cache)
            token, logp = draw(hidden[:, 0], step)
            tokens = tokens.at[:, step].set(jnp.where(done, tokenizer.pad_id, token))
            logps = logps.at[:, step].set(jnp.where(done, 0.0, logp))
            return step + 1, done | stops(token), tokens, logps, cache

        carry = (jnp.int32(1), stops(token), tokens, logps, cache)
        with jax.named_scope("decode"):
            _, _, tokens, logps, _ = jax.lax.while_loop(unfinished, decode, carry)
        return tokens, logps
