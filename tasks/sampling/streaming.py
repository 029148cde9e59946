"""A greedy answer, told as it is decoded: what `tasks.sampling.sampler` generates for one prompt,
token by token.

Two programs: a prefill of the prompt, padded on the left to a power of two, so that questions of
about the same length share it (and the persistent compilation cache gives it to the next process);
and a decode step of one token, whose cache is donated to the next.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from tasks.data.tokens import Tokenizer, Turns, pad_left, prompt_tokens
from tasks.models.gemma import Cache, Gemma
from tasks.models.loading import LoadedModel
from tasks.planning.programs import compilations

SHORTEST = 64
"""Tokens of the shortest prefill."""

_INCOMPLETE = "\ufffd"
"""What bytes that are no whole character decode to."""


class Streamer:
    """Decodes greedily, one prompt at a time.

    Attributes:
        compiles: programs compiled so far: one step for all prompts, a prefill for each power of
            two.
        prefill, step: those programs.
    """

    def __init__(self, loaded: LoadedModel, *, response_length: int, longest_prompt: int = 2048):
        """Args: response_length: tokens an answer may take; longest_prompt: how many the key/value
        cache holds beside it, if no prompt is longer."""
        self.loaded = loaded
        self.response_length, self.longest_prompt = response_length, longest_prompt
        self._graph, self._state = nnx.split(loaded.model)
        self.prefill: Any = jax.jit(self._begin, static_argnames="size")
        self.step: Any = jax.jit(self._continue, donate_argnames="cache")

    @property
    def compiles(self) -> int:
        return compilations(self.prefill) + compilations(self.step)

    def tokens(self, prompt: str, turns: Turns = ()) -> Iterator[int]:
        """The answer's ids, the terminator included when there is one; at most `response_length`.
        `turns`: what was said before."""
        tokenizer = self.loaded.tokenizer
        context = prompt_tokens(tokenizer, prompt, turns)
        padded = max(SHORTEST, 1 << (len(context) - 1).bit_length())
        row = pad_left([context], padded, tokenizer.pad_id)
        size = max(padded, self.longest_prompt) + self.response_length
        with jax.set_mesh(self.loaded.mesh):
            token, cache = self.prefill(self._state, row, np.int32(len(context)), size=size)
        for position in range(len(context), len(context) + self.response_length):
            number = int(token[0, 0])
            yield number
            if number in tokenizer.stop_ids or position == len(context) + self.response_length - 1:
                return
            with jax.set_mesh(self.loaded.mesh):
                token, cache = self.step(self._state, token, np.int32(position), cache=cache)

    def _begin(
        self, state: nnx.State, row: jax.Array, length: jax.Array, *, size: int
    ) -> tuple[jax.Array, Cache]:
        """(1, P) left-padded prompt of `length` tokens -> (1, 1) first token and a cache of `size`
        tokens."""
        model: Gemma = nnx.merge(self._graph, state)
        index = jnp.arange(row.shape[1])[None] - (row.shape[1] - length)
        segments = (index >= 0).astype(jnp.int32)
        hidden, cache = model(row, jnp.maximum(index, 0), segments, model.init_cache(1, size))
        assert cache is not None
        return self._greedy(model, hidden[:, -1:]), cache

    def _continue(
        self, state: nnx.State, token: jax.Array, position: jax.Array, *, cache: Cache
    ) -> tuple[jax.Array, Cache]:
        """(1, 1) token at `position` -> the next one."""
        model: Gemma = nnx.merge(self._graph, state)
        hidden, new = model(token, position[None, None], jnp.ones((1, 1), jnp.int32), cache)
        assert new is not None
        return self._greedy(model, hidden), new

    @staticmethod
    def _greedy(model: Gemma, hidden: jax.Array) -> jax.Array:
        return jnp.argmax(model.unembed(hidden), -1).astype(jnp.int32)


def pieces(tokenizer: Tokenizer, tokens: Iterable[int]) -> Iterator[str]:
    """The text of tokens as they come. Joined, the pieces are `tokenizer.decode(tokens)`; a
    character of several tokens comes whole."""
    seen: list[int] = []
    told = 0
    for token in tokens:
        seen.append(token)
        text = tokenizer.decode(seen).rstrip(_INCOMPLETE)
        if len(text) > told:
            yield text[told:]
            told = len(text)
    if rest := tokenizer.decode(seen)[told:]:
        yield rest
