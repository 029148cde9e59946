"""The judge of a config: opening it, and what the plan and the stage key need to know of it."""

from typing import TYPE_CHECKING

from tasks.contract.reward import Resources
from tasks.judging.endpoint_judge import EndpointJudge
from tasks.judging.judge import EndpointJudgeConfig, GemmaJudgeConfig, Judge

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program


def open_judge(config: EndpointJudgeConfig | GemmaJudgeConfig, resources: Resources) -> Judge:
    """Open the judge of a config. Raises InputError: the endpoint or its key is not set, or the
    model is not available."""
    if isinstance(config, EndpointJudgeConfig):
        return EndpointJudge(config, resources)
    from tasks.judging.gemma_judge import GemmaJudge

    return GemmaJudge(config, resources)


def judge_dependencies(config: EndpointJudgeConfig | GemmaJudgeConfig) -> dict[str, str | int]:
    """The versions that decide rulings beside the config and the weights of `judge_models`."""
    if isinstance(config, EndpointJudgeConfig):
        return {}
    from tasks.judging.gemma_judge import VERSION

    return {"judging.gemma": VERSION}


def judge_models(config: EndpointJudgeConfig | GemmaJudgeConfig) -> tuple[str, ...]:
    """The models that the judge loads (`tasks.models.model_source`)."""
    return (config.model,) if isinstance(config, GemmaJudgeConfig) else ()


def judge_programs(
    config: EndpointJudgeConfig | GemmaJudgeConfig, model: "LoadedModel", questions: float
) -> "list[Program]":
    """The programs that the judge compiles, on the devices of `model`, to answer so many
    questions."""
    if isinstance(config, EndpointJudgeConfig):
        return []
    from tasks.judging import gemma_judge

    return gemma_judge.programs(config, model, questions)
