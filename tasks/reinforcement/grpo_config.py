"""The config of a GRPO stage, and its curriculum: which prompts a rollout asks, as a function of
the seed, the update, and the results of earlier rollouts.

Without a curriculum, each rollout takes the next prompts of one permutation per epoch. A curriculum
gives each prompt a weight w between 0 and 1: in its turn a prompt is taken with probability w, else
skipped until the next epoch, at no cost.

    difficulty    1 for the easiest prompts, else 0. The fraction that counts as easiest grows from
                  `start` to 1 by the square-root competence of Platanios et al. (1903.09848). Easy
                  is a low `difficulty`, then a high `pass_rate`.
    phase         the weight that the update's phase sets
    pass_rate     4 p (1 - p), p the prompt's recent rate of right answers, so that prompts are
                  neither hopeless nor solved. A prompt whose answers cannot be verified weighs 1
    informative   q, the prompt's recent rate of groups whose rewards differ: groups without a
                  gradient are mostly not sampled, which is where dynamic sampling gets its speed
                  (GRESO, 2506.02177, has a similar rule)

The last two weigh at least `floor`, so that hopeless prompts are tried again as the policy learns.
They see the rollouts that were trained on before the sampled one, however long a judge took.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from schemas.base import InputError, StrictModel
from schemas.examples import Domain, Prompt
from schemas.recipe import Allowed
from schemas.trainer_config import SamplingConfig
from tasks.reinforcement.rewarding import parse_rewards
from tasks.reinforcement.rollout import Aggregation, Scale

Algorithm = Literal["grpo", "dr_grpo", "dapo", "gspo"]

MEMORY = 0.8
"""The weight of an observation decays by this factor with each newer one of the same prompt: about
five count as recent."""


class RewardAudit(StrictModel):
    """How a stage's rewards are audited.

    Attributes:
        prompts: how many, spread over domains, checks and grounding. A judge is asked about eleven
            responses to each.
        allow: finding -> the reason why it is meant to be so.
        ends: what is found and not allowed ends the stage. A rehearsal goes on, for it tells all
            that it finds at the end.
        last: which update counts as the last one, at which rewards are looked at that change on
            the way; the stage's own, where it is not set.
    """

    prompts: int = Field(default=24, ge=8, le=512)
    allow: Allowed = Field(default={})
    ends: bool = True
    last: int | None = Field(default=None, ge=1)


class ByDifficulty(StrictModel):
    """Easiest first. `start`: the fraction of the prompts that the first update may ask; `until`:
    the fraction of the updates after which all may be asked."""

    by: Literal["difficulty"]
    start: float = Field(default=0.25, gt=0, le=1)
    until: float = Field(default=0.5, gt=0, le=1)


class Phase(StrictModel):
    """Which prompts are asked from update `from_step` until the next phase begins.

    Attributes:
        domains: relative weights of domains; one that is not named is not asked. None: all are.
        difficulties: those that are asked. None: all are.
    """

    from_step: int = Field(default=1, ge=1)
    domains: dict[Domain, Annotated[float, Field(gt=0)]] | None = None
    difficulties: tuple[int, ...] | None = None

    def weight_of(self, prompt: Prompt) -> float:
        """The prompt's weight, at most 1."""
        if self.difficulties is not None and prompt.difficulty not in self.difficulties:
            return 0.0
        if self.domains is None:
            return 1.0
        return self.domains.get(prompt.domain, 0.0) / max(self.domains.values())


class ByPhase(StrictModel):
    """Phases in order; the first begins with update 1."""

    by: Literal["phase"]
    phases: tuple[Phase, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_after_the_other(self) -> Self:
        begins = [phase.from_step for phase in self.phases]
        if begins[0] != 1 or begins != sorted(set(begins)):
            raise ValueError(
                f"phases begin at updates {begins}; the first needs from_step = 1, and each other"
                " one a later update than the phase before it"
            )
        return self

    def at(self, update: int) -> Phase:
        """The phase of an update (from 1)."""
        return [phase for phase in self.phases if phase.from_step <= update][-1]


class Online(StrictModel):
    """By the results of the policy's own recent rollouts. `floor`: the least weight of a prompt."""

    by: Literal["pass_rate", "informative"]
    floor: float = Field(default=0.05, gt=0, le=1)


Curriculum = Annotated[ByDifficulty | ByPhase | Online, Field(discriminator="by")]


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
        epsilon, epsilon_high: the ratio is clipped to 1 - epsilon .. 1 + epsilon_high.
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
        """Validate, and write out the algorithm's preset and the defaults of the rewards' tables,
        so that they are part of the stage key.

        Raises:
            pydantic.ValidationError: this Config does not validate.
            InputError: a reward's table does not, or a reward is listed twice.
        """
        config = super().parse({**PRESETS.get(str(value.get("algorithm")), {}), **value})
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


class Chooser:
    """Chooses the prompts of rollout after rollout."""

    def __init__(
        self,
        curriculum: ByDifficulty | ByPhase | Online | None,
        prompts: Sequence[Prompt],
        seed: int,
        steps: int,
    ) -> None:
        """Raises InputError where a phase admits no prompt."""
        self._curriculum, self._prompts, self._seed, self._steps = curriculum, prompts, seed, steps
        self._position, self._recent = 0, dict[int, tuple[float, float]]()
        hard = [
            (one.difficulty, -(0.5 if one.pass_rate is None else one.pass_rate), one.id)
            for one in prompts
        ]
        self._rank = np.argsort(np.array(sorted(range(len(prompts)), key=hard.__getitem__)))
        for phase in curriculum.phases if isinstance(curriculum, ByPhase) else ():
            if not any(map(phase.weight_of, prompts)):
                there = sorted({(prompt.domain.value, prompt.difficulty) for prompt in prompts})
                raise InputError(
                    f"curriculum: the phase from_step = {phase.from_step} admits none of the"
                    f" {len(prompts)} prompts; they have these pairs of (domain, difficulty):"
                    f" {', '.join(map(str, there))}."
                )

    def choose(self, count: int, update: int) -> list[int]:
        """Indices of the next `count` prompts, for a rollout whose first update (from 1) is
        `update`."""
        weights, size, chosen = self.weights(update), len(self._prompts), list[int]()
        while len(chosen) < count:
            epoch, start = divmod(self._position, size)
            generator = np.random.Generator(np.random.Philox(key=[self._seed, epoch]))
            order = generator.permutation(size)  # that of `tasks.training.loop.rows_of_step`
            wanted = generator.random(size)[start:] < weights[order[start:]]
            taken = start + np.flatnonzero(wanted)[: count - len(chosen)]
            chosen += order[taken].tolist()
            self._position = epoch * size + (int(taken[-1]) + 1 if len(chosen) == count else size)
        return chosen

    def weights(self, update: int) -> np.ndarray:
        """(prompts,) weights at an update; at least one is 1, or `floor` or more."""
        curriculum = self._curriculum
        if isinstance(curriculum, ByDifficulty):
            return (self._rank < self.phase_of(update)).astype(float)
        if isinstance(curriculum, ByPhase):
            weights = np.array(list(map(curriculum.at(update).weight_of, self._prompts)))
            return weights / weights.max()
        weights = np.ones(len(self._prompts))
        if isinstance(curriculum, Online):
            informative = curriculum.by == "informative"
            prior = 0.25 if informative else 1.0  # observations, half of them positive
            for index, (found, seen) in self._recent.items():
                rate = (found + 0.5 * prior) / (seen + prior)
                weight = rate if informative else 4 * rate * (1 - rate)
                weights[index] = max(curriculum.floor, weight)
        return weights

    def observe(self, index: int, correct: Sequence[bool | None], informative: bool) -> None:
        """Record a group of responses to a prompt: which are right (None: cannot be verified), and
        whether their rewards differ."""
        if not isinstance(self._curriculum, Online):
            return
        seen_now = [one for one in correct if one is not None]
        new = seen_now if self._curriculum.by == "pass_rate" else [informative]
        if new:
            found, seen = self._recent.get(index, (0.0, 0.0))
            self._recent[index] = (MEMORY * found + float(sum(new)), MEMORY * seen + len(new))

    def phase_of(self, update: int) -> int:
        """The curriculum's scheduled state at an update, as one number: the update at which the
        phase began, or how many of the easiest prompts may be asked."""
        curriculum = self._curriculum
        if isinstance(curriculum, ByDifficulty):
            progress = min(1.0, (update - 1) / (curriculum.until * self._steps))
            square = progress * (1 - curriculum.start**2) + curriculum.start**2
            return int(np.ceil(len(self._prompts) * np.sqrt(square)))
        return curriculum.at(update).from_step if isinstance(curriculum, ByPhase) else 0

    def state(self) -> dict[str, Any]:
        """JSON for `restore`."""
        recent = [[index, *recent] for index, recent in self._recent.items()]
        return {"position": self._position, "recent": recent}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was returned."""
        self._position = state["position"]
        self._recent = {index: (found, seen) for index, found, seen in state["recent"]}
