"""The curriculum of a GRPO stage: which prompts a rollout asks, as a function of the seed, the
update, and the results of earlier rollouts.

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

MEMORY = 0.8
"""The weight of an observation decays by this factor with each newer one of the same prompt: about
five count as recent."""


class ByDifficulty(StrictModel):
    """Easiest first. `start`: the fraction of the prompts that the first update may ask; `until`:
    the fraction of the updates after which all may be asked."""

    by: Literal["difficulty"]
    start: float = Field(default=0.25, gt=0, le=1)
    until: float = Field(default=0.5, gt=0, le=1)


class Phase(StrictModel):
    """Which prompts are asked from update `from_step` until the next phase begins.

    Attributes:
        domains: relative weights of a domain's prompts, so that one with twice as many is asked
            twice as often at the same weight; one that is not named is not asked. None: all are.
        difficulties: those that are asked. None: all are.
    """

    from_step: int = Field(default=1, ge=1)
    domains: dict[Domain, Annotated[float, Field(gt=0)]] | None = Field(default=None, min_length=1)
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
