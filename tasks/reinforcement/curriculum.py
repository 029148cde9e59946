"""Curricula: which prompts a rollout samples, as a function of the seed, the update, and what
earlier rollouts found.

Without one, rollout after rollout takes the next prompts of one permutation per epoch. A curriculum
gives each prompt a weight w between 0 and 1, and a prompt whose turn comes is taken with
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
judge took."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from schemas.base import InputError, StrictModel
from schemas.examples import Domain, Prompt

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
        return (
            1.0
            if self.domains is None
            else self.domains.get(prompt.domain, 0.0) / max(self.domains.values())
        )


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
        self._position = 0
        self._recent: dict[int, tuple[float, float]] = {}
        if isinstance(curriculum, ByDifficulty):
            ease = [
                (
                    prompt.difficulty,
                    -(0.5 if prompt.pass_rate is None else prompt.pass_rate),
                    prompt.id,
                )
                for prompt in prompts
            ]
            self._rank = np.argsort(np.array(sorted(range(len(prompts)), key=ease.__getitem__)))
        if isinstance(curriculum, ByPhase):
            for phase in curriculum.phases:
                if not any(phase.weight_of(prompt) for prompt in prompts):
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
            taken = (
                start
                + np.flatnonzero(generator.random(size)[start:] < weights[order[start:]])[
                    : count - len(chosen)
                ]
            )
            chosen += order[taken].tolist()
            self._position = epoch * size + (int(taken[-1]) + 1 if len(chosen) == count else size)
        return chosen

    def weights(self, update: int) -> np.ndarray:
        """(prompts,) weights at an update, of which one at least is 1 or no less than `floor`."""
        curriculum, size = self._curriculum, len(self._prompts)
        if isinstance(curriculum, ByDifficulty):
            return (self._rank < self.phase_of(update)).astype(float)
        if isinstance(curriculum, ByPhase):
            phase = curriculum.at(update)
            weights = np.array([phase.weight_of(prompt) for prompt in self._prompts])
            return weights / weights.max()
        weights = np.ones(size)
        if isinstance(curriculum, Online):
            for index, (found, seen) in self._recent.items():
                rate = (found + 0.5 * self._prior) / (seen + self._prior)
                weights[index] = max(
                    curriculum.floor,
                    rate if curriculum.by == "informative" else 4 * rate * (1 - rate),
                )
        return weights

    @property
    def _prior(self) -> float:
        """How many observations "half of them" counts for, before there are any."""
        return (
            0.25
            if isinstance(self._curriculum, Online) and self._curriculum.by == "informative"
            else 1.0
        )

    def observe(self, index: int, correct: Sequence[bool | None], informative: bool) -> None:
        """What the responses to a prompt were like: which are right (None: cannot be verified), and
        whether their rewards differ."""
        if not isinstance(self._curriculum, Online):
            return
        by_rate = self._curriculum.by == "pass_rate"
        new = (
            [float(one) for one in correct if one is not None] if by_rate else [float(informative)]
        )
        if new:
            found, seen = self._recent.get(index, (0.0, 0.0))
            self._recent[index] = (MEMORY * found + sum(new), MEMORY * seen + len(new))

    def phase_of(self, update: int) -> int:
        """A number that changes when the prompts that are asked by plan do: the update at which the
        phase began, or how many are asked."""
        curriculum = self._curriculum
        if isinstance(curriculum, ByDifficulty):
            progress = min(1.0, (update - 1) / (curriculum.until * self._steps))
            return int(
                np.ceil(
                    len(self._prompts)
                    * np.sqrt(progress * (1 - curriculum.start**2) + curriculum.start**2)
                )
            )
        return curriculum.at(update).from_step if isinstance(curriculum, ByPhase) else 0

    def kept(self) -> dict[str, Any]:
        """JSON for `restore`."""
        return {
            "position": self._position,
            "recent": [[index, *recent] for index, recent in self._recent.items()],
        }

    def restore(self, kept: dict[str, Any]) -> None:
        """Go on where `kept` was returned."""
        self._position = kept["position"]
        self._recent = {index: (found, seen) for index, found, seen in kept["recent"]}
