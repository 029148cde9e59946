"""A reward function of your own, in the signature of TRL and Tunix (`tasks.contract.function`)."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from schemas.examples import Prompt
from tasks.contract.function import Function, FunctionConfig
from tasks.contract.reward import Resources, Response, Reward, RewardConfig


class Config(RewardConfig, FunctionConfig):
    ASKED: ClassVar[type[Prompt]] = Prompt

    name: Literal["function"] = "function"


def prepare(config: Config, resources: Resources) -> Function:
    """Load the file. Raises InputError: its text is missing; StageFailed: it raises."""
    return Function(config, "reward function")


def score(
    function: Function, prompts: Sequence[Prompt], responses: Sequence[Response]
) -> list[float | None]:
    """The function's value of each response. Raises StageFailed."""
    return function.values(prompts, [response.text for response in responses])


REWARD = Reward(version=1, config=Config, score=score, prepare=prepare)
