"""SimPO on preference pairs (`tasks.training.preferences`): a reference-free loss on length-normalised log-probabilities with a margin."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from tasks.contract.job import Job
from tasks.training import preferences

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program

VERSION = 5
USES_DEVICES = True
INPUTS = preferences.INPUTS


class Config(preferences.PreferenceConfig):
    """SimPO.

    Attributes:
        beta: scale of the implicit reward; the paper finds 2 to 2.5 good, and 10 often better.
        gamma_beta_ratio: the target margin in mean log-probability per token; the paper's grid is 0 to 1.
        sft_weight: weight of the supervised term on the chosen response; 0 is the paper's loss.
    """

    beta: float = Field(default=2.5, gt=0)
    gamma_beta_ratio: float = Field(default=0.5, ge=0)
    sft_weight: float = Field(default=0.0, ge=0)


def loss_of(config: Config) -> Any:
    """The loss of this stage."""
    from tasks.losses.simpo import simpo_loss_fn

    return simpo_loss_fn(beta=config.beta, gamma_beta_ratio=config.gamma_beta_ratio, sft_weight=config.sft_weight)


def dependencies(config: Config, data: Any) -> dict[str, str | int]:
    """See `tasks.training.preferences`."""
    return preferences.dependencies(config, data)


def programs(config: Config, model: "LoadedModel", upstream: Mapping[str, Any]) -> "list[Program]":
    """What `run` compiles."""
    return preferences.programs(config, model, upstream, loss_of(config))


def run(job: Job[Config]) -> dict[str, Any]:
    """Sample, mine, train and write the model: see `tasks.training.preferences.run`."""
    return preferences.run(job, loss_of(job.config))
