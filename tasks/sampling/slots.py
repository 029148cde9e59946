"""Answering many prompts of many lengths: finished rows of a batch make room for the next prompts
while the others go on.

`tasks.sampling.sampler` pads every prompt to one length and goes on until a batch's slowest row has
ended its turn. Here a batch is `batch_size` slots. Prompts, the longest first, are read into free
slots some at a time (`_prefill`, `_admit`); all slots then decode a few tokens in one program
(`_decode`), rows that ended are taken out, and so on: the continuous batching of Orca (OSDI 2022),
with fixed shapes.

Where a row's keys and values lie: all rows write the same column of the cache, which is shifted
left before each chunk, so that a row's context always ends where the chunk begins, however long ago
the row came in. Segment ids hide what another row left there. The cache is as wide as the longest
context in it, in quarters of the widest; prompts are padded to `prompt_length`, its half, its
quarter, and so on. Each of these few shapes is compiled once, when it is first needed.

What shares a chunk depends on when rows end, so it is a function of the prompts and the model, and
so is every byte of the result. Rows that a journal holds are "answered" again, in no time, in the
slots and the chunks in which they were; only chunks with others are computed.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from tasks.contract.journal import Journal
from tasks.data.tokens import pad_left, prompt_tokens
from tasks.devices.hosts import BATCH, TENSOR, fetch, spread
from tasks.models.loading import LoadedModel
from tasks.planning.programs import Program, scalar, shapes
from tasks.planning.programs import rows as rows_of
from tasks.sampling.sampler import Completion, completion, first_best

SHORTEST = 32
"""Prompts are not padded to less."""

Slots = dict[str, jax.Array]
"""k and v (L, B, K, W, H), segments (B, W), and by row (B,): the last `token`, the prompt's
`length`, the `number` of tokens drawn, and `seed` and `row`, of which its randomness is a
function."""


_COLUMNS = {"k": 3, "v": 3, "segments": 1}
"""Their axis W."""


@dataclass(frozen=True)
class Request:
    """A prompt to be answered. Token t is drawn from `fold_in(fold_in(key(seed), row), t)`, as in
    `tasks.sampling.sampler`."""

    prompt: str
    row: int
    seed: int = 0


@dataclass
class _Row:
    """A request in a slot. `answer`: of a row that a journal holds; nothing is computed for it."""

    index: int
    length: int
    answer: list[int] | None
    drawn: list[int] = field(default_factory=list)


class SlotSampler:
    """Answers requests with a model's current weights, each device its part of the slots."""

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        batch_size: int,
        prompt_length: int,
        response_length: int,
        sampled: bool = False,
    ):
        """
        Args:
            batch_size: slots.
            prompt_length, response_length: tokens that a prompt and a response have at most.
            sampled: whether there will be a temperature. Random numbers are a third of what there
                is to compile.
        """
        self.loaded, self.batch_size, self.sampled = loaded, batch_size, sampled
        self.prompt_length, self.response_length = prompt_length, response_length
        devices = loaded.mesh.shape[BATCH]
        self.together = devices * max(1, batch_size // devices // 8)
        """Prompts that are read at a time. Of fewer, slots wait less for each other; of more,
        devices work better."""
        self.chunk = min(max(8, response_length // 64), response_length - 1)
        """Tokens between two looks at which rows have ended."""
        self.chunks = -(-(response_length - 1) // self.chunk)
        """What a response of full length takes; its first token comes of the prompt."""
        self.prompt_widths, self.cache_widths = (
            _halves(prompt_length),
            _quarters(prompt_length + self.chunks * self.chunk),
        )
        self._graph, _ = nnx.split(loaded.model)
        heads = TENSOR if loaded.config.num_kv_heads % loaded.mesh.shape[TENSOR] == 0 else None
        by_row = NamedSharding(loaded.mesh, PartitionSpec(BATCH))
        self._placement = dict.fromkeys(
            ("segments", "token", "length", "number", "seed", "row"), by_row
        )
        self._placement |= {
            name: NamedSharding(loaded.mesh, PartitionSpec(None, BATCH, heads))
            for name in ("k", "v")
        }
        self._prefill_program: Any = jax.jit(self._prefill, out_shardings=self._placement)
        self._admit_program: Any = jax.jit(
            self._admit, out_shardings=self._placement, donate_argnums=0
        )
        self._decode_program: Any = jax.jit(
            self._decode, out_shardings=(self._placement, by_row), donate_argnums=1
        )
        self._resize_program: Any = jax.jit(
            self._resize, out_shardings=self._placement, static_argnums=1
        )
        self._wanted: set[tuple[Any, ...]] = set()

    @property
    def excess(self) -> int:
        """Programs that were compiled beyond one per shape: 0."""
        programs = (
            self._prefill_program,
            self._admit_program,
            self._decode_program,
            self._resize_program,
        )
        return max(0, sum(program._cache_size() for program in programs) - len(self._wanted))

    def generate(
        self,
        requests: Sequence[Request],
        *,
        temperature: float = 0.0,
        journal: Journal | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> list[Completion]:
        """Answer all requests; item i answers request i.

        Args:
            temperature: 0 is greedy; more only where `sampled`.
            journal: answers that are in it are not computed again, others are entered, `batch_size`
                at a time; it belongs to this one call, with these arguments.
            progress: called with the number of finished requests.

        Raises:
            TooLong: a prompt has more tokens than `prompt_length`.
            ValueError: a temperature without `sampled`.
        """
        if temperature and not self.sampled:
            raise ValueError(
                f"temperature = {temperature:g} of a SlotSampler that was made for greedy answers"
            )
        tokenizer = self.loaded.tokenizer
        prompts = [prompt_tokens(tokenizer, request.prompt) for request in requests]
        pad_left(prompts, self.prompt_length, tokenizer.pad_id)
        entries = [f"{entry:06d}" for entry in range(-(-len(requests) // self.batch_size))]
        kept = [journal.get(entry) if journal else None for entry in entries]
        known = {row["index"]: row["tokens"] for rows in kept if rows for row in rows}

        waiting = deque(sorted(range(len(requests)), key=lambda index: -len(prompts[index])))
        slots: list[_Row | None] = [None] * self.batch_size
        done: dict[int, list[int]] = {}
        pending: list[int] = []
        written = 0
        device = _Device(self, np.float32(temperature))
        while waiting or any(slots):
            free = [slot for slot, row in enumerate(slots) if row is None]
            while waiting and len(free) >= min(self.together, len(waiting)):
                chosen = [waiting.popleft() for _ in range(min(self.together, len(waiting)))]
                into, free = free[: len(chosen)], free[len(chosen) :]
                for slot, index in zip(into, chosen, strict=True):
                    slots[slot] = _Row(index, len(prompts[index]), known.get(index))
                if any(index not in known for index in chosen):
                    device.admit(
                        [prompts[index] for index in chosen],
                        [requests[index] for index in chosen],
                        into,
                    )
            self._advance(device, slots)
            for slot, row in enumerate(slots):
                if row is not None and self._ended(row):
                    done[row.index] = row.drawn
                    pending.append(row.index)
                    slots[slot] = None
            while len(pending) >= self.batch_size or (pending and len(done) == len(requests)):
                batch, pending = pending[: self.batch_size], pending[self.batch_size :]
                if journal and kept[written] is None:
                    journal.put(
                        entries[written],
                        [{"index": index, "tokens": done[index]} for index in batch],
                    )
                written += 1
            if progress:
                progress(len(done))
        return [completion(tokenizer, done[index]) for index in range(len(requests))]

    def _advance(self, device: "_Device", slots: Sequence[_Row | None]) -> None:
        """One chunk for every row."""
        rows = [row for row in slots if row is not None]
        context = max(row.length + max(len(row.drawn), 1) - 1 for row in rows)
        drawn = (
            device.decode(self._fit(self.cache_widths, context + self.chunk))
            if any(row.answer is None for row in rows)
            else None
        )
        for slot, row in enumerate(slots):
            if row is None:
                continue
            if row.answer is not None:
                row.drawn = row.answer[: (len(row.drawn) or 1) + self.chunk]
            else:
                assert drawn is not None
                row.drawn += drawn[slot, 1 if row.drawn else 0 :].tolist()
                end = self.loaded.tokenizer.end_of_turn_id
                if end in row.drawn:
                    del row.drawn[row.drawn.index(end) + 1 :]
                del row.drawn[self.response_length :]

    def _ended(self, row: _Row) -> bool:
        return (
            row.drawn[-1] == self.loaded.tokenizer.end_of_turn_id
            or len(row.drawn) == self.response_length
        )

    @staticmethod
    def _fit(widths: Sequence[int], needed: int) -> int:
        return next(width for width in widths if width >= needed)

    # What the host calls

    def programs(self, requests: Sequence[int], resident: Any = None) -> list[Program]:
        """What `generate` compiles, at its widest: of the lengths nothing is known yet. It compiles
        narrower ones, too, where they do.

        Args:
            requests: how many, of each call of `generate`; `calls` are those of prompts and
                responses that all have full length.
            resident: see `Program`.
        """
        weights = shapes(nnx.state(self.loaded.model))
        prompts = self._read([[]], [Request("", 0)], self.prompt_length)
        prefill = (weights, *rows_of(prompts, self.loaded.mesh), scalar(np.float32))
        block = self._shapes(self.together, self.prompt_length)
        slots = self._shapes(self.batch_size, self.cache_widths[-1])
        where = jax.ShapeDtypeStruct((self.together,), np.int32)
        reads = sum(-(-count // self.together) for count in requests)
        decodes = sum(-(-count // self.batch_size) for count in requests) * self.chunks
        return [
            Program("prefill", self._prefill_program, prefill, reads, resident),
            Program("admit", self._admit_program, (slots, block, where), reads, resident),
            Program(
                "decode",
                self._decode_program,
                (weights, slots, scalar(np.float32)),
                decodes,
                resident,
            ),
        ]

    def _shapes(self, rows: int, width: int) -> Any:
        found = jax.eval_shape(lambda: self._empty(rows, width))
        return {
            name: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=self._placement[name])
            for name, leaf in found.items()
        }

    def _read(
        self, prompts: Sequence[Sequence[int]], requests: Sequence[Request], width: int
    ) -> tuple[np.ndarray, ...]:
        """The arrays that `_prefill` takes, filled up by empty rows."""
        rows = pad_left(
            [*prompts, *[[]] * (self.together - len(prompts))], width, self.loaded.tokenizer.pad_id
        )
        seeds, numbers = np.zeros(self.together, np.uint32), np.zeros(self.together, np.int32)
        seeds[: len(requests)] = [request.seed for request in requests]
        numbers[: len(requests)] = [request.row for request in requests]
        return rows, seeds, numbers

    # Programs

    def _empty(self, rows: int, width: int) -> Slots:
        model: Any = self.loaded.model
        cache = model.init_cache(rows, width)
        integers = {
            name: jnp.zeros(rows, jnp.int32) for name in ("token", "length", "number", "row")
        }
        return (
            {name: cache[name] for name in _COLUMNS}
            | integers
            | {"seed": jnp.zeros(rows, jnp.uint32)}
        )

    def _resize(self, slots: Slots | None, width: int) -> Slots:
        """A cache of another width (of nothing, an empty one): columns come and go on the left,
        where no row has any."""
        if slots is None:
            return self._empty(self.batch_size, width)
        return slots | _widened(slots, width)

    def _prefill(
        self,
        weights: nnx.State,
        prompts: jax.Array,
        seeds: jax.Array,
        rows: jax.Array,
        temperature: jax.Array,
    ) -> Slots:
        """(F, width) left-padded prompts -> what their slots will hold, the first token drawn; of
        all widths, caches of one width."""
        model: Any = nnx.merge(self._graph, weights)
        real = prompts != self.loaded.tokenizer.pad_id
        positions = jnp.maximum(jnp.cumsum(real, -1) - 1, 0)
        hidden, cache = model(
            prompts, positions, real.astype(jnp.int32), model.init_cache(*prompts.shape)
        )
        start = jnp.zeros_like(rows)
        token = self._draw(model, hidden[:, -1], _keys(seeds, rows), start, temperature)
        of_rows = {
            "token": token,
            "length": real.sum(-1, dtype=jnp.int32),
            "number": start + 1,
            "seed": seeds,
            "row": rows,
        }
        return _widened(cache, self.prompt_length) | of_rows

    def _admit(self, slots: Slots, block: Slots, where: jax.Array) -> Slots:
        """Put the rows of a block into the slots `where` (F,); a slot that there is not takes
        none."""
        end = slots["segments"].shape[1]
        width = min(end, block["segments"].shape[1])  # the rest is padding
        columns = slice(end - width, end)
        fresh = (
            jnp.zeros((where.shape[0], slots["segments"].shape[1]), jnp.int32)
            .at[:, columns]
            .set(block["segments"][:, -width:])
        )
        admitted = {
            name: slots[name].at[where].set(block[name], mode="drop")
            for name in ("token", "length", "number", "seed", "row")
        }
        caches = {
            name: (
                slots[name].at[:, where, :, columns].set(block[name][:, :, :, -width:], mode="drop")
            )
            for name in ("k", "v")
        }
        return admitted | caches | {"segments": slots["segments"].at[where].set(fresh, mode="drop")}

    def _decode(
        self, weights: nnx.State, slots: Slots, temperature: jax.Array
    ) -> tuple[Slots, jax.Array]:
        """A chunk of C tokens for every slot -> the slots, and (B, 1 + C) tokens: the last one
        before the chunk, and those of it."""
        model = nnx.merge(self._graph, weights)
        keys, length = _keys(slots["seed"], slots["row"]), slots["length"]
        ones = jnp.ones((length.shape[0], 1), jnp.int32)
        cache = {
            name: jnp.roll(slots[name], -self.chunk, axis=axis) for name, axis in _COLUMNS.items()
        }
        cache["index"] = jnp.int32(slots["segments"].shape[1] - self.chunk)

        def step(carry: Any, _: None) -> tuple[Any, jax.Array]:
            token, number, cache = carry
            hidden, cache = model(token[:, None], (length + number - 1)[:, None], ones, cache)
            token = self._draw(model, hidden[:, 0], keys, number, temperature)
            return (token, number + 1, cache), token

        with jax.named_scope("decode"):
            (token, number, cache), drawn = jax.lax.scan(
                step, (slots["token"], slots["number"], cache), length=self.chunk
            )
        tokens = jnp.concatenate([slots["token"][None], drawn]).swapaxes(0, 1)
        return (
            slots
            | {name: cache[name] for name in _COLUMNS}
            | {
                "token": token,
                "number": number,
            },
            tokens,
        )

    def _draw(
        self,
        model: Any,
        hidden: jax.Array,
        keys: jax.Array,
        numbers: jax.Array,
        temperature: jax.Array,
    ) -> jax.Array:
        """(B, D) hidden states -> (B,) tokens; `numbers`: which token of its response each is.
        Greedy ones take no random numbers."""
        logits = model.unembed(hidden)

        def noisy(logits: jax.Array) -> jax.Array:
            noise = jax.vmap(
                lambda key, number: jax.random.gumbel(
                    jax.random.fold_in(key, number), logits.shape[-1:]
                )
            )(keys, numbers)
            return logits + temperature * noise

        if self.sampled:
            logits = jax.lax.cond(temperature > 0, noisy, lambda logits: logits, logits)
        return first_best(logits)


class _Device:
    """The slots on the devices, while `generate` runs."""

    def __init__(self, sampler: SlotSampler, temperature: np.float32) -> None:
        self._sampler, self._temperature = sampler, temperature
        self._weights = nnx.state(sampler.loaded.model)
        self._slots: Slots | None = None
        self._width = 0

    def admit(
        self, prompts: Sequence[Sequence[int]], requests: Sequence[Request], into: Sequence[int]
    ) -> None:
        """Read prompts, the longest first, into slots."""
        sampler = self._sampler
        mesh, length = sampler.loaded.mesh, len(prompts[0])
        width = sampler._fit(sampler.prompt_widths, length)
        where = np.full(sampler.together, sampler.batch_size, np.int32)
        where[: len(into)] = into
        rows = spread(sampler._read(prompts, requests, width), mesh)
        if self._width < length + sampler.chunk:  # which it will need in a moment
            self._resize(sampler._fit(sampler.cache_widths, length + sampler.chunk))
        sampler._wanted |= {("prefill", width), ("admit", self._width)}
        with jax.set_mesh(mesh):
            block = sampler._prefill_program(self._weights, *rows, self._temperature)
            self._slots = sampler._admit_program(self._slots, block, where)

    def decode(self, width: int) -> np.ndarray:
        """One chunk with a cache of this width; `SlotSampler._decode`'s tokens."""
        if self._width != width:
            self._resize(width)
        self._sampler._wanted.add(("decode", width))
        with jax.set_mesh(self._sampler.loaded.mesh):
            self._slots, tokens = self._sampler._decode_program(
                self._weights, self._slots, self._temperature
            )
        return fetch(tokens)

    def _resize(self, width: int) -> None:
        self._sampler._wanted.add(("resize", self._width, width))
        with jax.set_mesh(self._sampler.loaded.mesh):
            self._slots, self._width = self._sampler._resize_program(self._slots, width), width


def _halves(longest: int) -> list[int]:
    widths = [longest]
    while SHORTEST <= _rounded(widths[0] / 2) < widths[0]:
        widths.insert(0, _rounded(widths[0] / 2))
    return widths


def _quarters(longest: int) -> list[int]:
    return sorted({min(longest, _rounded(longest * quarter / 4)) for quarter in range(1, 5)})


def _rounded(width: float) -> int:
    """Up to a multiple of 8."""
    return math.ceil(width / 8) * 8


def _keys(seeds: jax.Array, rows: jax.Array) -> jax.Array:
    keys: jax.Array = jax.vmap(lambda seed, row: jax.random.fold_in(jax.random.key(seed), row))(
        seeds, rows
    )
    return keys


def _widened(cache: Slots, width: int) -> Slots:
    """The k, v and segments of a cache, of another width: columns come and go on the left."""

    def widened(array: jax.Array, axis: int) -> jax.Array:
        missing = width - array.shape[axis]
        if missing <= 0:
            return jax.lax.slice_in_dim(array, -missing, None, axis=axis)
        return jnp.pad(array, [(missing if each == axis else 0, 0) for each in range(array.ndim)])

    return {name: widened(cache[name], axis) for name, axis in _COLUMNS.items()}
