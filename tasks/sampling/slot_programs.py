"""The programs of `tasks.sampling.slots`, and the slots on the devices.

All rows write the same column of the cache, which is shifted left before each chunk, so that a
row's context always ends where the chunk begins, however long ago the row came in. Segment ids hide
what another row left there. The cache is as wide as the longest context in it, in quarters of the
widest; prompts are padded to `prompt_length`, its half, its quarter, and so on. Each of these few
shapes compiles once, at its first use.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from tasks.data.tokens import pad_left
from tasks.devices.hosts import BATCH, TENSOR, fetch, spread
from tasks.models.loading import LoadedModel
from tasks.planning.programs import Program, compilations, global_share, shapes
from tasks.planning.programs import rows as rows_of
from tasks.sampling.sampler import first_best, truncated

SHORTEST = 32
"""The least tokens that a prompt is padded to."""

Slots = dict[str, jax.Array]
"""k and v (L, B, K, W, H), segments (B, W), and by row (B, ...): the prompt's `length`, the
`number` of tokens drawn, what was `GIVEN` with the prompt, and what was `DRAWN` last."""

_COLUMNS = {"k": 3, "v": 3, "segments": 1}
"""Their axis W."""


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
        self.together = devices * max(1, batch_size // devices // 8)
        self.chunk = min(chunk or max(8, response_length // 64), response_length - 1)
        self.chunks = -(-(response_length - 1) // self.chunk)
        self.prompt_widths = halves(prompt_length)
        self.cache_widths = quarters(prompt_length + self.chunks * self.chunk)
        self._graph, _ = nnx.split(loaded.model)
        heads = TENSOR if loaded.config.num_kv_heads % loaded.mesh.shape[TENSOR] == 0 else None
        by_row = NamedSharding(loaded.mesh, PartitionSpec(BATCH))
        cached = NamedSharding(loaded.mesh, PartitionSpec(None, BATCH, heads))
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

    def plan(self, requests: Sequence[int], resident: Any) -> list[Program]:
        """See `SlotSampler.programs`."""
        weights = shapes(nnx.state(self.loaded.model))
        prompts = self.read([[]], dict.fromkeys(self.GIVEN, (0,)), self.prompt_length)
        prefill = (weights, *rows_of(prompts, self.loaded.mesh))
        block = self._shapes(self.together, self.prompt_length)
        slots = self._shapes(self.batch_size, self.cache_widths[-1])
        where = jax.ShapeDtypeStruct((self.together,), np.int32)
        reads = sum(-(-count // self.together) for count in requests)
        decodes = sum(-(-count // self.batch_size) for count in requests) * self.chunks
        share = global_share(self.loaded.config)
        return [
            Program("prefill", self.prefill, prefill, reads, resident),
            Program("admit", self.admit, (slots, block, where), reads, resident),
            Program("decode", self.decode, (weights, slots), decodes, resident, share),
        ]

    def read(
        self, prompts: Sequence[Sequence[int]], given: Mapping[str, Sequence[Any]], width: int
    ) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The arrays for `prefill`, padded with empty rows."""
        empty = self.together - len(prompts)
        return (
            pad_left([*prompts, *[[]] * empty], width, self.loaded.tokenizer.pad_id),
            {
                name: np.array([*given[name], *[0] * empty], dtype)
                for name, dtype in self.GIVEN.items()
            },
        )

    def _shapes(self, rows: int, width: int) -> Any:
        with jax.set_mesh(self.loaded.mesh):
            found = jax.eval_shape(lambda: self._empty(rows, width))
        return {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._placement[name])
            for name, leaf in found.items()
        }

    def _empty(self, rows: int, width: int) -> Slots:
        model: Any = self.loaded.model
        cache = model.init_cache(rows, width)
        kinds = {"length": ((), np.int32), "number": ((), np.int32), **self.DRAWN}
        kinds |= {name: ((), dtype) for name, dtype in self.GIVEN.items()}
        columns = {name: cache[name] for name in _COLUMNS}
        return columns | {
            name: jnp.zeros((rows, *shape), dtype) for name, (shape, dtype) in kinds.items()
        }

    def _resize(self, slots: Slots | None, width: int) -> Slots:
        """A cache of another width, or an empty one without a cache. It adds and removes columns on
        the left, where no row has any."""
        if slots is None:
            return self._empty(self.batch_size, width)
        return slots | _widened(slots, width)

    def _prefill(self, weights: nnx.State, prompts: jax.Array, given: Slots) -> Slots:
        """(F, width) left-padded prompts -> the content of their slots, with the first token drawn;
        the caches of all widths have one width."""
        model: Any = nnx.merge(self._graph, weights)
        real = prompts != self.loaded.tokenizer.pad_id
        positions = jnp.maximum(jnp.cumsum(real, -1) - 1, 0)
        hidden, cache = model(
            prompts, positions, real.astype(jnp.int32), model.init_cache(*prompts.shape)
        )
        start = jnp.zeros_like(given["row"])
        drawn = self.draw(model.unembed(hidden[:, -1]), _keys(given), start, given)
        of_rows = {"length": real.sum(-1, dtype=jnp.int32), "number": start + 1, **given, **drawn}
        return _widened(cache, self.prompt_length) | of_rows

    def _admit(self, slots: Slots, block: Slots, where: jax.Array) -> Slots:
        """Put the rows of a block into the slots `where` (F,); an index out of range drops its
        row."""
        end = slots["segments"].shape[1]
        width = min(end, block["segments"].shape[1])  # the rest is padding
        columns = slice(end - width, end)
        empty = jnp.zeros((where.shape[0], slots["segments"].shape[1]), jnp.int32)
        segments = empty.at[:, columns].set(block["segments"][:, -width:])
        admitted = {
            name: slots[name].at[where].set(block[name], mode="drop") for name in self._by_row
        }
        caches = {
            name: (
                slots[name].at[:, where, :, columns].set(block[name][:, :, :, -width:], mode="drop")
            )
            for name in ("k", "v")
        }
        return (
            admitted | caches | {"segments": slots["segments"].at[where].set(segments, mode="drop")}
        )

    def _decode(self, weights: nnx.State, slots: Slots) -> tuple[Slots, Slots]:
        """A chunk of C tokens for every slot -> the slots, and what was drawn (B, 1 + C, ...): last
        before the chunk, and in it."""
        model = nnx.merge(self._graph, weights)
        keys, length = _keys(slots), slots["length"]
        ones = jnp.ones((length.shape[0], 1), jnp.int32)
        cache = {
            name: jnp.roll(slots[name], -self.chunk, axis=axis) for name, axis in _COLUMNS.items()
        }
        cache["index"] = jnp.int32(slots["segments"].shape[1] - self.chunk)
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
        columns = {name: cache[name] for name in _COLUMNS}
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
        self._width = 0

    def admit(
        self,
        prompts: Sequence[Sequence[int]],
        given: Mapping[str, Sequence[Any]],
        into: Sequence[int],
    ) -> None:
        """Read prompts, the longest first, into slots, with the values of `GIVEN` for each."""
        programs, length = self._programs, len(prompts[0])
        width = _fit(programs.prompt_widths, length)
        where = np.full(programs.together, programs.batch_size, np.int32)
        where[: len(into)] = into
        read = spread(programs.read(prompts, given, width), self._mesh)
        if self._width < length + programs.chunk:  # which it will need in a moment
            self._resize(length + programs.chunk)
        programs.wanted |= {("prefill", width), ("admit", self._width)}
        with jax.set_mesh(self._mesh):
            block = programs.prefill(self._weights, *read)
            self._slots = programs.admit(self._slots, block, where)

    def decode(self, context: int) -> dict[str, np.ndarray]:
        """Decode one chunk with room for so long a context; returns what `SlotPrograms._decode`
        drew."""
        programs = self._programs
        self._resize(context + programs.chunk)
        programs.wanted.add(("decode", self._width))
        with jax.set_mesh(self._mesh):
            self._slots, drawn = programs.decode(self._weights, self._slots)
        return {name: fetch(value) for name, value in drawn.items()}

    def _resize(self, needed: int) -> None:
        width = _fit(self._programs.cache_widths, needed)
        if width == self._width:
            return
        self._programs.wanted.add(("resize", self._width, width))
        with jax.set_mesh(self._mesh):
            self._slots, self._width = self._programs.resize(self._slots, width), width


def _fit(widths: Sequence[int], needed: int) -> int:
    return next(width for width in widths if width >= needed)


def halves(longest: int) -> list[int]:
    widths = [longest]
    while SHORTEST <= _rounded(widths[0] / 2) < widths[0]:
        widths.insert(0, _rounded(widths[0] / 2))
    return widths


def quarters(longest: int) -> list[int]:
    return sorted({min(longest, _rounded(longest * quarter / 4)) for quarter in range(1, 5)})


def _rounded(width: float) -> int:
    """Up to a multiple of 8."""
    return math.ceil(width / 8) * 8


def _keys(given: Slots) -> jax.Array:
    keys: jax.Array = jax.vmap(lambda seed, row: jax.random.fold_in(jax.random.key(seed), row))(
        given["seed"], given["row"]
    )
    return keys


def _widened(cache: Slots, width: int) -> Slots:
    """The k, v and segments of a cache at another width; it adds and removes columns on the
    left."""

    def widened(array: jax.Array, axis: int) -> jax.Array:
        missing = width - array.shape[axis]
        if missing <= 0:
            return jax.lax.slice_in_dim(array, -missing, None, axis=axis)
        return jnp.pad(array, [(missing if each == axis else 0, 0) for each in range(array.ndim)])

    return {name: widened(cache[name], axis) for name, axis in _COLUMNS.items()}
