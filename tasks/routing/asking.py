"""Asking a teacher about prompts that the classifier is unsure of: one short chat completion each,
in a strict schema."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydantic import Field

from schemas.examples import Domain
from tasks.chat.batch_files import ask_all
from tasks.chat.budget import Priced
from tasks.chat.engine import ChatEngine
from tasks.chat.request import ChatModel, ChatRequest, object_schema, response_format
from tasks.judging.rulings import Unreadable, json_object
from tasks.routing.router import Ask
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

_SCHEMA = object_schema({"domain": {"type": "string", "enum": [one.value for one in Domain]}})
_MOST_CHARACTERS = 4000
"""Characters of a prompt that are shown: of a longer one, half as many from each end."""


class RoutingTeacher(ChatModel, Priced):
    """A model behind an OpenAI-compatible API that is asked about prompts the classifier is unsure
    of.

    Attributes:
        temperature: 1 for OpenAI's reasoning models, which take no other.
        max_response_tokens: room for models that think before they answer.
        max_usd: when that is spent, the classifier decides alone.
    """

    temperature: float = Field(default=0.0, ge=0)
    max_response_tokens: int = Field(default=512, ge=16)


@contextmanager
def asking(config: RoutingTeacher, lesson: Lesson) -> Iterator[Ask]:
    """The function that `tasks.routing.router.route` takes as `ask`, while the context lasts;
    afterwards the lesson's tally has what it cost.

    Raises:
        InputError: the endpoint or its key is not set, or wrong.
        StageFailed: the endpoint has been failing for too long.
    """
    account = ["routing", config.model_dump(mode="json"), lesson.seed]
    with ChatEngine.of(config, lesson.answers, account=account) as engine:

        def ask(prompts: Sequence[str]) -> list[Domain | None]:
            requests = ((None, _request(config, prompt)) for prompt in prompts)
            return [_domain(reply.text) for _, reply in ask_all(engine, requests)]

        yield ask
        for name, value in engine.meter.totals().items():
            lesson.tally[name] += value


def _request(config: RoutingTeacher, prompt: str) -> ChatRequest:
    half = _MOST_CHARACTERS // 2
    if len(prompt) > _MOST_CHARACTERS:
        prompt = f"{prompt[:half]}\n[...]\n{prompt[-half:]}"
    text = f"{_INSTRUCTIONS}\n\n<request>\n{prompt}\n</request>"
    parameters = config.parameters_for(config.temperature, config.max_response_tokens)
    parameters |= response_format("json_schema", "route", _SCHEMA)
    return ChatRequest(config.model, ({"role": "user", "content": text},), parameters)


def _domain(text: str) -> Domain | None:
    """Read a reply; None: it is no JSON object with one known domain in it and nothing else."""
    try:
        said = json_object(text)
    except Unreadable:
        return None
    found = said.get("domain") if len(said) == 1 else None
    return Domain(found) if found in list(Domain) else None
