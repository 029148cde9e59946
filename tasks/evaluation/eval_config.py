"""The config that every evaluation has, and how it is made small."""

from math import ceil
from typing import Any, ClassVar, Self, TypeVar

from pydantic import Field

from schemas.base import StrictModel
from schemas.trainer_config import Nucleus
from tasks.contract.function import FunctionConfig
from tasks.contract.small import Sizes
from tasks.evaluation.metric_functions import check_names
from tasks.evaluation.suite_prompts import complete_suites
from tasks.judging.judge import JudgeConfig


class Sampling(Nucleus):
    """Sampled answers beside the greedy ones: `samples` of each prompt, each with a seed of its
    own. They give pass@k, majority@k, and the noise floor: how far a rate moves with the seed
    alone."""

    samples: int = Field(ge=2, le=256)
    temperature: float = Field(default=0.8, gt=0, le=2)


class EvalConfig(StrictModel):
    """The config that every evaluation has.

    Attributes:
        model, seed: the base model where no policy is connected; `seed` also draws the bootstrap
            and the samples.
        suites: one table per suite: its name and its own settings
            (`tasks.evaluation.suite_prompts`).
        instructions: put before every prompt, for models that were not trained to write traces.
        shots: worked examples before every prompt, from the training rows of the `prompts` input,
            for models that were not trained at all (`tasks.evaluation.worked_examples`).
        sampling: sampled answers beside the greedy ones.
        judge: an LLM that judges answers too (`tasks.judging.judge`).
        metrics: metric functions of your own (`tasks.evaluation.metric_functions`).
        batch_size: prompts that are answered at a time.
        prompt_length, response_length: tokens, fixed for all prompts; worked examples count.
        min_items: refuse fewer prompts; over 100, a rate is uncertain by ten points either way.
    """

    KIND: ClassVar[str]

    model: str
    seed: int = Field(default=0, ge=0)
    suites: tuple[dict[str, Any], ...] = ()
    instructions: str = ""
    shots: int | None = Field(default=None, ge=1, le=64, exclude_if=lambda value: value is None)
    sampling: Sampling | None = None
    judge: JudgeConfig | None = None
    metrics: tuple[FunctionConfig, ...] = Field(default=(), exclude_if=lambda value: not value)
    batch_size: int = Field(default=64, ge=1)
    prompt_length: int = Field(ge=8)
    response_length: int = Field(ge=8)
    min_items: int = Field(default=100, ge=1)

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Validate; complete the suites' tables with their defaults, so that these are part of the
        stage key.

        Raises:
            pydantic.ValidationError: this Config does not validate.
            InputError: a suite's table does not, or a metric function's name is taken.
        """
        config = super().parse(value)
        check_names(config.metrics)
        return config.model_copy(update={"suites": complete_suites(config.suites, cls.KIND)})

    def asked(self, prompt: str) -> str:
        """The text that the model gets for a prompt."""
        return f"{self.instructions}\n\n{prompt}" if self.instructions else prompt


EvalConfigT = TypeVar("EvalConfigT", bound=EvalConfig)


def small_eval(config: EvalConfigT, sizes: Sizes) -> EvalConfigT:
    """Fewer prompts per suite, two samples, short answers.

    `prompt_length` shrinks only if the longest question is known: a prompt that does not fit is an
    error, none is dropped. With few rows, one worked example is shown. A batch has as many rows of
    these lengths as 32,768 tokens allow, as a power of two.
    """
    answer = min(ceil(config.response_length * sizes.tokens), sizes.reply)
    asked = ceil(config.prompt_length * sizes.tokens)
    shots = config.shots and (1 if sizes.few else config.shots)
    if sizes.question is not None:
        asked = min(asked, sizes.question + (shots or 0) * (sizes.question + sizes.answer))
    most = 16 if sizes.few else 128
    allowed = max(1, 32_768 // (asked + answer))
    return config.model_copy(
        update={
            "suites": tuple(
                {**suite, "first": min(suite["first"] or sizes.suite, sizes.suite)}
                for suite in config.suites
            ),
            "shots": shots,
            "sampling": config.sampling and config.sampling.model_copy(update={"samples": 2}),
            "batch_size": min(config.batch_size, most, 1 << allowed.bit_length() - 1),
            "prompt_length": asked,
            "response_length": answer,
            "min_items": min(config.min_items, 1 if sizes.few else 20),
        }
    )
