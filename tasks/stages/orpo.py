"""ORPO on preference pairs (`tasks.training.preference_kind`): supervised learning on the chosen
responses plus the odds against the rejected ones."""

from typing import Any

from pydantic import Field

from tasks.training.preference_kind import PreferenceConfig, preference_kind


class Config(PreferenceConfig):
    """ORPO.

    Attributes:
        lambda_orpo: weight of the preference beside the supervised term; the paper uses 0.1 to
            0.25. 0: supervised training on the chosen responses alone, which is the control of any
            preference loss on the same pairs.
    """

    lambda_orpo: float = Field(default=0.1, ge=0)


def loss_of(config: Config) -> Any:
    from tasks.losses.orpo import orpo_loss_fn

    return orpo_loss_fn(lambda_orpo=config.lambda_orpo)


KIND = preference_kind(version=13, config=Config, loss_of=loss_of)
