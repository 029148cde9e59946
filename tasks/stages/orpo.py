"""ORPO on preference pairs (`tasks.training.preferences`): supervised learning on the chosen responses plus the odds against the rejected
ones."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from tasks.contract.job import Job
from tasks.training import preferences

if TYPE_CHECKING:
    from tasks.models.loading import LoadedModel
    from tasks.planning.programs import Program

VERSION = 1
USES_DEVICES = True
INPUTS = preferences.INPUTS


class Config(preferences.PreferenceConfig):
    """ORPO.

    Attributes:
        lambda_orpo: weight of the preference beside the supervised term; the paper uses 0.1 to 0.25.
    """

    lambda_orpo: float = Field(default=0.1, ge=0)


def loss_of(config: Config) -> Any:
    """The loss of this stage."""
    from tasks.losses.orpo import orpo_loss_fn

    return orpo_loss_fn(lambda_orpo=config.lambda_orpo)


def dependencies(config: Config, data: Any) -> dict[str, str | int]:
    """See `tasks.training.preferences`."""
    return preferences.dependencies(config, data)


def programs(config: Config, model: "LoadedModel", upstream: Mapping[str, Any]) -> "list[Program]":
    """What `run` compiles."""
    return preferences.programs(config, model, upstream, loss_of(config))


def run(job: Job[Config]) -> dict[str, Any]:
    """Sample, mine, train and write the model: see `tasks.training.preferences.run`."""
    return preferences.run(job, loss_of(job.config))
