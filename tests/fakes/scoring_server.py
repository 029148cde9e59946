"""A server that scores prompts as vLLM's `/v1/completions` does (echo, return_tokens_as_token_ids),
with a model's true numbers."""

import threading
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from tasks.models.loading import LoadedModel
from tests.fakes.http import Handler, HttpServer

Fault = Callable[[int, dict[str, Any]], int | dict[str, Any] | None]
"""(number of the request, from 0; a right answer) -> a status to refuse it with, another answer, or
None."""


class ScoringServer:
    """The server, in a thread of the test's process.

    Args:
        length: tokens of the longest text.

    Attributes:
        seen: the bodies of all requests.
    """

    def __init__(
        self, loaded: LoadedModel, length: int, fault: Fault = lambda number, answer: None
    ) -> None:
        self.seen: list[dict[str, Any]] = []
        self._length, self._fault, self._lock = length, fault, threading.Lock()

        @jax.jit
        def logps(tokens: jax.Array) -> jax.Array:
            # what follows a text changes nothing before it
            hidden, _ = loaded.model(tokens, jnp.arange(length)[None], jnp.ones_like(tokens))
            found = jax.nn.log_softmax(loaded.model.unembed(hidden))[0, :-1]
            return jnp.take_along_axis(found, tokens[0, 1:, None], axis=-1)[:, 0]

        self._logps = logps

    def __enter__(self) -> Self:
        scoring = self

        class Completions(Handler):
            def do_POST(self) -> None:
                assert self.path == "/v1/completions", self.path
                self.answer(*scoring.answer(self.body()))

        self._server = HttpServer(Completions)
        self.url = f"{self._server.url}/v1"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self._lock:
            number = len(self.seen)
            self.seen.append(body)
        answer = self._scored(body)
        fault = self._fault(number, answer)
        if isinstance(fault, int):
            return fault, {"error": {"message": "as the test wants it"}}
        return 200, answer if fault is None else fault

    def _scored(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = body["prompt"]
        asked = {"echo": True, "max_tokens": 0, "logprobs": 1, "temperature": 1}
        assert body.items() >= asked.items(), body
        tokens = np.zeros((1, self._length), np.int32)
        tokens[0, : len(ids)] = ids
        values = [None, *np.asarray(self._logps(tokens))[: len(ids) - 1].tolist()]
        prefix = "token_id:" if body.get("return_tokens_as_token_ids") else ""
        names = [f"{prefix}{token}" for token in ids]
        pairs = zip(names[1:], values[1:], strict=True)
        top = [None, *({name: value, "token_id:9": -0.5} for name, value in pairs)]
        logprobs = {"text_offset": [0] * len(ids), "token_logprobs": values}
        logprobs |= {"tokens": names, "top_logprobs": top}
        usage = {"prompt_tokens": len(ids), "total_tokens": len(ids), "completion_tokens": 0}
        choice = {"index": 0, "text": "...", "logprobs": logprobs, "finish_reason": "length"}
        answer = {"id": "cmpl-1", "object": "text_completion", "created": 1, "usage": usage}
        return {**answer, "model": body["model"], "choices": [{**choice, "prompt_logprobs": None}]}
