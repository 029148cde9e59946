"""Rollouts: responses sampled from the current policy for training prompts.

SimPO samples once before training, GRPO at every rollout step. Samples are a function of (weights,
seed, rollout index) only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from schemas.base import InputError, StageFailed
from schemas.examples import Prompt
from schemas.trainer_config import PairsConfig, SamplingConfig
from tasks.contract.job import Job
from tasks.contract.journal import Journal
from tasks.data.packing import Shape, Text, in_groups
from tasks.data.tokens import Tokenizer, prompt_tokens

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.sampling.sampler import Completion, Sampler

PromptT = TypeVar("PromptT", bound=Prompt)
ConfigT = TypeVar("ConfigT", bound=PairsConfig)


def fitting_prompts(
    examples: Sequence[PromptT],
    tokenizer: Tokenizer,
    prompt_length: int,
    max_dropped_fraction: float,
) -> tuple[list[PromptT], int, int]:
    """The prompts, or examples, that fit `prompt_length` tokens, the number of those that do not,
    and the tokens of the longest that does.

    Raises:
        InputError: there are no examples, none fits, or more than `max_dropped_fraction` of them do
            not.
    """
    lengths = [len(prompt_tokens(tokenizer, example.prompt)) for example in examples]
    both = zip(examples, lengths, strict=True)
    fitting = [example for example, length in both if length <= prompt_length]
    dropped = len(examples) - len(fitting)
    if not examples:
        raise InputError("there are no training prompts: raise the quotas of the rebalance stage.")
    if not fitting or dropped > max_dropped_fraction * len(examples):
        raise InputError(
            f"{dropped} of {len(examples)} training prompts have more than prompt_length ="
            f" {prompt_length} tokens; raise prompt_length or max_dropped_fraction (now"
            f" {max_dropped_fraction})."
        )
    return fitting, dropped, max(length for length in lengths if length <= prompt_length)


def rollout_seed(seed: int, rollout: int) -> int:
    """The sampler's seed (32 bits) for rollout number `rollout` of a stage."""
    return int(np.random.SeedSequence([seed, rollout]).generate_state(1)[0])


def sample_groups(
    sampler: "Sampler",
    examples: Sequence[Prompt],
    group_size: int,
    *,
    temperature: float,
    seed: int,
    journal: Journal | None = None,
    progress: Callable[[int], None] | None = None,
) -> "list[list[Completion]]":
    """`group_size` responses to each example's prompt. `journal` and `progress` (in responses) are
    `Sampler.generate`'s. Raises StageFailed: as `require_one_program`."""
    prompts = [example.prompt for example in examples for _ in range(group_size)]
    completions = sampler.generate(
        prompts, temperature=temperature, seed=seed, journal=journal, progress=progress
    )
    require_one_program(sampler=sampler.compiles)
    return [completions[start : start + group_size] for start in range(0, len(prompts), group_size)]


def sampler_of(config: PairsConfig, loaded: "LoadedModel") -> "Sampler":
    """The sampler before training."""
    return _sampler(config, loaded, config.sampling_batch_size, config.samples_per_prompt)


def _sampler(
    config: SamplingConfig, loaded: "LoadedModel", batch_size: int, group_size: int
) -> "Sampler":
    from tasks.sampling.sampler import Sampler

    return Sampler(
        loaded,
        batch_size=batch_size,
        prompt_length=config.prompt_length,
        response_length=config.response_length,
        group_size=group_size,
        **config.drawn_from,
    )


def sample_before_training(
    job: Job[ConfigT], sampler: "Sampler", tokenizer: Tokenizer, rows: Sequence[PromptT]
) -> "tuple[list[PromptT], list[list[Completion]], int]":
    """Sample `prompts` of the rows, in an order drawn by the stage's seed, `samples_per_prompt`
    times each, once before training, with a journal of batches.

    Returns:
        the rows, the samples of each, and the number of rows that do not fit.

    Raises:
        InputError: as `fitting_prompts`.
        StageFailed: as `sample_groups`.
    """
    config = job.config
    fitting, dropped, _ = fitting_prompts(
        rows, tokenizer, config.prompt_length, config.max_dropped_fraction
    )
    order = np.random.Generator(np.random.Philox(config.seed)).permutation(len(fitting))
    chosen = [fitting[index] for index in order[: config.prompts]]
    samples = sample_groups(
        sampler,
        chosen,
        config.samples_per_prompt,
        temperature=config.temperature,
        seed=rollout_seed(config.seed, 0),
        journal=Journal(job.work, "samples"),
        progress=lambda done: job.progress(
            done, len(chosen) * config.samples_per_prompt, "samples"
        ),
    )
    return chosen, samples, dropped


def rollout_programs(config: Any, loaded: "LoadedModel", sampled: int) -> "tuple[Sampler, Any]":
    """The sampler for so many responses of a policy in training, and the program for their
    log-probabilities under any weights; for a SamplingConfig with `group_size`."""
    from tasks.training.packed_logps import token_logps_fn

    sampler = _sampler(config, loaded, sampled, config.group_size)
    return sampler, token_logps_fn(loaded.model)


def rollout_logps(
    program: Any, state: Any, texts: Sequence[Text], config: SamplingConfig, loaded: "LoadedModel"
) -> np.ndarray:
    """(N, R) float32 log-probabilities of the responses at the temperature of sampling, computed in
    blocks of a micro-batch's rows. Raises StageFailed: as `require_one_program`."""
    from tasks.models.attention import sees_prefixes
    from tasks.planning.programs import compilations
    from tasks.training.packed_logps import texts_logps

    length = config.prompt_length + config.response_length
    found = texts_logps(
        program,
        state,
        in_groups(texts, shared=sees_prefixes(loaded.mesh)),
        Shape(config.batch_size // config.accumulation, length),
        config.response_length,
        pad_id=loaded.tokenizer.pad_id,
        mesh=loaded.mesh,
        temperature=config.temperature,
    )
    require_one_program(**{program.__name__: compilations(program)})
    return found


def require_one_program(**compiled: int) -> None:
    """Raise StageFailed where one of these (name -> how many programs it has compiled) was compiled
    more than once: its shapes were not fixed."""
    for name, count in compiled.items():
        if count > 1:
            raise StageFailed(
                f"{name} compiled {count} times; a stage compiles each program once (fixed shapes)"
            )


def is_logged(config: Any, first: int) -> bool:
    """Whether curves.jsonl has a line for one of the updates on a rollout, given the first of them,
    for a config with `log_every`, `steps` and `num_iterations`."""
    updates = range(first, first + config.num_iterations)
    return any(update % config.log_every == 0 or update in (1, config.steps) for update in updates)


def curve_mean(name: str, rows: Sequence[Mapping[str, float]]) -> float | None:
    """The mean of a value over the rows of a curve that have it; None without any."""
    values = [row[name] for row in rows if name in row]
    return float(np.mean(values)) if values else None
