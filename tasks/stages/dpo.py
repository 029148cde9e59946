"""DPO on preference pairs (`tasks.training.preferences`): log-probabilities of whole responses against those of the initial policy."""

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
    """DPO.

    Attributes:
        beta: how dear it is to leave the initial policy; the paper uses 0.1 to 0.5.
        label_smoothing: the probability that a pair is the wrong way round; 0 is the paper's loss.
    """

    beta: float = Field(default=0.1, gt=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)


def loss_of(config: Config) -> Any:
    """The loss of this stage."""
    from tasks.losses.dpo import dpo_loss_fn

    return dpo_loss_fn(beta=config.beta, label_smoothing=config.label_smoothing)


def dependencies(config: Config, data: Any) -> dict[str, str | int]:
    """See `tasks.training.preferences`."""
    return preferences.dependencies(config, data)


def programs(config: Config, model: "LoadedModel", upstream: Mapping[str, Any]) -> "list[Program]":
    """What `run` compiles."""
    return preferences.programs(config, model, upstream, loss_of(config), reference=True)


def run(job: Job[Config]) -> dict[str, Any]:
    """Sample, mine, train and write the model: see `tasks.training.preferences.run`."""
    return preferences.run(job, loss_of(job.config), reference=True)
