"""Writes the engine's answers in OpenAI's format, whole or streamed. Both consist of the same
pieces, so that they agree."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tasks.chat.request import LIMITS
from tasks.data.tokens import Tokenizer
from tasks.sampling.detokenizer import Detokenizer
from tasks.serving.continuous_batching import Drawn, Engine, Row, Sampling
from tasks.serving.protocol import ChatRequest, Refused, Request
from tasks.serving.request_programs import EVERY


@dataclass(frozen=True)
class _Token:
    """A token sent to the client: its id, the place where its text begins, its log-probability, and
    the likeliest tokens with theirs."""

    id: int
    start: int
    logp: float
    likeliest: Sequence[tuple[int, float]]


@dataclass(frozen=True)
class Piece:
    """The next piece of choice `index`."""

    index: int
    text: str = ""
    tokens: Sequence[_Token] = ()
    finish: str | None = None


@dataclass
class _Choice:
    """An answer so far; it has `tokens` only when log-probabilities are wanted."""

    detokenizer: Detokenizer
    tokens: list[_Token] = field(default_factory=list)
    told: int = 0
    finish: str | None = None

    @property
    def count(self) -> int:
        """Its tokens, with the terminator if that ended it."""
        ended = self.finish == "stop" and not self.detokenizer.stopped
        return len(self.detokenizer.tokens) + ended


class Answer:
    """The answers to one request. Creating it puts its rows into the engine's queue."""

    def __init__(
        self, engine: Engine, request: Request, prompts: Sequence[Sequence[int]], name: str
    ) -> None:
        """Args: prompts: the request's, in tokens. Raises Refused, Busy or Closed."""
        self._request, self._name, self._engine = request, name, engine
        self._tokenizer: Tokenizer = engine.loaded.tokenizer
        most = self._most(prompts)
        self._prompt_tokens = sum(map(len, prompts))
        stops, told = request.stops, request.told
        seed = secrets.randbits(32) if request.seed is None else request.seed % 2**32
        loop = asyncio.get_running_loop()
        self._heard: asyncio.Queue[tuple[int, Drawn]] = asyncio.Queue()
        self._choices: list[_Choice] = []
        self._rows: list[Row] = []
        for prompt in prompts:
            for number in range(request.n):
                index = len(self._rows)

                def tell(drawn: Drawn, index: int = index) -> None:
                    loop.call_soon_threadsafe(self._heard.put_nowait, (index, drawn))

                top_p = request.top_p if request.top_p < 1 else EVERY
                how = Sampling(request.temperature, top_p, seed, number, told is not None)
                self._rows.append(Row(prompt, most, how, tell))
                detokenizer = Detokenizer(self._tokenizer, stops, by_token=told is not None)
                self._choices.append(_Choice(detokenizer))
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid4().hex}"
        self._created = int(time.time())
        engine.ask(self._rows)

    @property
    def _chat(self) -> bool:
        return isinstance(self._request, ChatRequest)

    def _most(self, prompts: Sequence[Sequence[int]]) -> int:
        request, longest = self._request, max(map(len, prompts))
        if longest > self._engine.prompt_length:
            raise Refused(
                400,
                f"the prompt has {longest} tokens, and this endpoint takes"
                f" {self._engine.prompt_length}",
                param="messages" if self._chat else "prompt",
                code="context_length_exceeded",
            )
        bounds: list[Any] = [(one, getattr(request, one, None)) for one in reversed(LIMITS)]
        default = "max_tokens", request.DEFAULT_TOKENS or self._engine.response_length
        name, most = next((one for one in bounds if one[1]), default)
        if most > self._engine.response_length:
            raise Refused(
                400,
                f"{name} = {most}, and answers of this endpoint have at most"
                f" {self._engine.response_length} tokens",
                param=name,
            )
        return int(most)

    def leave(self) -> None:
        """Give the slots of its rows to others, because nobody waits for it."""
        for row in self._rows:
            row.left = True

    async def pieces(self) -> AsyncIterator[Piece]:
        """All pieces, as they arrive. The last of each choice has a `finish`, which is `closed` if
        the engine ended early."""
        try:
            while any(choice.finish is None for choice in self._choices):
                index, drawn = await self._heard.get()
                choice = self._choices[index]
                if choice.finish is None:
                    yield self._piece(index, choice, drawn)
                    self._rows[index].left = choice.finish is not None
        finally:
            self.leave()

    def _piece(self, index: int, choice: _Choice, drawn: Drawn) -> Piece:
        said = list(drawn.tokens)
        if drawn.finish == "stop":  # the terminator
            said.pop()
        text = choice.detokenizer.add(said, drawn.finish is not None)
        starts = choice.detokenizer.starts[len(choice.tokens) :]
        told = zip(said, starts, drawn.logps, drawn.likeliest, strict=False)
        choice.tokens += [_Token(*one) for one in told]
        before, choice.told = choice.told, choice.detokenizer.told
        choice.finish = "stop" if choice.detokenizer.stopped else drawn.finish
        return Piece(index, text, choice.tokens[before : choice.told], choice.finish)

    async def whole(self) -> dict[str, Any]:
        """The whole answers. Raises Refused when the engine ends early."""
        async for piece in self.pieces():
            if piece.finish == "closed":
                raise closed()
        choices = []
        for index, choice in enumerate(self._choices):
            told = self._logprobs(choice.tokens[: choice.told])
            text = choice.detokenizer.text
            said: dict[str, Any] = {"text": text}
            if self._chat:
                said = {"message": {"role": "assistant", "content": text}}
            finish = {"logprobs": told, "finish_reason": choice.finish}
            choices.append({"index": index, **said, **finish})
        return self._object("", choices) | {"usage": self._usage()}

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """The answers as server-sent events, one a piece; the last is an error if the engine ends
        early."""
        if self._chat:
            for index in range(len(self._choices)):
                yield self._event(Piece(index), {"role": "assistant", "content": ""})
        async for piece in self.pieces():
            if piece.finish == "closed":
                yield closed().body()
                return
            if piece.text or piece.finish:
                yield self._event(piece, {"content": piece.text} if piece.text else {})
        if self._request.stream_options.include_usage:
            yield self._object(".chunk", []) | {"usage": self._usage()}

    def _event(self, piece: Piece, delta: dict[str, str]) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": delta} if self._chat else {"text": piece.text}
        told = self._logprobs(piece.tokens) if piece.tokens else None
        choice = {"index": piece.index, **said, "logprobs": told, "finish_reason": piece.finish}
        return self._object(".chunk", [choice])

    def _object(self, ending: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = f"chat.completion{ending}" if self._chat else "text_completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._name,
            "choices": choices,
            # of every event, once it is asked for
            **({"usage": None} if self._request.stream_options.include_usage else {}),
        }

    def _usage(self) -> dict[str, int]:
        answered = sum(choice.count for choice in self._choices)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": answered,
            "total_tokens": self._prompt_tokens + answered,
        }

    def _logprobs(self, tokens: Sequence[_Token]) -> dict[str, Any] | None:
        wanted = self._request.told
        if wanted is None:
            return None
        best = [[self._told(*pair) for pair in one.likeliest[:wanted]] for one in tokens]
        own = [self._told(one.id, one.logp) for one in tokens]
        if self._chat:
            content = [
                {**one, "top_logprobs": likely} for one, likely in zip(own, best, strict=True)
            ]
            return {"content": content, "refusal": None}
        return {
            "tokens": [one["token"] for one in own],
            "token_logprobs": [one["logprob"] for one in own],
            "top_logprobs": [  # the likeliest last: of those with one text it stays
                {one["token"]: one["logprob"] for one in reversed(likely)} for likely in best
            ],
            "text_offset": [one.start for one in tokens],
        }

    def _told(self, token: int, logp: float) -> dict[str, Any]:
        """A token as OpenAI writes it. A part of a character has no text, and its bytes are left
        out."""
        text = self._tokenizer.decode([token])
        known = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": logp, "bytes": known}


def closed() -> Refused:
    """The error when the endpoint ends."""
    return Refused(503, "the endpoint is stopping; ask again", code="server_stopping")
