"""DPO on preference pairs (`tasks.training.preference_kind`): log-probabilities of whole responses
against those of the initial policy."""

from typing import Any

from pydantic import Field

from tasks.training.preference_kind import PreferenceConfig, preference_kind


class Config(PreferenceConfig):
    """DPO.

    Attributes:
        beta: the penalty for leaving the initial policy; the paper uses 0.1 to 0.5.
        label_smoothing: the probability that a pair is the wrong way round; 0 is the paper's loss.
    """

    beta: float = Field(default=0.1, gt=0)
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)


def loss_of(config: Config) -> Any:
    from tasks.losses.dpo import dpo_loss_fn

    return dpo_loss_fn(beta=config.beta, label_smoothing=config.label_smoothing)


KIND = preference_kind(version=13, config=Config, loss_of=loss_of, reference=True)
