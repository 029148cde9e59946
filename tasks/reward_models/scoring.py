"""Scores traces with a reward model, in one compiled program of a fixed shape; each device has a
part of the rows.

It scores the trace in the format's form, without a response's white space between or inside tags.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from tasks.data.tokens import pad_left
from tasks.devices.hosts import fetch, spread
from tasks.models.loading import LoadedModel
from tasks.planning.programs import Program, compilations, rows, shapes
from tasks.reward_models.steps import TraceRow, response_arrays
from tasks.reward_models.traces import response_scores, soft_minimum


class Scores(NamedTuple):
    """Scores of a trace, in logits: of the whole, of each step, and of the answer. The whole is the
    soft minimum of the others."""

    trace: float
    steps: list[float]
    answer: float


class TraceScorer:
    """Scores traces with a model that has a scalar head."""

    def __init__(self, loaded: LoadedModel, batch_size: int, lengths: Any) -> None:
        """Args: batch_size: rows per call of the program; lengths: what has `prompt_length` and
        `response_length`, in tokens, fixed: a config, or a calibration."""
        self.loaded, self.batch_size = loaded, batch_size
        self.prompt_length: int = lengths.prompt_length
        self.response_length: int = lengths.response_length
        self._graph, self._state = nnx.split(loaded.model)
        self._program: Any = jax.jit(self._score_traces)

    @property
    def compiles(self) -> int:
        """The number of programs that this scorer has compiled: 1 after any number of calls."""
        return compilations(self._program)

    def score(self, asked: Sequence[TraceRow]) -> list[Scores]:
        """The scores of any number of rows that fit, in order; the last batch is padded with its
        last row."""
        tokenizer, found = self.loaded.tokenizer, list[Scores]()
        for start in range(0, len(asked), self.batch_size):
            batch = list(asked[start : start + self.batch_size])
            filled = batch + batch[-1:] * (self.batch_size - len(batch))
            prompts = pad_left([row.prompt for row in filled], self.prompt_length, tokenizer.pad_id)
            ids, ends = response_arrays(
                [row.response for row in filled], self.response_length, tokenizer.pad_id
            )
            with jax.set_mesh(self.loaded.mesh):
                scored = self._program(self._state, *spread((prompts, ids, ends), self.loaded.mesh))
            traces, tokens = map(fetch, scored)
            for index, row in enumerate(batch):
                *steps, answer = tokens[index, row.response.ends].tolist()
                found.append(Scores(float(traces[index]), steps, answer))
        return found

    def program(self, calls: float, resident: Any = None) -> Program:
        """The program that `score` compiles. `calls`: the number of batches; `resident`: see
        `Program`."""
        prompts, responses = (
            np.zeros((self.batch_size, width), np.int32)
            for width in (self.prompt_length, self.response_length)
        )
        batch = rows((prompts, responses, responses.astype(bool)), self.loaded.mesh)
        arguments = (shapes(self._state), *batch)
        return Program("score_traces", self._program, arguments, calls, resident)

    def _score_traces(
        self, state: nnx.State, prompts: jax.Array, responses: jax.Array, ends: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """The program: (B, P) and (B, R) ids, (B, R) bool -> (B,) scores of traces and (B, R) of
        tokens."""
        model, pad_id = nnx.merge(self._graph, state), self.loaded.tokenizer.pad_id
        scores = response_scores(model, prompts, responses, pad_id)
        return soft_minimum(scores, ends), scores
