"""SimPO on preference pairs (`tasks.training.preference_kind`): a reference-free loss on
length-normalised log-probabilities with a margin."""

from typing import Any

from pydantic import Field

from tasks.training.preference_kind import PreferenceConfig, preference_kind


class Config(PreferenceConfig):
    """SimPO.

    Attributes:
        beta: scale of the implicit reward; the paper finds 2 to 2.5 good, and 10 often better.
        gamma_beta_ratio: the target margin in mean log-probability per token; the paper's grid is 0
            to 1.
        sft_weight: weight of the supervised term on the chosen response; 0 is the paper's loss.
    """

    beta: float = Field(default=2.5, gt=0)
    gamma_beta_ratio: float = Field(default=0.5, ge=0)
    sft_weight: float = Field(default=0.0, ge=0)


def loss_of(config: Config) -> Any:
    from tasks.losses.simpo import simpo_loss_fn

    return simpo_loss_fn(
        beta=config.beta, gamma_beta_ratio=config.gamma_beta_ratio, sft_weight=config.sft_weight
    )


KIND = preference_kind(version=17, config=Config, loss_of=loss_of)
