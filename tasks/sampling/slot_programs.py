"""The programs of `tasks.sampling.slots`, and the slots on the devices.

All rows write the same column of the cache, which is a ring, so a row's context always ends before
the column that is written next, however long ago the row came in. Where local layers read windows
of it, which must lie in one piece, it is shifted left before each chunk instead. Segment ids hide
what another row left there. The cache has its full width, the half or the quarter of it, as the
longest context in it needs; prompts are padded to `prompt_length`, its half, its quarter, and so
on. Each of these few shapes compiles once, at its first use; few prompts make do with those that
are worth it (`SlotPrograms.worthwhile`).
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from tasks.data.tokens import pad_left
from tasks.devices.hosts import BATCH, fetch, spread
from tasks.models.attention import reads_windows
from tasks.models.decoder import cache_axes
from tasks.models.loading import LoadedModel
from tasks.models.vocabulary import positions_of
from tasks.planning.programs import Program, compilations, global_share, scalar, shapes
from tasks.planning.programs import rows as rows_of
from tasks.sampling.next_token import drawn, first_best, truncated

SHORTEST = 32
"""The least tokens that a prompt is padded to, and the least columns."""

WORTH = 4e9
"""The multiplications that a shape has to spare to be compiled: two cores take half a second for
them, as to trace a program and to find it compiled. Gemma 3 270M needs as many for 15 tokens."""

Slots = dict[str, Any]
"""k, v and segments of a cache of W columns (`Gemma.init_cache`), and by row (B, ...): the `length`
of the prompt, the `number` of tokens drawn, what was `GIVEN` with the prompt, and what was `DRAWN`
last."""

_CACHE = ("k", "v", "segments")


class SlotPrograms:
    """The programs that read prompts into slots and decode them.

    Attributes:
        together: prompts to read at a time. With fewer, slots wait less for each other; with more,
            devices are busier.
        chunk: tokens to decode before looking which rows have ended.
        chunks: the chunks of a response of full length, whose first token comes from the prompt.
        wanted: the shapes that were needed so far.
    """

    GIVEN: ClassVar[dict[str, Any]] = {
        "seed": np.uint32,
        "row": np.int32,
        "temperature": np.float32,
    }
    """The values that come with a prompt; its randomness is a function of `seed` and `row`."""
    DRAWN: ClassVar[dict[str, tuple[tuple[int, ...], Any]]] = {"token": ((), np.int32)}
    """The values kept of each token: their shape and dtype for a row."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        batch_size: int,
        prompt_length: int,
        response_length: int,
        sampled: bool = False,
        top_k: int | None = None,
        top_p: float | None = None,
        chunk: int | None = None,
    ) -> None:
        """See `SlotSampler`; `chunk`: None for a 64th of a response, and 8 tokens at least."""
        self.top_k, self.top_p = top_k, top_p
        self.loaded, self.batch_size, self.sampled = loaded, batch_size, sampled
        self.prompt_length, self.response_length = prompt_length, response_length
        devices = loaded.mesh.shape[BATCH]
        self.together = devices * max(1, batch_size // devices // 8)
        self.chunk = min(chunk or max(8, response_length // 64), response_length - 1)
        self.chunks = -(-(response_length - 1) // self.chunk)
        self.prompt_widths = halves(prompt_length)
        self.cache_widths = halves(prompt_length + self.chunks * self.chunk)[-3:]
        self._graph, _ = nnx.split(loaded.model)
        with jax.set_mesh(loaded.mesh):
            cached = NamedSharding(loaded.mesh, PartitionSpec(*cache_axes(loaded.config)))
        by_row = NamedSharding(loaded.mesh, PartitionSpec(BATCH))
        self._by_row = ("length", "number", *self.GIVEN, *self.DRAWN)
        placed = dict.fromkeys(("segments", *self._by_row), by_row) | {"k": cached, "v": cached}
        self._placement = placed
        drawn = dict.fromkeys(self.DRAWN, by_row)
        self.prefill: Any = jax.jit(self._prefill, out_shardings=placed)
        self.admit: Any = jax.jit(self._admit, out_shardings=placed, donate_argnums=0)
        self.decode: Any = jax.jit(self._decode, out_shardings=(placed, drawn), donate_argnums=1)
        self.resize: Any = jax.jit(self._resize, out_shardings=placed, static_argnums=1)
        self.wanted: set[tuple[Any, ...]] = set()

    @property
    def excess(self) -> int:
        """Programs that were compiled beyond one per shape: 0."""
        programs = (self.prefill, self.admit, self.decode, self.resize)
        return max(0, sum(compilations(program) for program in programs) - len(self.wanted))

    def worthwhile(self, lengths: Sequence[int]) -> tuple[list[int], list[int]]:
        """The widths of prompts, and of the cache, for prompts of these lengths: those that spare
        enough beside the next wider one (`WORTH`), and those of the longest."""
        longest, full = max(lengths, default=0), self.chunks * self.chunk
        weights = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(self.loaded.model)))
        widest = _fit(self.prompt_widths, longest)
        kept, ordered, before = [], sorted(lengths), 0
        for width, wider in pairwise(one for one in self.prompt_widths if one <= widest):
            count = bisect_right(ordered, width) - before
            if count * (wider - width) * weights >= WORTH:
                kept.append(width)
                before += count
        config = self.loaded.config
        attention = 2 * config.num_layers * config.num_heads * config.head_dim
        columns = _fit(self.cache_widths, longest + full)
        narrower = [one for one in self.cache_widths if one < columns]
        spared = sum(columns - one for one in narrower[:1]) * len(lengths) * full * attention
        return [*kept, widest], [*(narrower if spared >= WORTH else []), columns]

    def programs(self, requests: Sequence[int], resident: Any = None) -> list[Program]:
        """The programs at their widest, since lengths are unknown yet; narrower ones are compiled
        too, where they suffice.

        Args:
            requests: the number in each call; `calls` assume prompts and responses of full length.
            resident: see `Program`.
        """
        weights = shapes(nnx.state(self.loaded.model))
        prompts = self.read([[]], dict.fromkeys(self.GIVEN, (0,)), self.prompt_length)
        prefill = (weights, *rows_of(prompts, self.loaded.mesh))
        block = self._shapes(self.together, self.prompt_length)
        slots = self._shapes(self.batch_size, self.cache_widths[-1])
        where, index = jax.ShapeDtypeStruct((self.together,), np.int32), scalar(np.int32)
        reads = sum(-(-count // self.together) for count in requests)
        decodes = sum(-(-count // self.batch_size) for count in requests) * self.chunks
        share = global_share(self.loaded.config)
        return [
            Program("prefill", self.prefill, prefill, reads, resident),
            Program("admit", self.admit, (slots, block, where, index), reads, resident),
            Program("decode", self.decode, (weights, slots, index), decodes, resident, share),
        ]

    def read(
        self, prompts: Sequence[Sequence[int]], given: Mapping[str, Sequence[Any]], width: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The arrays for `prefill`, padded with empty rows."""
        empty = self.together - len(prompts)
        rows = pad_left([*prompts, *[[]] * empty], width, self.loaded.tokenizer.pad_id)
        values = ((name, [*given[name], *[0] * empty]) for name in self.GIVEN)
        return rows, {name: np.array(of_rows, self.GIVEN[name]) for name, of_rows in values}

    def _shapes(self, rows: int, width: int) -> Any:
        with jax.set_mesh(self.loaded.mesh):
            found = jax.eval_shape(lambda: self._empty(rows, width))

        def placed(part: Any, sharding: NamedSharding) -> Any:
            return jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), part
            )

        return {name: placed(part, self._placement[name]) for name, part in found.items()}

    def _empty(self, rows: int, width: int) -> Slots:
        model: Any = self.loaded.model
        kinds = {"length": ((), np.int32), "number": ((), np.int32), **self.DRAWN}
        kinds |= {name: ((), dtype) for name, dtype in self.GIVEN.items()}
        cache = model.init_cache(rows, width)
        columns = {name: cache[name] for name in _CACHE}
        return columns | {
            name: jnp.zeros((rows, *shape), dtype) for name, (shape, dtype) in kinds.items()
        }

    def following(self, index: int, width: int) -> int:
        """The column that is written first in the chunk after the one that begins at `index`."""
        return (index + self.chunk) % width if self._is_ring(width) else 0

    def _is_ring(self, width: int) -> bool:
        """Whether the columns of a cache go round; if not, each chunk begins at index 0."""
        return not reads_windows(width, self.loaded.config.window)

    def _resize(self, slots: Slots | None, width: int, index: jax.Array) -> Slots:
        """A cache of another width whose index is 0, or an empty one without a cache."""
        if slots is None:
            return self._empty(self.batch_size, width)
        if self._is_ring(slots["segments"].shape[1]):
            slots = slots | _turned(slots, -index)
        return slots | _fitted(slots, width)

    def _prefill(self, weights: nnx.State, prompts: jax.Array, given: Slots) -> Slots:
        """(F, width) left-padded prompts -> the content of their slots, with the first token drawn;
        the caches of all widths have one width."""
        model: Any = nnx.merge(self._graph, weights)
        real = prompts != self.loaded.tokenizer.pad_id
        segments, cache = real.astype(jnp.int32), model.init_cache(*prompts.shape)
        hidden, cache = model(prompts, positions_of(real), segments, cache)
        start = jnp.zeros_like(given["row"])
        drawn = self.draw(model.unembed(hidden[:, -1]), _keys(given), start, given)
        of_rows = {"length": real.sum(-1, dtype=jnp.int32), "number": start + 1, **given, **drawn}
        return _fitted(cache, self.prompt_length) | of_rows

    def _admit(self, slots: Slots, block: Slots, where: jax.Array, index: jax.Array) -> Slots:
        """Put the rows of a block into the slots `where` (F,), so that they end before column
        `index`; a slot out of range drops its row."""
        width = slots["segments"].shape[1]
        block = block | _fitted(block, width)
        if self._is_ring(width):
            block = block | _turned(block, index)
        rows = {
            name: slots[name].at[where].set(block[name], mode="drop")
            for name in ("segments", *self._by_row)
        }

        def replaced(every: jax.Array, some: jax.Array) -> jax.Array:
            return every.at[..., where, :, :, :].set(some, mode="drop")

        caches = {name: jax.tree.map(replaced, slots[name], block[name]) for name in ("k", "v")}
        return rows | caches

    def _decode(self, weights: nnx.State, slots: Slots, index: jax.Array) -> tuple[Slots, Slots]:
        """A chunk of C tokens for every slot, from column `index` on -> the slots, and what was
        drawn (B, 1 + C, ...): last before the chunk, and in it."""
        model = nnx.merge(self._graph, weights)
        keys, length = _keys(slots), slots["length"]
        ones = jnp.ones((length.shape[0], 1), jnp.int32)
        width = slots["segments"].shape[1]
        cache = {name: slots[name] for name in _CACHE} | {"index": index}
        if not self._is_ring(width):
            cache = _turned(cache, -self.chunk) | {"index": jnp.int32(width - self.chunk)}
        before = {name: slots[name] for name in self.DRAWN}

        def step(carry: Any, _: None) -> tuple[Any, Slots]:
            token, number, cache = carry
            hidden, cache = model(token[:, None], (length + number - 1)[:, None], ones, cache)
            drawn = self.draw(model.unembed(hidden[:, 0]), keys, number, slots)
            return (drawn["token"], number + 1, cache), drawn

        with jax.named_scope("decode"):
            (_, number, cache), chunk = jax.lax.scan(
                step, (slots["token"], slots["number"], cache), length=self.chunk
            )
        drawn = {
            name: jnp.concatenate([before[name][None], chunk[name]]).swapaxes(0, 1)
            for name in self.DRAWN
        }
        last = {name: chunk[name][-1] for name in self.DRAWN}
        columns = {name: cache[name] for name in _CACHE}
        return slots | columns | last | {"number": number}, drawn

    def draw(self, logits: jax.Array, keys: jax.Array, numbers: jax.Array, given: Slots) -> Slots:
        """(B, V) logits -> (B,) tokens; `numbers`: the index of each in its response. Greedy ones
        use no random numbers."""
        temperature = given["temperature"][:, None]

        def at_random(logits: jax.Array) -> jax.Array:
            allowed = self.allowed(logits, jnp.where(temperature > 0, temperature, 1.0), given)
            return drawn(allowed, temperature, keys, numbers)

        if not self.sampled:
            return {"token": first_best(logits)}
        some = (temperature > 0).any()
        return {"token": jax.lax.cond(some, at_random, first_best, logits)}

    def allowed(self, logits: jax.Array, temperature: jax.Array, given: Slots) -> jax.Array:
        """(B, V) logits, -inf where no token may be drawn at the temperatures (B, 1)."""
        return truncated(logits, temperature, self.top_k, self.top_p)


class Device:
    """The slots on the devices during one call.

    Args:
        programs: what it runs.
        lengths: those of all prompts, where they are known before.
    """

    def __init__(self, programs: SlotPrograms, lengths: Sequence[int] | None = None) -> None:
        self._programs = programs
        widths = programs.prompt_widths, programs.cache_widths
        if lengths is not None:
            widths = programs.worthwhile(lengths)
        self._prompt_widths, self._cache_widths = widths
        self._weights, self._mesh = nnx.state(programs.loaded.model), programs.loaded.mesh
        self._slots: Slots | None = None
        self._width = self._index = 0

    def admit(
        self,
        prompts: Sequence[Sequence[int]],
        given: Mapping[str, Sequence[Any]],
        into: Sequence[int],
    ) -> None:
        """Read prompts, the longest first, into slots, with the values of `GIVEN` for each."""
        programs, length = self._programs, len(prompts[0])
        width = _fit(self._prompt_widths, length)
        where = np.full(programs.together, programs.batch_size, np.int32)
        where[: len(into)] = into
        read = spread(programs.read(prompts, given, width), self._mesh)
        if self._width < length + programs.chunk:  # which it will need in a moment
            self._resize(length + programs.chunk)
        programs.wanted |= {("prefill", width), ("admit", self._width)}
        with jax.set_mesh(self._mesh):
            block = programs.prefill(self._weights, *read)
            self._slots = programs.admit(self._slots, block, where, np.int32(self._index))

    def decode(self, context: int) -> dict[str, np.ndarray]:
        """Decode one chunk with room for so long a context; returns what `SlotPrograms._decode`
        drew."""
        programs = self._programs
        index = self.skip(context)
        programs.wanted.add(("decode", self._width))
        with jax.set_mesh(self._mesh):
            self._slots, drawn = programs.decode(self._weights, self._slots, np.int32(index))
        return {name: fetch(value) for name, value in drawn.items()}

    def skip(self, context: int) -> int:
        """Pass over a chunk, of which nothing need be known, so that the next ones find their
        columns, and hence their sums, as if it had been decoded. Returns its first column."""
        self._resize(context + self._programs.chunk)
        index = self._index
        with jax.set_mesh(self._mesh):
            self._index = self._programs.following(index, self._width)
        return index

    def rewind(self) -> None:
        """Go on at the first column, now that no slot is taken: requests that come alone have the
        same log-probabilities each time, to the last bit."""
        self._index = 0

    def _resize(self, needed: int) -> None:
        width = _fit(self._cache_widths, needed)
        if width == self._width:
            return
        self._programs.wanted.add(("resize", self._width, width))
        with jax.set_mesh(self._mesh):
            self._slots = self._programs.resize(self._slots, width, np.int32(self._index))
        self._width, self._index = width, 0


def _fit(widths: Sequence[int], needed: int) -> int:
    return next(width for width in widths if width >= needed)


def halves(longest: int) -> list[int]:
    widths = [longest]
    while SHORTEST <= _rounded(widths[0] / 2) < widths[0]:
        widths.insert(0, _rounded(widths[0] / 2))
    return widths


def _rounded(width: float) -> int:
    """Up to a multiple of 8."""
    return math.ceil(width / 8) * 8


def _keys(given: Slots) -> jax.Array:
    keys: jax.Array = jax.vmap(lambda seed, row: jax.random.fold_in(jax.random.key(seed), row))(
        given["seed"], given["row"]
    )
    return keys


def _turned(cache: Slots, columns: jax.Array | int) -> Slots:
    """Columns of a cache so far to the right, those at the end at the beginning."""
    return _by_columns(cache, lambda array, axis: jnp.roll(array, columns, axis))


def _fitted(cache: Slots, width: int) -> Slots:
    """Columns of a cache whose index is 0 at another width. It adds and removes the oldest ones, on
    the left, where no row has any."""

    def fitted(array: jax.Array, axis: int) -> jax.Array:
        missing = width - array.shape[axis]
        if missing <= 0:
            return jax.lax.slice_in_dim(array, -missing, None, axis=axis)
        return jnp.pad(array, [(missing if each == axis else 0, 0) for each in range(array.ndim)])

    return _by_columns(cache, fitted)


def _by_columns(cache: Slots, change: Callable[[jax.Array, int], jax.Array]) -> Slots:
    """What `change` makes of keys, values and segments, given each array and its axis W."""
    changed = {
        name: jax.tree.map(lambda array: change(array, array.ndim - 2), cache[name])
        for name in ("k", "v")
    }
    return changed | {"segments": change(cache["segments"], 1)}
