"""The programs of `tasks.sampling.slots`, and the slots on the devices.

All rows write the same column of the cache, which is a ring, so a row's context always ends before
the column that is written next, however long ago the row came in. Where local layers read windows
of it, which must lie in one piece, it is shifted left before each chunk instead. Segment ids hide
what another row left there. The cache has its full width, the half or the quarter of it, as the
longest context in it needs. Prompts are read packed, several in a row, as SFT packs its examples
(`tasks.data.packing`), and their keys and values copied to their slots. Each of these few shapes
compiles once, at its first use.
"""

import bisect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from tasks.data.packing import LANES, best_fit, pack
from tasks.devices.hosts import BATCH, fetch, spread
from tasks.models.attention import reads_windows
from tasks.models.decoder import cache_axes
from tasks.models.loading import LoadedModel
from tasks.planning.programs import Program, compilations, global_share, scalar, shapes
from tasks.planning.programs import rows as rows_of
from tasks.sampling.sampler import first_best, truncated

SHORTEST = 32
"""The least tokens of a row of prompts."""

NARROWEST = 128
"""The least columns of a cache that may be wider: fewer save less than their programs take to
compile."""

SAVED = 1 / 8
"""The part of all tokens that narrower rows have to save, to be worth a program of their own."""

Slots = dict[str, Any]
"""k, v and segments of a cache of W columns (`Gemma.init_cache`), and by row (B, ...): the `length`
of the prompt, the `number` of tokens drawn, what was `GIVEN` with the prompt, and what was `DRAWN`
last."""

_CACHE = ("k", "v", "segments")


@dataclass(frozen=True)
class Read:
    """Prompts, by their indices, that are read at a time: those that share each row, of so many
    tokens."""

    rows: list[list[int]]
    width: int

    @property
    def prompts(self) -> list[int]:
        return [index for row in self.rows for index in row]


class SlotPrograms:
    """The programs that read prompts into slots and decode them.

    Attributes:
        together, rows: the most prompts to read at a time, and the rows that they share. With
            fewer, slots wait less for each other; with more, devices are busier.
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
        sampled: bool,
        top_k: int | None,
        top_p: float | None,
        chunk: int | None = None,
    ) -> None:
        """See `SlotSampler`; `chunk`: None for a 64th of a response, and 8 tokens at least."""
        self.top_k, self.top_p = top_k, top_p
        self.loaded, self.batch_size, self.sampled = loaded, batch_size, sampled
        self.prompt_length = prompt_length
        devices = loaded.mesh.shape[BATCH]
        together = math.ceil(batch_size / devices / 8)
        self.together = devices * together
        self.rows = devices * max(min(together, 2), together // 4)
        self.chunk = min(chunk or max(8, response_length // 64), response_length - 1)
        self.chunks = -(-(response_length - 1) // self.chunk)
        self.row_widths = halves(math.ceil(prompt_length / LANES) * LANES, SHORTEST)
        self.cache_widths = halves(prompt_length + self.chunks * self.chunk, NARROWEST)[-3:]
        self._graph, _ = nnx.split(loaded.model)
        with jax.set_mesh(loaded.mesh):
            cached = NamedSharding(loaded.mesh, PartitionSpec(*cache_axes(loaded.config)))
        by_row = NamedSharding(loaded.mesh, PartitionSpec(BATCH))
        self._by_row = ("length", "number", *self.GIVEN, *self.DRAWN)
        placed = dict.fromkeys(("segments", *self._by_row), by_row) | {"k": cached, "v": cached}
        self._placement = placed
        drawn = dict.fromkeys(self.DRAWN, by_row)
        self.prefill: Any = jax.jit(self._prefill, out_shardings=placed | {"end": by_row})
        self.admit: Any = jax.jit(self._admit, out_shardings=placed, donate_argnums=0)
        self.decode: Any = jax.jit(self._decode, out_shardings=(placed, drawn), donate_argnums=1)
        self.resize: Any = jax.jit(self._resize, out_shardings=placed, static_argnums=1)
        self.wanted: set[tuple[Any, ...]] = set()

    @property
    def excess(self) -> int:
        """Programs that were compiled beyond one per shape: 0."""
        programs = (self.prefill, self.admit, self.decode, self.resize)
        return max(0, sum(compilations(program) for program in programs) - len(self.wanted))

    def plan(self, requests: Sequence[int], resident: Any) -> list[Program]:
        """See `SlotSampler.programs`."""
        weights, widest = shapes(nnx.state(self.loaded.model)), self.row_widths[-1]
        packed = self.packed(Read([], widest), [], {})
        prefill = (weights, *rows_of(packed, self.loaded.mesh))
        slots = self._shapes(self.batch_size, self.cache_widths[-1])
        rows, texts = self._shapes(self.rows, widest), self._shapes(self.together, 0)
        block = texts | {name: rows[name] for name in _CACHE} | {"end": texts["length"]}
        where, index = jax.ShapeDtypeStruct((self.together,), np.int32), scalar(np.int32)
        reads = sum(-(-count // self.rows) for count in requests)
        decodes = sum(-(-count // self.batch_size) for count in requests) * self.chunks
        share = global_share(self.loaded.config)
        return [
            Program("prefill", self.prefill, prefill, reads, resident),
            Program(
                "admit",
                self.admit,
                (slots, block, where, index),
                reads,
                resident,
            ),
            Program("decode", self.decode, (weights, slots, index), decodes, resident, share),
        ]

    def reads(self, lengths: Sequence[int]) -> list[Read]:
        """How to read prompts of so many tokens with the least padding, the longest first."""
        longest = max(lengths, default=0)
        plans = [self._reads(lengths, width) for width in self.row_widths if width >= longest]
        return min(plans, key=lambda reads: (sum(read.width for read in reads), len(reads)))

    def _reads(self, lengths: Sequence[int], widest: int) -> list[Read]:
        """Reads in rows of at most so many tokens. Each fills its rows, with the longest prompts
        that still fit, until it has `together`."""
        waiting: dict[int, list[int]] = {}
        for index in reversed(range(len(lengths))):
            waiting.setdefault(lengths[index], []).append(index)
        left, found = sorted(waiting), list[Read]()
        while left:
            rows = list[list[int]]()
            for _ in range(self.rows):
                row, room = list[int](), widest
                while left and left[0] <= room and sum(map(len, rows)) + len(row) < self.together:
                    length = left[bisect.bisect_right(left, room) - 1]
                    row.append(waiting[length].pop())
                    room -= length
                    if not waiting[length]:
                        left.remove(length)
                rows.append(row)
            found.append(self._narrowest(Read([*filter(None, rows)], widest), lengths))
        widths = list[int]()
        for width in self.row_widths:
            some = [read for read in found if widths[-1:] < [read.width] <= [width]]
            if width == widest or (widest - width) * len(some) > SAVED * widest * len(found):
                widths.append(width)
        return [Read(read.rows, _fit(widths, read.width)) for read in found]

    def _narrowest(self, read: Read, lengths: Sequence[int]) -> Read:
        """The same prompts in rows as narrow as hold them."""
        chosen = read.prompts
        for width in self.row_widths:
            if max(lengths[index] for index in chosen) <= width < read.width:
                rows = best_fit([lengths[index] for index in chosen], width)
                if len(rows) <= self.rows:
                    return Read([[chosen[place] for place in row] for row in rows], width)
        return read

    def packed(
        self, read: Read, prompts: Sequence[Sequence[int]], given: Mapping[str, Sequence[Any]]
    ) -> tuple[Any, ...]:
        """The arrays for `prefill`: tokens, positions and segments of the rows, for each prompt of
        the read the index of its last token in all rows, and its values of `GIVEN`; both padded."""
        chosen, spare = read.prompts, self.together - len(read.prompts)
        texts, place = [(list(prompts[index]), list[int]()) for index in chosen], count()
        rows = [[next(place) for _ in row] for row in read.rows]
        rows += [[]] * (self.rows - len(rows))
        packed = pack(texts, read.width, self.loaded.tokenizer.pad_id, rows)
        ends = np.flatnonzero(np.diff(packed.segments, axis=1, append=0))
        values = {
            name: np.array([*(given[name][index] for index in chosen), *[0] * spare], dtype)
            for name, dtype in self.GIVEN.items()
        }
        return (
            *(packed.tokens, packed.positions, packed.segments),
            np.pad(ends.astype(np.int32), (0, spare)),
            values,
        )

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

    def _prefill(
        self,
        weights: nnx.State,
        tokens: jax.Array,
        positions: jax.Array,
        segments: jax.Array,
        ends: jax.Array,
        given: Slots,
    ) -> Slots:
        """Packed rows (R, L), and of F prompts in them the indices of their last tokens in all rows
        -> keys, values and segments of the rows, with the columns of the widest, where in them the
        prompts `end`, and the other values of their slots, with the first token drawn."""
        model: Any = nnx.merge(self._graph, weights)
        hidden, cache = model(tokens, positions, segments, model.init_cache(*tokens.shape))
        last = hidden.reshape(-1, hidden.shape[-1])[ends]
        start = jnp.zeros_like(given["row"])
        drawn = self.draw(model.unembed(last), _keys(given), start, given)
        row, place = jnp.divmod(ends, tokens.shape[1])
        of_prompts = {
            "length": positions.reshape(-1)[ends] + 1,
            "number": start + 1,
            "end": (row + 1) * self.row_widths[-1] - tokens.shape[1] + place,
        }
        rows = _fitted({name: cache[name] for name in _CACHE}, self.row_widths[-1])
        return rows | of_prompts | given | drawn

    def _admit(self, slots: Slots, block: Slots, where: jax.Array, index: jax.Array) -> Slots:
        """Put the prompts of a block into the slots `where` (F,), so that they end before column
        `index`; a slot out of range drops its prompt. Each device takes its part of the prompts
        out of the whole block, and all put those of their own slots there."""
        own = {name: sharding.spec for name, sharding in self._placement.items()}
        whole = {
            name: PartitionSpec(*(None if axis == BATCH else axis for axis in spec))
            for name, spec in (own | {"end": PartitionSpec()}).items()
        }
        put = jax.shard_map(
            self._put,
            mesh=self.loaded.mesh,
            in_specs=(own, whole, PartitionSpec(), PartitionSpec()),
            out_specs=own,
            check_vma=False,
        )
        return put(slots, block, where, index)

    def _put(self, slots: Slots, block: Slots, where: jax.Array, index: jax.Array) -> Slots:
        """`_admit` on one device."""
        (held, width), length = slots["segments"].shape, block["segments"].shape[1]
        size, device = min(width, length), jax.lax.axis_index(BATCH)
        here = where // held == device
        where = jnp.where(here, where - device * held, held)
        columns = _fitted({name: block[name] for name in _CACHE}, size + length)
        part = self.together // self.loaded.mesh.shape[BATCH]
        ends = jax.lax.dynamic_slice_in_dim(block["end"], device * part, part)
        row, last = jnp.divmod(ends, length)

        def texts(array: jax.Array) -> jax.Array:
            """(R, K, L, H) -> (part, K, size, H), the columns that end with each prompt; or of
            all layers."""
            rows, along = array.ndim - 4, array.ndim - 2

            def text(row: jax.Array, start: jax.Array) -> jax.Array:
                one = jax.lax.dynamic_index_in_dim(array, row, rows, keepdims=False)
                return jax.lax.dynamic_slice_in_dim(one, start, size, along - 1)

            return jax.vmap(text, out_axes=rows)(row, last + 1)

        lengths = jax.lax.dynamic_slice_in_dim(block["length"], device * part, part)
        known = jnp.arange(size) >= size - lengths[:, None]
        some = {name: jax.tree.map(texts, columns[name]) for name in ("k", "v")}
        some = _fitted(some | {"segments": known.astype(jnp.int32)}, width)
        if self._is_ring(width):
            some = _turned(some, index)
        some = jax.tree.map(
            lambda array: jax.lax.all_gather(array, BATCH, axis=max(0, array.ndim - 4), tiled=True),
            some,
        )
        some |= {name: block[name] for name in self._by_row}

        def replaced(every: jax.Array, some: jax.Array) -> jax.Array:
            axes = (slice(None),) * max(0, every.ndim - 4)
            return every.at[*axes, where].set(some, mode="drop")

        return slots | jax.tree.map(replaced, {name: slots[name] for name in some}, some)

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

        def noisy(logits: jax.Array) -> jax.Array:
            def noise(key: jax.Array, number: jax.Array) -> jax.Array:
                return jax.random.gumbel(jax.random.fold_in(key, number), logits.shape[-1:])

            allowed = self.allowed(logits, jnp.where(temperature > 0, temperature, 1.0), given)
            return allowed + temperature * jax.vmap(noise)(keys, numbers)

        if self.sampled:
            logits = jax.lax.cond((temperature > 0).any(), noisy, lambda logits: logits, logits)
        return {"token": first_best(logits)}

    def allowed(self, logits: jax.Array, temperature: jax.Array, given: Slots) -> jax.Array:
        """(B, V) logits, -inf where no token may be drawn at the temperatures (B, 1)."""
        return truncated(logits, temperature, self.top_k, self.top_p)


class Device:
    """The slots on the devices during one call."""

    def __init__(self, programs: SlotPrograms) -> None:
        self._programs = programs
        self._weights, self._mesh = nnx.state(programs.loaded.model), programs.loaded.mesh
        self._slots: Slots | None = None
        self._width = self._index = 0

    def admit(
        self,
        read: Read,
        prompts: Sequence[Sequence[int]],
        given: Mapping[str, Sequence[Any]],
        into: Sequence[int],
    ) -> None:
        """Read some of the prompts into slots, one for each of `Read.prompts`; `given`: the values
        of `GIVEN` for all prompts."""
        programs, longest = self._programs, max(len(prompts[index]) for index in read.prompts)
        where = np.full(programs.together, programs.batch_size, np.int32)
        where[: len(into)] = into
        packed = programs.packed(read, prompts, given)
        if self._width < longest + programs.chunk:  # which it will need in a moment
            self._resize(longest + programs.chunk)
        programs.wanted |= {("prefill", read.width), ("admit", self._width)}
        with jax.set_mesh(self._mesh):
            block = programs.prefill(self._weights, *spread(packed, self._mesh))
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
        width = _fit(self._programs.cache_widths, needed)
        if width == self._width:
            return
        self._programs.wanted.add(("resize", self._width, width))
        with jax.set_mesh(self._mesh):
            self._slots = self._programs.resize(self._slots, width, np.int32(self._index))
        self._width, self._index = width, 0


def _fit(widths: Sequence[int], needed: int) -> int:
    return next(width for width in widths if width >= needed)


def halves(longest: int, least: int) -> list[int]:
    """A width, its half and so on, of which none but the first is below `least`."""
    widths = [longest]
    while least <= _rounded(widths[0] / 2) < widths[0]:
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
