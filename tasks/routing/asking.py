"""Asking a teacher about prompts that the classifier is unsure of: one short chat completion each,
in a strict schema."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import Field, model_validator

from schemas.base import StrictModel, digest
from schemas.examples import Domain
from tasks.chat.batch_files import ask_all
from tasks.chat.budget import Budget, Prices
from tasks.chat.endpoint import endpoint_of
from tasks.chat.engine import ChatEngine
from tasks.chat.request import ChatRequest
from tasks.routing import Ask
from tasks.teaching.lesson import Lesson

_INSTRUCTIONS = """Which domain does the request between the <request> tags belong to? Do not \
carry it out; only sort it.
math: mathematics, word problems, statistics. coding: programs and anything about them. science: \
physics, chemistry, biology, medicine, engineering. creative: writing that is to please or to move \
(stories, poems, letters, emails, posts) and role play. summarization: a given text made shorter, \
or facts taken out of it. general: everything else (knowledge, advice, planning, language \
exercises, puzzles).
Answer with nothing but JSON: {"domain": "<one of math, coding, science, creative, summarization, \
general>"}"""

_SCHEMA: Mapping[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "route",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {
                "domain": {"type": "string", "enum": [domain.value for domain in Domain]}
            },
            "required": ["domain"],
            "additionalProperties": False,
        },
    },
}
_MOST_CHARACTERS = 4000
"""Of a longer prompt, its first and last half as many are shown."""


class RoutingTeacher(StrictModel):
    """A model behind an OpenAI-compatible API that is asked about prompts the classifier is unsure
    of.

    Attributes:
        provider: whose endpoint, as of the teacher `openai_compatible`.
        max_response_tokens: room for models that think before they answer.
        input_usd_per_million, output_usd_per_million: the provider's prices per million tokens.
        max_usd: when that is spent, the classifier decides alone. None: no limit.
    """

    provider: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    model: str = Field(min_length=1)
    max_response_tokens: int = Field(default=512, ge=16)
    input_usd_per_million: float = Field(default=0.0, ge=0)
    output_usd_per_million: float = Field(default=0.0, ge=0)
    max_usd: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _a_budget_has_prices(self) -> "RoutingTeacher":
        if self.max_usd is not None and not (
            self.input_usd_per_million or self.output_usd_per_million
        ):
            raise ValueError(
                "max_usd needs input_usd_per_million and output_usd_per_million; without prices"
                " nothing costs anything"
            )
        return self


@contextmanager
def asking(config: RoutingTeacher, lesson: Lesson) -> Iterator[Ask]:
    """What `tasks.routing.route` takes as `ask`, while the context lasts; afterwards the lesson's
    tally has what it cost.

    Raises:
        InputError: the endpoint or its key is not set, or wrong.
        StageFailed: the endpoint has been failing for too long.
    """
    budget = Budget(
        config.max_usd, account=digest(["routing", config.model_dump(mode="json"), lesson.seed])
    )
    prices = Prices(config.input_usd_per_million, config.output_usd_per_million)
    with ChatEngine(
        endpoint_of(config.provider), lesson.answers, budget=budget, prices=prices
    ) as engine:

        def ask(prompts: Sequence[str]) -> list[Domain | None]:
            return [
                _domain(reply.text)
                for _, reply in ask_all(
                    engine, ((None, _request(config, prompt)) for prompt in prompts)
                )
            ]

        yield ask
        for name, value in engine.meter.totals().items():
            lesson.tally[name] += value


def _request(config: RoutingTeacher, prompt: str) -> ChatRequest:
    half = _MOST_CHARACTERS // 2
    shown = (
        prompt if len(prompt) <= _MOST_CHARACTERS else f"{prompt[:half]}\n[...]\n{prompt[-half:]}"
    )
    text = f"{_INSTRUCTIONS}\n\n<request>\n{shown}\n</request>"
    parameters = {
        "temperature": 0.0,
        "max_tokens": config.max_response_tokens,
        "response_format": _SCHEMA,
    }
    return ChatRequest(config.model, ({"role": "user", "content": text},), parameters)


def _domain(text: str) -> Domain | None:
    """What a reply says, or None: it is no JSON object with one known domain in it and nothing
    else."""
    try:
        said = json.loads(text)
    except ValueError:
        return None
    if (
        not isinstance(said, dict)
        or said.keys() != {"domain"}
        or said["domain"] not in list(Domain)
    ):
        return None
    return Domain(said["domain"])
