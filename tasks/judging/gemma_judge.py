"""A judge in this process: one prefill of a Gemma gives the probability of each choice as the next
token (G-Eval, 2303.16634).

Nothing is decoded: a ruling costs one pass over its prompt, always comes, and is continuous, where
a sampled rating is one of ten numbers. The judge has devices of its own
(`tasks.devices.hosts.halves`, G-RaR's split mesh). The thread of the reward dispatches its program,
so it computes while the policy samples or is updated; a model too large for one device is sharded
over its half.

Shapes are fixed: (B, P) prompts, the last batch of a call padded, and `MOST_CHOICES` choices a row,
so that questions with different choices share a batch and the program.
"""

import json
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from schemas.base import InputError, StageFailed, digest
from tasks.contract.reward import Resources
from tasks.data.tokens import Tokenizer, pad_left, prompt_tokens
from tasks.devices.hosts import by_rows, fetch, make_mesh, spread
from tasks.judging.judge import GemmaJudgeConfig, Judge, Question, Ruling
from tasks.models.loading import LoadedModel, base_model, model_config
from tasks.models.model_source import model_dependencies
from tasks.models.vocabulary import positions_of
from tasks.planning.programs import Program, abstract_model, compilations, rows, shapes

VERSION = 1

MOST_CHOICES = 16
"""The most choices of a question."""

_STORE_THREADS = 32


class Rater:
    """The program: (B, P) left-padded prompts and (B, MOST_CHOICES) token ids -> (B, MOST_CHOICES)
    float32 probabilities.

    Attributes:
        loaded: the judge, on its devices.
        compiles: programs compiled so far: 1 after any number of calls.
    """

    def __init__(self, loaded: LoadedModel, batch_size: int, prompt_length: int) -> None:
        self.loaded, self.batch_size, self.prompt_length = loaded, batch_size, prompt_length
        self._graph, self._state = nnx.split(loaded.model)
        self._program: Any = jax.jit(self._judge)
        self._dispatching = threading.Lock()

    @property
    def compiles(self) -> int:
        return compilations(self._program)

    def rate(
        self, prompts: Sequence[Sequence[int]], choices: Sequence[Sequence[int]]
    ) -> np.ndarray:
        """(N, MOST_CHOICES) probabilities of token ids `choices[i]` after `prompts[i]`; columns
        beyond a row's choices are meaningless.

        All batches are dispatched before the first result is awaited. Threads may call it
        concurrently: the batches of one call are dispatched before those of the next, in the same
        order on all devices, since these exchange parts of the weights.
        """
        tokens = pad_left(prompts, self.prompt_length, self.loaded.tokenizer.pad_id)
        ids = np.array([[*row, *[0] * (MOST_CHOICES - len(row))] for row in choices], np.int32)
        found: list[jax.Array] = []
        with self._dispatching, jax.set_mesh(self.loaded.mesh):
            for start in range(0, len(tokens), self.batch_size):
                which = np.minimum(np.arange(start, start + self.batch_size), len(tokens) - 1)
                batch = spread((tokens[which], ids[which]), self.loaded.mesh)
                found.append(self._program(self._state, *batch))
        if self.compiles > 1:
            raise StageFailed(
                f"the judge compiled {self.compiles} times; its program is compiled once (fixed"
                " shapes)"
            )
        return np.concatenate([fetch(batch) for batch in found])[: len(tokens)]

    def program(self, calls: float) -> Program:
        """The programs that `rate` compiles."""
        widths = self.prompt_length, MOST_CHOICES
        empty = tuple(np.zeros((self.batch_size, width), np.int32) for width in widths)
        batch = rows(empty, self.loaded.mesh)
        return Program("judge", self._program, (shapes(self._state), *batch), calls)

    def _judge(self, state: nnx.State, prompts: jax.Array, choices: jax.Array) -> jax.Array:
        model = nnx.merge(self._graph, state)
        real = prompts != self.loaded.tokenizer.pad_id
        hidden, _ = model(prompts, positions_of(real), real.astype(jnp.int32))
        logits = model.unembed(hidden[:, -1])
        total = jax.nn.logsumexp(logits, -1, keepdims=True)
        return by_rows(jnp.exp(jnp.take_along_axis(logits, choices, -1) - total))


def programs(config: GemmaJudgeConfig, model: LoadedModel, questions: float) -> list[Program]:
    """The programs that the judge compiles on the devices of `model`, to answer so many
    questions."""
    mesh = make_mesh({"the judge's batch_size": config.batch_size}, list(model.mesh.devices.flat))
    judge = abstract_model(config.model, model_config(config.model), mesh)
    rater = Rater(judge, config.batch_size, config.prompt_length)
    return [rater.program(questions / config.batch_size)]


class GemmaJudge(Judge):
    """See `open_judge`."""

    def __init__(self, config: GemmaJudgeConfig, resources: Resources) -> None:
        super().__init__(config.max_abstained)
        self._config, self._answers = config, resources.answers
        shape = [config.prompt_length, config.batch_size]
        self._identity = [VERSION, config.model, model_dependencies(config.model), *shape]
        mesh = make_mesh({"the judge's batch_size": config.batch_size}, resources.devices)
        # gemma3-tiny, which is made at random, is the same judge in every stage
        loaded = base_model(config.model, 0, mesh)
        self.rater = Rater(loaded, config.batch_size, config.prompt_length)
        self._store = ThreadPoolExecutor(_STORE_THREADS, "rulings")

    def _ask(self, questions: Iterable[Question]) -> list[Ruling]:
        every = [(self._key(one), one) for one in questions]
        asked = dict(every)
        stored = zip(asked, self._store.map(self._stored, asked), strict=True)
        rulings = {key: ruling for key, ruling in stored if ruling is not None}
        tokenizer, new = self.rater.loaded.tokenizer, {}
        for key in [key for key in asked if key not in rulings]:
            prompt = prompt_tokens(tokenizer, asked[key].text)
            choices = _choice_ids(tokenizer, self._config.model, asked[key])
            most = self._config.prompt_length
            if len(prompt) > most:
                problem = f"the question has more than prompt_length = {most} tokens"
                rulings[key] = Ruling(problem=problem, digest=key)
            else:
                new[key] = (prompt, choices)
        if new:
            found = zip(new, self.rater.rate(*zip(*new.values(), strict=True)), strict=True)
            values = {key: tuple(row[: len(new[key][1])].tolist()) for key, row in found}
            bodies = (json.dumps(row).encode() for row in values.values())
            list(self._store.map(self._answers.put, values, bodies))
            rulings |= {key: Ruling(probabilities=row, digest=key) for key, row in values.items()}
        return [rulings[key] for key, _ in every]

    def _key(self, one: Question) -> str:
        messages = [{"role": "user", "content": one.text}]
        return digest(["judge", self._identity, messages, one.choices, one.sample])

    def _stored(self, key: str) -> Ruling | None:
        raw = self._answers.get(key)
        if raw is None:
            return None
        return Ruling(probabilities=tuple(json.loads(raw)), digest=key, cached=True)

    def close(self) -> None:
        self._store.shutdown()


def _choice_ids(tokenizer: Tokenizer, model: str, question: Question) -> list[int]:
    """The token of each choice. Raises InputError: there are none, two are the same, or one is not
    exactly one token."""
    if not 0 < len(set(question.choices)) == len(question.choices) <= MOST_CHOICES:
        raise InputError(
            f"judge {model}: a question needs 1 to {MOST_CHOICES} different choices, got"
            f" {list(question.choices)}."
        )
    encoded = [tokenizer.encode(choice) for choice in question.choices]
    for choice, ids in zip(question.choices, encoded, strict=True):
        if len(ids) != 1 or tokenizer.decode(ids) != choice:
            raise InputError(
                f"judge {model}: the choice {choice!r} is {len(ids)} tokens of its vocabulary, and"
                " must be one."
            )
    return [ids[0] for ids in encoded]
