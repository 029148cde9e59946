"""What a GRPO stage can be told."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from schemas.training import TrainerConfig
from tasks.rehearsal.reward_audit import RewardAudit
from tasks.reinforcement.collapse import Collapse
from tasks.reinforcement.curriculum import Curriculum
from tasks.reinforcement.rewarding import parse_rewards

Algorithm = Literal["grpo", "dr_grpo", "dapo", "gspo"]

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
"""What an algorithm's paper says (`tasks.losses.grpo`), where that is not the default below, which
is GRPO's. How many samples fill a batch DAPO leaves open; its overlong shaping is the reward
`overlong`."""


class GrpoConfig(TrainerConfig):
    """`batch_size` counts responses: an update trains on batch_size / group_size groups.

    Attributes:
        rewards: one table per reward: its name, its weight among the others, its knobs.
        algorithm: a preset of the loss's knobs; each can be set beside it.
        group_size: G, the responses sampled for each prompt.
        num_iterations: updates on each rollout (the paper's mu).
        rollout_lag: rollout n is sampled from the weights before the first update on rollout n -
            rollout_lag, so that rewards are made while others are sampled and trained on
            (`tasks.reinforcement.batches`).
        dynamic_sampling: groups whose rewards are all equal weigh nothing, in the loss, its
            denominator and the KL.
        oversampling: groups sampled for each group of a batch; above 1, those that teach are
            trained on first.
        curriculum: which prompts are sampled (`tasks.reinforcement.curriculum`); without it, one
            permutation of all after the other.
        collapse: what a dying run is known by (`tasks.reinforcement.collapse`), and that it is
            stopped (`tasks.reinforcement.guard`).
        audit: how many prompts the rewards are tried on before the first update, and which
            findings are meant (`tasks.rehearsal.reward_audit`).
        beta: weight of the KL to the initial policy; 0 also skips computing it.
        epsilon, epsilon_high: the ratio is clipped to 1 - epsilon .. 1 + epsilon_high.
        aggregation, importance, scale_rewards: see `tasks.losses.grpo`.
        truncation: the most that a token weighs for being likelier to the program that trains than
            to the one that sampled it (truncated importance sampling); 0 corrects nothing.
        temperature: of sampling, and of every log-probability in the loss.
        prompt_length, response_length: tokens; longer prompts are left out, longer responses cut
            off.
        max_dropped_fraction: more prompts than this fraction left out is an error.
    """

    seed: int = 0
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
    aggregation: Literal["sequence", "token", "fixed"] = "sequence"
    importance: Literal["token", "sequence"] = "token"
    scale_rewards: Literal["group", "none", "batch"] = "group"
    truncation: float = Field(default=2.0, ge=0)
    temperature: float = Field(default=1.0, gt=0)
    prompt_length: int = Field(ge=8)
    response_length: int = Field(ge=8)
    max_dropped_fraction: float = Field(default=0.0, ge=0, le=1)

    @classmethod
    def parse(cls, value: Any) -> Self:
        """Validate; what the algorithm's preset says, and the defaults in the rewards' tables, come
        back as if they had been written, so that they are part of the stage key.

        Raises:
            pydantic.ValidationError: this Config does not validate.
            InputError: a reward's table does not, or a reward is listed twice.
        """
        config = super().parse({**PRESETS.get(str(value.get("algorithm")), {}), **value})
        complete = [
            reward.model_dump(mode="json") for reward in parse_rewards(config.rewards, "rewards")
        ]
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
                f"truncation = {self.truncation} would weigh down tokens on which sampler and"
                " trainer agree; 1 or more, or 0: none"
            )
        return self

    @property
    def groups(self) -> int:
        """Groups in a batch."""
        return self.batch_size // self.group_size

    @property
    def rollouts(self) -> int:
        """Rollouts of the stage."""
        return -(-self.steps // self.num_iterations)

    @property
    def off_policy(self) -> bool:
        """Whether some update trains on what other weights than its own sampled."""
        return self.num_iterations > 1 or self.rollout_lag > 0
