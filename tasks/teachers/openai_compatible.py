"""The API teacher: a model behind any OpenAI-compatible endpoint answers prompts.

```toml
[[stages.distill.config.teachers]]
name = "openai_compatible"
provider = "vllm"                      # its URL is in VLLM_BASE_URL, its key in VLLM_API_KEY
model = "openai/gpt-oss-120b"
samples = 4
max_response_tokens = 2048
parameters = { reasoning_effort = "low" }
input_usd_per_million = 0.10
output_usd_per_million = 0.50
max_usd = 25.0
prompts = [{ name = "dataset", sources = [...] }]
```
The endpoint's URL, concurrency and time-outs are execution, set by the environment and the
`teacher_*` settings (`tasks.chat.provider`, `infra.settings`). `tasks.chat.engine` handles
failures, kills and budgets, `tasks.teaching.rejection_sampling` makes rows from samples.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import Field

from schemas.base import digest
from schemas.examples import Prompt
from tasks.chat.batch_files import ask_all
from tasks.chat.budget import Budget, Priced
from tasks.chat.engine import ChatEngine
from tasks.chat.provider import endpoint_of
from tasks.chat.reply import Reply
from tasks.chat.request import ChatModel, ChatRequest
from tasks.contract.teacher import Teacher
from tasks.data.dropped import Dropped
from tasks.teaching import rejection_sampling
from tasks.teaching.lesson import Lesson, Row
from tasks.teaching.rejection_sampling import Answering, is_usable, messages, prompts_to_ask, rows

_NOT_SHOWN = {"done", "requests", "answers", "input_tokens", "output_tokens"}
"""An engine's numbers that the progress line leaves out: it has rates, money, cached answers,
slots, and failures by kind."""


class Config(Answering, ChatModel, Priced):
    """A model behind an API as the teacher.

    Attributes:
        seeded: send a seed with each sample. Not every provider accepts one.
        longer: ask once more, with twice the limit, where a response was truncated.
        retries: how many more times to ask, with other seeds, where a response is no trace or in
            another language.
        max_total_tokens: the budget of this teacher in tokens, beside `max_usd`, top-ups included;
            see `tasks.chat.budget`. None: no limit.
    """

    OWN: ClassVar = ChatModel.OWN | {"seed"}
    BY: ClassVar = "model, temperature, max_response_tokens, seeded or samples"

    name: Literal["openai_compatible"]
    seeded: bool = True
    longer: bool = False
    retries: int = Field(default=1, ge=0, le=10)
    max_total_tokens: int | None = Field(default=None, gt=0)


def teach(config: Config, lesson: Lesson) -> Iterator[Row]:
    """Yield the rows from the samples of each prompt, in the order of the prompts.

    Raises:
        InputError: the endpoint, the key, the model or a parameter is wrong; or as the teachers
            that give the prompts.
        StageFailed: the endpoint has been failing for too long, or the account or budget is empty.
    """
    return rows(config, _answered(config, lesson), lesson)


@dataclass
class _Asked:
    """One prompt, the rows before it that cannot be asked, and its samples so far."""

    prompt: Prompt
    before: list[Dropped]
    samples: list[Reply] = field(default_factory=list)


def _answered(config: Config, lesson: Lesson) -> Iterator[tuple[Prompt, list[Reply]] | Dropped]:
    """Each prompt with its samples; rows that cannot be asked come in their place, however far
    ahead they were read.

    Prompts with a repeated sample come after all others, in their own order.
    """
    unasked: list[Dropped] = []

    def requests() -> Iterator[tuple[_Asked, ChatRequest]]:
        nonlocal unasked
        for row in prompts_to_ask(config, lesson):
            if isinstance(row, Dropped):
                unasked.append(row)
                continue
            asked, unasked = _Asked(row, unasked), []
            for sample in range(config.samples):
                yield asked, request_of(config, row, lesson.seed, sample)

    def progress(done: int, values: Mapping[str, float]) -> None:
        total = rejection_sampling.expected(config) * config.samples
        shown = {name: value for name, value in values.items() if value and name not in _NOT_SHOWN}
        lesson.progress(done, max(done, total), "answers", shown)

    # a continuation after a kill has the same account; a top-up, whose lesson has what was spent
    # before, another.
    spent = (lesson.spent_usd, lesson.spent_tokens)
    budget = Budget(
        config.max_usd,
        config.max_total_tokens,
        before_usd=lesson.spent_usd,
        before_tokens=lesson.spent_tokens,
        account=digest([TEACHER.version, config.model_dump(mode="json"), lesson.seed, *spent]),
    )
    with ChatEngine(
        endpoint_of(config.provider),
        lesson.answers,
        budget=budget,
        prices=config.prices,
        longer=config.longer,
        progress=progress,
    ) as engine:
        again: list[_Asked] = []
        for asked, reply in ask_all(engine, requests()):
            asked.samples.append(reply)
            if len(asked.samples) < config.samples:
                continue
            yield from asked.before
            if config.retries and _unusable(config, asked):
                again.append(asked)
            else:
                yield asked.prompt, asked.samples
        yield from unasked
        _retry(engine, config, lesson, again)
        for asked in again:
            yield asked.prompt, asked.samples
        for name, value in engine.meter.totals().items():
            lesson.tally[name] += value


def _retry(engine: ChatEngine, config: Config, lesson: Lesson, again: Sequence[_Asked]) -> None:
    """Ask again for the samples that are worth it; a reply that has a problem changes nothing."""
    for attempt in range(1, config.retries + 1):
        retried = []
        for asked in again:
            for place in _unusable(config, asked):
                sample = attempt * config.samples + place
                request = request_of(config, asked.prompt, lesson.seed, sample)
                retried.append(((asked, place), request))
        for (asked, place), reply in ask_all(engine, retried):
            lesson.tally["retried"] += 1
            if reply.problem is None:
                asked.samples[place] = reply


def _unusable(config: Config, asked: _Asked) -> list[int]:
    """The samples that are worth asking for again."""
    return [
        place
        for place, sample in enumerate(asked.samples)
        if sample.problem is None and not is_usable(config, sample)
    ]


def request_of(config: Config, prompt: Prompt, seed: int, sample: int) -> ChatRequest:
    asked = messages(config, prompt)
    parameters = config.parameters_for(config.temperature, config.max_response_tokens)
    if not config.seeded:
        return ChatRequest(config.model, asked, parameters, sample)
    # below 2^31: some servers take no more
    parameters["seed"] = int(digest([seed, prompt.id, sample])[:7], 16)
    return ChatRequest(config.model, asked, parameters)


TEACHER = Teacher(
    version=3,
    config=Config,
    teach=teach,
    dependencies=rejection_sampling.dependencies,
    expected=rejection_sampling.expected,
    most=rejection_sampling.most,
    small=rejection_sampling.small,
    asks_an_api=lambda config: True,
)
