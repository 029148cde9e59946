"""The Gemma teacher: a larger Gemma, in this process and on this job's devices, answers prompts.

```toml
[[stages.distill.config.teachers]]
name = "gemma"
model = "gemma3-12b-it"
samples = 4
prompt_length = 512
max_response_tokens = 512
prompts = [{ name = "dataset", sources = [...] }]
```
Prompts and responses have fixed lengths, one program samples all batches, and `lyceum plan`
compiles it. Sampled batches are stored (`infra.store.answers`) by everything that decides them: a
killed stage, or another recipe that asks the same, samples nothing twice.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from schemas.base import digest
from schemas.examples import Prompt
from schemas.trainer_config import Nucleus
from tasks.chat.reply import Reply
from tasks.contract.teacher import Teacher
from tasks.data.dropped import Dropped
from tasks.data.tokens import prompt_tokens
from tasks.models.model_source import model_dependencies
from tasks.teaching import rejection_sampling
from tasks.teaching.lesson import Lesson, Row
from tasks.teaching.rejection_sampling import Answering, messages, prompts_to_ask, rows

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program
    from tasks.sampling.sampler import Completion, Sampler


class Config(Answering, Nucleus):
    """A model of this family as the teacher.

    Attributes:
        model: as in a recipe: a shipped name, one of a hub, or a directory.
        prompt_length: tokens of a prompt with its instructions; longer ones are dropped.
        batch_size: responses sampled at a time.
        top_k, top_p: see `schemas.trainer_config.Nucleus`. (An endpoint takes them as
            `parameters`.)
    """

    name: Literal["gemma"]
    model: str
    prompt_length: int = Field(ge=8)
    batch_size: int = Field(default=64, ge=1)

    @model_validator(mode="after")
    def _samples_fill_the_batch(self) -> Self:
        if self.batch_size % self.samples:
            raise ValueError(
                f"batch_size = {self.batch_size} (responses) must be a multiple of samples ="
                f" {self.samples}"
            )
        return self


def dependencies(config: Config, data: Path | None) -> dict[str, str | int]:
    """The facts that the prompts and the model's weights depend on. Raises InputError for a missing
    file or an unknown model."""
    return {**rejection_sampling.dependencies(config, data), **model_dependencies(config.model)}


def sampler_of(config: Config, loaded: "LoadedModel") -> "Sampler":
    """The sampler of the responses."""
    from tasks.sampling.sampler import Sampler

    return Sampler(
        loaded,
        batch_size=config.batch_size,
        prompt_length=config.prompt_length,
        response_length=config.max_response_tokens,
        group_size=config.samples,
        **config.drawn_from,
    )


def programs(config: Config, model: "LoadedModel") -> "list[Program]":
    """The programs that `teach` compiles; one call of it, if the number of prompts is not known
    before files are read."""
    from tasks.planning.programs import on_devices

    loaded = on_devices(model, {"batch_size": config.batch_size})
    calls = math.ceil(rejection_sampling.expected(config) * config.samples / config.batch_size)
    return [sampler_of(config, loaded).program(max(1, calls))]


def teach(config: Config, lesson: Lesson) -> Iterator[Row]:
    """Yield the rows from the samples of each prompt, in the order of the prompts. A top-up yields
    nothing: rebalance has no devices.

    Raises:
        InputError: the model is not available, or as the teachers that give the prompts.
    """
    return rows(config, _answered(config, lesson), lesson) if lesson.wanted is None else iter(())


def _answered(config: Config, lesson: Lesson) -> Iterator[tuple[Prompt, list[Reply]] | Dropped]:
    """Each prompt with its samples, a batch at a time; and rows that are no prompt that can be
    asked."""
    from tasks.devices.hosts import make_mesh
    from tasks.models.loading import base_model

    loaded = base_model(config.model, lesson.seed, make_mesh({"batch_size": config.batch_size}))
    sampler, weights = sampler_of(config, loaded), model_dependencies(config.model)
    batch: list[Prompt] = []
    done = 0

    def answers() -> Iterator[tuple[Prompt, list[Reply]]]:
        nonlocal done
        texts = [messages(config, prompt)[0]["content"] for prompt in batch]
        sampled = _sampled(config, lesson, sampler, weights, texts)
        for prompt, completions in zip(batch, sampled, strict=True):
            yield prompt, [_sample(one) for one in completions]
        done += len(batch)
        batch.clear()
        lesson.progress(done, max(done, rejection_sampling.expected(config)), "prompts", {})

    for row in prompts_to_ask(config, lesson):
        if isinstance(row, Dropped):
            yield row
        elif long := _too_long(config, row, loaded):
            yield long
        else:
            batch.append(row)
            if len(batch) * config.samples == config.batch_size:
                yield from answers()
    if batch:
        yield from answers()


def _sample(completion: "Completion") -> Reply:
    return Reply(completion.text, problem=None if completion.terminated else "truncated")


def _too_long(config: Config, row: Prompt, loaded: "LoadedModel") -> Dropped | None:
    tokens = len(prompt_tokens(loaded.tokenizer, messages(config, row)[0]["content"]))
    if tokens <= config.prompt_length:
        return None
    most = f"prompt_length is {config.prompt_length}"
    detail = f"the prompt with its instructions has {tokens} tokens, {most}"
    return Dropped.of(row, "too_long", detail)


def _sampled(
    config: Config,
    lesson: Lesson,
    sampler: "Sampler",
    weights: Mapping[str, str | int],
    texts: Sequence[str],
) -> "list[list[Completion]]":
    """`samples` completions of each text of one batch, from the store, or sampled and stored. With
    several hosts, host 0 decides."""
    from tasks.devices.hosts import agree, is_committer
    from tasks.sampling.rollouts import rollout_seed

    sizes = [config.samples, config.temperature, config.prompt_length, config.max_response_tokens]
    cut = [config.top_k, config.top_p] if config.top_k or config.top_p else []
    what = [config.model, weights, texts, *sizes, lesson.seed, *cut]
    key = digest(["gemma", TEACHER.version, *what])
    stored = lesson.answers.get(key)
    if not agree(stored is not None):
        prompts = [text for text in texts for _ in range(config.samples)]
        seed = rollout_seed(lesson.seed, int(key[:8], 16))
        completions = sampler.generate(prompts, temperature=config.temperature, seed=seed)
        lesson.tally["requests"] += len(prompts)
        lesson.tally["output_tokens"] += sum(len(one.tokens) for one in completions)
        if is_committer():
            lesson.answers.put(key, json.dumps([one.tokens for one in completions]).encode())
    else:
        assert stored is not None, "host 0 has this batch, so the store has it"
        completions = [sampler.completion_of(tokens) for tokens in json.loads(stored)]
        lesson.tally["cached"] += len(completions)
    starts = range(0, len(completions), config.samples)
    return [completions[start : start + config.samples] for start in starts]


TEACHER = Teacher(
    version=6,
    config=Config,
    teach=teach,
    dependencies=dependencies,
    expected=rejection_sampling.expected,
    most=rejection_sampling.most,
    small=rejection_sampling.small,
    model=lambda config: config.model,
    programs=programs,
    asks_an_api=rejection_sampling.asks_an_api,
)
