"""The requests of OpenAI's API that we answer, and its errors.

https://platform.openai.com/docs/api-reference/chat/create and .../completions/create. An
unsupported parameter that would change the answer is refused, never ignored.
"""

import json
import re
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError

from schemas.base import StrictModel, nearest, problem_text, without_nulls
from tasks.data.tokens import Tokenizer, Turns, prompt_tokens
from tasks.serving.request_programs import LIKELIEST

MOST_CHOICES = 16
"""The most answers to one prompt, and the most prompts of one request."""


class Refused(Exception):
    """A refused request: the status, and the fields of OpenAI's error object."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def body(self) -> dict[str, Any]:
        """The JSON of the answer."""
        known = {401: "authentication_error", 429: "rate_limit_error"}
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": str(self),
                "type": known.get(self.status, kind),
                "param": self.param,
                "code": self.code,
            }
        }


_BRANCH = re.compile(r"str$|tuple\[")
"""pydantic's names of a union's branches."""


class _StreamOptions(StrictModel):
    include_usage: bool = False
    include_obfuscation: bool = False


class Request(StrictModel):
    """The fields of both kinds of request.

    Attributes:
        n: answers to each prompt.
        max_tokens: None for the request kind's default.
        temperature: 0 is greedy.
        seed: the same seed gives the same answers; None for a random one.
        stop: the answer ends before the first of them.
    """

    DEFAULT_TOKENS: ClassVar[int | None]

    model: str
    n: int = Field(default=1, ge=1, le=MOST_CHOICES)
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0, le=2)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: str | tuple[str, ...] = ()
    stream: bool = False
    stream_options: _StreamOptions = _StreamOptions()
    user: str = ""
    # values that change nothing, which clients send
    frequency_penalty: float = Field(default=0.0, ge=0, le=0)
    presence_penalty: float = Field(default=0.0, ge=0, le=0)
    logit_bias: dict[str, float] = Field(default_factory=dict, max_length=0)
    store: bool = False
    metadata: dict[str, str] = Field(default_factory=dict)
    service_tier: str = ""
    safety_identifier: str = ""
    prompt_cache_key: str = ""

    @classmethod
    def read(cls, body: bytes) -> Self:
        """A request's JSON; a null counts as left out. Raises Refused."""
        try:
            value = json.loads(body)
            return cls.parse(without_nulls(value))
        except ValidationError as error:
            # of a union the branch that fits furthest; its name is no part of the request
            problem = max(error.errors(), key=lambda one: len(one["loc"]))
            parts = (str(part) for part in problem["loc"])
            param = ".".join(part for part in parts if not _BRANCH.match(part))
            raise Refused(400, _said(cls, problem, param), param=param or None) from error
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"the body is not valid JSON: {error}") from error

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop sequences. Raises Refused when one is empty."""
        stops = (self.stop,) if isinstance(self.stop, str) else self.stop
        if "" in stops or len(stops) > MOST_CHOICES:
            raise Refused(400, f"stop: up to {MOST_CHOICES} texts, none empty", param="stop")
        return stops

    @property
    def told(self) -> int | None:
        """How many of the likeliest tokens to return beside each; None: no log-probabilities."""
        raise NotImplementedError

    def prompts(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The tokens of each prompt. Raises Refused."""
        raise NotImplementedError


class _TextPart(StrictModel):
    type: Literal["text"]
    text: str


class _Message(StrictModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | tuple[_TextPart, ...]
    name: str = ""

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class _Text(StrictModel):
    type: Literal["text"] = "text"


class ChatRequest(Request):
    """`POST /v1/chat/completions`."""

    DEFAULT_TOKENS: ClassVar[int | None] = None

    messages: tuple[_Message, ...] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=LIKELIEST)
    response_format: _Text = _Text()
    tools: tuple[Any, ...] = Field(default=(), max_length=0)
    tool_choice: Literal["none", "auto"] = "auto"
    parallel_tool_calls: bool = True

    @property
    def told(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise Refused(400, "top_logprobs needs logprobs = true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None

    def prompts(self, tokenizer: Tokenizer) -> list[list[int]]:
        return [prompt_tokens(tokenizer, *self.conversation())]

    def conversation(self) -> tuple[str, Turns]:
        """The user's last message, and the turns before it. The system's message precedes the
        user's first, as in Gemma's template. Raises Refused."""
        first = self.messages[0]
        rest = self.messages[first.role in ("system", "developer") :]
        roles = [one.role for one in rest]
        if not roles or roles != [("user", "assistant")[turn % 2] for turn in range(len(roles))]:
            raise Refused(
                400,
                "the messages are at most one of the system, and then the user's and the"
                " assistant's by turns, a user's first",
                param="messages",
            )
        if roles[-1] != "user":
            raise Refused(400, "the last message must be the user's", param="messages")
        texts = [one.text for one in rest]
        if first is not rest[0]:
            texts[0] = f"{first.text}\n\n{texts[0].strip()}"
        return texts[-1], tuple(zip(texts[:-1:2], texts[1::2], strict=True))


class CompletionRequest(Request):
    """`POST /v1/completions`: text for the model to continue, behind `<bos>` and without a
    template, or its token ids, unchanged."""

    DEFAULT_TOKENS: ClassVar[int | None] = 16

    prompt: str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...]
    logprobs: int | None = Field(default=None, ge=0, le=LIKELIEST)
    echo: Literal[False] = False
    best_of: int = Field(default=1, ge=1, le=1)

    @property
    def told(self) -> int | None:
        return self.logprobs

    def prompts(self, tokenizer: Tokenizer) -> list[list[int]]:
        given = self.prompt
        one = isinstance(given, str) or (given and isinstance(given[0], int))
        prompts: Any = [given] if one else given
        if not 0 < len(prompts) <= MOST_CHOICES:
            raise Refused(400, f"prompt: from 1 to {MOST_CHOICES} prompts", param="prompt")
        tokens = [
            [tokenizer.bos_id, *tokenizer.encode(prompt)]
            if isinstance(prompt, str)
            else list(prompt)
            for prompt in prompts
        ]
        pad, most = tokenizer.pad_id, len(tokenizer) - 1
        if any(not one or min(one) < 0 or max(one) > most or pad in one for one in tokens):
            raise Refused(
                400,
                f"prompt: give each some ids, from 0 to {most} without {pad}, which is padding",
                param="prompt",
            )
        return tokens


def _said(model: type[StrictModel], problem: Any, param: str) -> str:
    if problem["type"] == "extra_forbidden":
        return f"{param} is not supported.{nearest(param, model.model_fields)}"
    if problem.get("ctx", {}).get("max_length") == 0:
        return f"{param} is not supported; leave it out."
    return f"{param or 'the body'}: {problem_text(problem)}"
