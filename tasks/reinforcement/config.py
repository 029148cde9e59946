"""What a GRPO stage can be told, and its curriculum: which prompts a rollout asks, as a function of
the seed, the update, and what earlier rollouts found.

Without a curriculum, rollout after rollout takes the next prompts of one permutation per epoch. A
curriculum gives each prompt a weight w between 0 and 1, and a prompt whose turn comes is taken with
probability w, else passed over until the next epoch; passing over costs nothing.

    difficulty    easiest first: 1 for the easiest part of the prompts, which grows from `start` to
                  all of them, else 0. The part is the square-root competence of Platanios et al.
                  (1903.09848). Easy is a low `difficulty`, then a high `pass_rate`.
    phase         what the phase that the update is in says
    pass_rate     4 p (1 - p), p the prompt's recent rate of right answers: what is neither hopeless
                  nor solved. A prompt whose answers cannot be verified has no rate, and weighs 1
    informative   q, the prompt's recent rate of groups whose rewards differ. So groups that would
                  teach nothing are mostly not sampled at all, which is where dynamic sampling gets
                  its speed (GRESO, 2506.02177, has a similar rule)

The last two weigh at least `floor`, so that what was hopeless is tried again as the policy learns,
and see what the rollouts found that were trained on before the one that is sampled, however long a
judge took.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from schemas.base import InputError, StrictModel
from schemas.examples import Domain, Prompt
from schemas.training import Nucleus, TrainerConfig
from tasks.rehearsal.config import RewardAudit
from tasks.reinforcement.rewarding import parse_rewards
from tasks.reinforcement.rollout import Aggregation, Scale

Algorithm = Literal["grpo", "dr_grpo", "dapo", "gspo"]

MEMORY = 0.8
"""What an observation still counts when the next one of the same prompt comes in: the last five or
so are the recent ones."""


class ByDifficulty(StrictModel):
    """Easiest first. `start`: the part of the prompts that the first update may ask; `until`: after
    which part of the updates it is all."""

    by: Literal["difficulty"]
    start: float = Field(default=0.25, gt=0, le=1)
    until: float = Field(default=0.5, gt=0, le=1)


class Phase(StrictModel):
    """What is asked from update `from_step` on, until the next phase begins.

    Attributes:
        domains: relative weights of domains; one that is not named is not asked. Without it all
            are.
        difficulties: those that are asked. Without it all are.
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
                f"phases begin at updates {begins}; the first must have from_step = 1, and each a"
                " later one than that before it"
            )
        return self

    def at(self, update: int) -> Phase:
        """The phase of an update (from 1)."""
        return [phase for phase in self.phases if phase.from_step <= update][-1]


class Online(StrictModel):
    """By what the policy's own recent rollouts found. `floor`: the least weight of a prompt."""

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
"""What an algorithm's paper says (`tasks.losses.grpo`), where that is not the default below, which
is GRPO's. How many samples fill a batch DAPO leaves open; its overlong shaping is the reward
`overlong`."""


class Collapse(StrictModel):
    """What a dying run is known by (`tasks.reinforcement.collapse`).

    Attributes:
        enabled: False: the run goes on, whatever happens to it.
        window: rollouts that are compared, and from one candidate for the best checkpoint to the
            next.
        drop: of the mean reward, in standard deviations of single responses' rewards.
    """

    enabled: bool = True
    window: int = Field(default=20, ge=3)
    drop: float = Field(default=1.0, gt=0)


class GrpoConfig(TrainerConfig, Nucleus):
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
        curriculum: which prompts are sampled; without it, one permutation of all after the other.
        collapse: what a dying run is known by, and that it is stopped.
        audit: how many prompts the rewards are tried on before the first update, and which
            findings are meant (`tasks.rehearsal.reward_audit`).
        beta: weight of the KL to the initial policy; 0 also skips computing it.
        epsilon, epsilon_high: the ratio is clipped to 1 - epsilon .. 1 + epsilon_high.
        aggregation, importance, scale_rewards: see `tasks.losses.grpo`.
        truncation: the most that a token weighs for being likelier to the program that trains than
            to the one that sampled it (truncated importance sampling); 0 corrects nothing.
        temperature: of sampling, and of every log-probability in the loss.
        top_k, top_p: of sampling alone: log-probabilities, old ones too, are the policy's over all
            tokens, because the mass that was left out is no change of the policy.
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
    aggregation: Aggregation = "sequence"
    importance: Literal["token", "sequence"] = "token"
    scale_rewards: Scale = "group"
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
                f"truncation = {self.truncation} would weigh down tokens on which sampler and"
                " trainer agree; 1 or more, or 0: none"
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
        """Whether some update trains on what other weights than its own sampled."""
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
                    f" {len(prompts)} prompts; (domain, difficulty) that there are:"
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
        """(prompts,) weights at an update, of which one at least is 1 or no less than `floor`."""
        curriculum = self._curriculum
        if isinstance(curriculum, ByDifficulty):
            return (self._rank < self.phase_of(update)).astype(float)
        if isinstance(curriculum, ByPhase):
            weights = np.array(list(map(curriculum.at(update).weight_of, self._prompts)))
            return weights / weights.max()
        weights = np.ones(len(self._prompts))
        if isinstance(curriculum, Online):
            informative = curriculum.by == "informative"
            prior = 0.25 if informative else 1.0  # what "half of them" counts for, in observations
            for index, (found, seen) in self._recent.items():
                rate = (found + 0.5 * prior) / (seen + prior)
                weight = rate if informative else 4 * rate * (1 - rate)
                weights[index] = max(curriculum.floor, weight)
        return weights

    def observe(self, index: int, correct: Sequence[bool | None], informative: bool) -> None:
        """What the responses to a prompt were like: which are right (None: cannot be verified), and
        whether their rewards differ."""
        if not isinstance(self._curriculum, Online):
            return
        seen_now = [one for one in correct if one is not None]
        new = seen_now if self._curriculum.by == "pass_rate" else [informative]
        if new:
            found, seen = self._recent.get(index, (0.0, 0.0))
            self._recent[index] = (MEMORY * found + float(sum(new)), MEMORY * seen + len(new))

    def phase_of(self, update: int) -> int:
        """A number that changes when the prompts that are asked by plan do: the update at which the
        phase began, or how many are asked."""
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
