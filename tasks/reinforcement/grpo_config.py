"""The config of a GRPO stage."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from schemas.base import StrictModel
from schemas.recipe import Allowed
from schemas.trainer_config import SamplingConfig
from tasks.reinforcement.curriculum import Curriculum
from tasks.reinforcement.rewarding import parse_rewards
from tasks.reinforcement.rollout import Aggregation, Scale

Algorithm = Literal["grpo", "dr_grpo", "dapo", "gspo"]


class RewardAudit(StrictModel):
    """How a stage's rewards are audited.

    Attributes:
        prompts: how many, spread over domains, checks and grounding. A judge is asked about eleven
            responses to each.
        allow: finding -> the reason why it is meant to be so.
        ends: end the stage at a finding that is not allowed. A rehearsal goes on, and tells all
            findings at its end.
        last: the update at which rewards that change on the way are looked at again; None: the
            stage's last one.
    """

    prompts: int = Field(default=24, ge=8, le=512)
    allow: Allowed = Field(default={})
    ends: bool = True
    last: int | None = Field(default=None, ge=1)


PRESETS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"scale_rewards": "none", "aggregation": "fixed", "beta": 0.0},
    "dapo": {
        "aggregation": "token",
        "epsilon_high": 0.28,
        "beta": 0.0,
        "dynamic_sampling": True,
        "oversampling": 2,
    },
    "gspo": {"importance": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4, "beta": 0.0},
}
"""The settings of each algorithm's paper (`tasks.losses.grpo`) that differ from the defaults below,
which are GRPO's. DAPO leaves open how many samples fill a batch; its overlong shaping is the reward
`overlong`."""


class Collapse(StrictModel):
    """How a collapse is detected (`tasks.reinforcement.collapse`).

    Attributes:
        enabled: False: never stop the run.
        window: rollouts in each of the two compared intervals, and between two candidates for the
            best checkpoint.
        drop: the fall of the mean reward that counts, in standard deviations of single responses'
            rewards.
    """

    enabled: bool = True
    window: int = Field(default=20, ge=3)
    drop: float = Field(default=1.0, gt=0)


class Config(SamplingConfig):
    """`batch_size` counts responses: an update trains on batch_size / group_size groups.

    Attributes:
        rewards: one table per reward: its name, its relative weight, its own settings.
        algorithm: a preset of the loss's settings; each can still be set.
        group_size: G, the responses sampled for each prompt.
        num_iterations: updates on each rollout (the paper's mu).
        rollout_lag: rollout n is sampled from the weights before the first update on rollout n -
            rollout_lag, so that it is scored while others are sampled and trained on
            (`tasks.reinforcement.batches`).
        dynamic_sampling: leave groups whose rewards are all equal out of the loss, its denominator
            and the KL.
        oversampling: groups sampled for each group of a batch; above 1, groups whose rewards
            differ are trained on first.
        curriculum: which prompts are sampled; None: one permutation of all per epoch.
        collapse: how a collapse is detected, and whether it stops the run.
        audit: how many prompts the rewards are audited on before the first update, and which
            findings are allowed (`tasks.rehearsal.reward_audit`).
        beta: weight of the KL to the initial policy; 0 also skips computing it.
        epsilon, epsilon_high: the ratio is clipped to 1 - epsilon .. 1 + epsilon_high; where
            neither the recipe nor its algorithm sets epsilon_high, it is epsilon.
        aggregation, importance, scale_rewards: see `tasks.losses.grpo`.
        truncation: the largest importance weight, of the training program's probability of a token
            over the sampler's (truncated importance sampling); 0: no correction.
    """

    rewards: tuple[dict[str, Any], ...] = Field(min_length=1)
    algorithm: Algorithm = "grpo"
    group_size: int = Field(default=8, ge=2)
    num_iterations: int = Field(default=1, ge=1)
    rollout_lag: int = Field(default=0, ge=0)
    dynamic_sampling: bool = False
    oversampling: int = Field(default=1, ge=1)
    curriculum: Curriculum | None = None
    collapse: Collapse = Collapse()
    audit: RewardAudit = RewardAudit()
    beta: float = Field(default=0.04, ge=0)
    epsilon: float = Field(default=0.2, gt=0, lt=1)
    epsilon_high: float = Field(default=0.2, gt=0)
    aggregation: Aggregation = "sequence"
    importance: Literal["token", "sequence"] = "token"
    scale_rewards: Scale = "group"
    truncation: float = Field(default=2.0, ge=0)

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Validate, and write out the algorithm's preset, the defaults of the rewards' tables and
        `epsilon_high`, so that they are part of the stage key.

        Raises:
            pydantic.ValidationError: this Config does not validate.
            InputError: a reward's table does not, or a reward is listed twice.
        """
        high = {"epsilon_high": value["epsilon"]} if "epsilon" in value else {}
        config = super().parse({**high, **PRESETS.get(str(value.get("algorithm")), {}), **value})
        complete = (one.model_dump(mode="json") for one in parse_rewards(config.rewards, "rewards"))
        return config.model_copy(update={"rewards": tuple(complete)})

    @model_validator(mode="after")
    def _groups_fill_the_batch(self) -> Self:
        if self.batch_size % self.group_size:
            raise ValueError(
                f"batch_size = {self.batch_size} (responses per update) must be a multiple of"
                f" group_size = {self.group_size}"
            )
        if self.oversampling > 1 and not self.dynamic_sampling:
            raise ValueError(
                f"oversampling = {self.oversampling} samples groups to choose from; it needs"
                " dynamic_sampling = true"
            )
        if self.truncation and self.truncation < 1:
            raise ValueError(
                f"truncation = {self.truncation} would scale down tokens on which sampler and"
                " trainer agree; set it to 1 or more, or to 0 for no correction"
            )
        return self

    @property
    def taken(self) -> tuple[int, int]:
        """Prompts of a rollout, and updates on it."""
        return self.groups * self.oversampling, self.num_iterations

    @property
    def groups(self) -> int:
        return self.batch_size // self.group_size

    @property
    def rollouts(self) -> int:
        return -(-self.steps // self.num_iterations)

    @property
    def off_policy(self) -> bool:
        """Whether some update trains on responses that older weights sampled."""
        return self.num_iterations > 1 or self.rollout_lag > 0
