"""One request to a model: its content, its digest, and the most it can cost; and a config's fields
of that model."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from schemas.base import InputError, StrictModel, canonical_json, digest

LIMITS = ("max_tokens", "max_completion_tokens")
"""The parameters that bound a response; reasoning models of OpenAI take the second only."""

ReplyFormat = Literal["json_schema", "json_object", "none"]
"""The form of its answer that an endpoint is told beside the words: `response_format`, as OpenAI,
vLLM and Gemini take it."""

_PER_MESSAGE = 16  # tokens that a chat template puts around a message
_PER_REQUEST = 256  # and around all of them: gpt-oss writes its system message itself


class ApiModel(StrictModel):
    """A model behind an OpenAI-compatible API, in a config.

    Attributes:
        provider: whose endpoint: `<PROVIDER>_BASE_URL` and `<PROVIDER>_API_KEY`
            (`tasks.chat.provider`). `openai` and `gemini` need no URL.
        model: the provider's name of it.
    """

    provider: str
    model: str = Field(min_length=1)

    @field_validator("provider")
    @classmethod
    def _is_a_name(cls, provider: str) -> str:
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", provider):
            raise ValueError(
                "a provider is a lower-case name such as openai, gemini or vllm; its URL goes into"
                " <PROVIDER>_BASE_URL"
            )
        return provider


class ChatModel(ApiModel):
    """Such a model that answers messages.

    Attributes:
        limit_parameter: the request's name for `max_response_tokens`; OpenAI's reasoning models
            accept only the second one.
        parameters: other parameters of the request, sent as they are, e.g. `{ top_p = 0.95,
            reasoning_effort = "high" }`.
        OWN, BY: parameters that other fields decide, or that would make a response another thing
            than one text; and the fields.
    """

    OWN: ClassVar = frozenset({"model", "messages", "temperature", *LIMITS, "n", "stream"})
    BY: ClassVar = "model, temperature or max_response_tokens"

    limit_parameter: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    parameters: dict[str, Any] = Field(default_factory=dict)

    @field_validator("parameters")
    @classmethod
    def _are_others(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(cls.OWN & parameters.keys()):
            raise ValueError(f"{', '.join(taken)}: set by {cls.BY}; leave it out of parameters")
        return parameters

    def parameters_for(self, temperature: float, max_response_tokens: int) -> dict[str, Any]:
        """All parameters of a request with this temperature and this bound."""
        limit = self.limit_parameter
        return {**self.parameters, "temperature": temperature, limit: max_response_tokens}


def response_format(form: ReplyFormat, name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """The parameters that tell an endpoint the form of its answer; empty for none."""
    if form == "none":
        return {}
    if form == "json_object":
        return {"response_format": {"type": "json_object"}}
    described = {"name": name, "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": described}}


def object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object with exactly these properties."""
    closed = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **closed}


@dataclass(frozen=True)
class ChatRequest:
    """A request for one response.

    Attributes:
        path: below the endpoint's URL.
        parameters: temperature, max_tokens, seed, top_p and others of the provider.
        sample: number of one of several responses to the same question without a seed. Never sent.
    """

    path: ClassVar[str] = "/chat/completions"

    model: str
    messages: tuple[Mapping[str, str], ...]
    parameters: Mapping[str, Any]
    sample: int = 0

    @cached_property
    def digest(self) -> str:
        """sha256 over the canonical JSON of model, messages, parameters and, from the second on,
        the sample: the key of its answer."""
        asked = {"model": self.model, "messages": list(self.messages)}
        sample = {"sample": self.sample} if self.sample else {}
        return digest(asked | {"parameters": dict(self.parameters)} | sample)

    @cached_property
    def max_tokens(self) -> int | None:
        """The bound of the response in tokens; None where the request sets none."""
        bounds = (self.parameters.get(name) for name in LIMITS)
        return next((int(bound) for bound in bounds if bound is not None), None)

    def body(self, max_tokens: int | None = None) -> dict[str, Any]:
        """The JSON to send, with `max_tokens` instead of the request's own bound."""
        body = {"model": self.model, "messages": list(self.messages), **self.parameters}
        if max_tokens is not None:
            body |= {name: max_tokens for name in LIMITS if self.parameters.get(name) is not None}
        return body

    def encoded(self, max_tokens: int | None = None) -> bytes:
        """The bytes of `body`. Raises InputError for parameters that are not JSON."""
        try:
            return canonical_json(self.body(max_tokens))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"model {self.model!r}: parameters {dict(self.parameters)!r} are not JSON: {error}."
            ) from error

    def trimmed(self, value: Any) -> Any:
        """The part of an answer's JSON to store."""
        return value

    @cached_property
    def most_input_tokens(self) -> int:
        """A bound of the prompt's tokens: the bytes of its text (a byte-level tokenizer makes no
        more), and a chat template's."""
        texts = (json.dumps(dict(message), ensure_ascii=False) for message in self.messages)
        text = sum(len(one.encode()) for one in texts)
        return text + _PER_MESSAGE * len(self.messages) + _PER_REQUEST
