"""When a run is dying: the last `window` rollouts beside the best `window` of them, in robust
statistics.

Rollouts are cut into intervals of `window`; the mean reward of an interval scores the weights at
its beginning, and the best of those are kept (`tasks.reinforcement.guard`). The newest `window`
rollouts are compared with the best interval; c and b are their mean rewards, S the median over
rollouts of the standard deviation of single responses' rewards, and sigma the noise of a rollout's
mean reward, 1.4826 / sqrt 2 times the median absolute difference from one rollout to the next,
which no trend inflates. "Down" is b - c > 4 sigma sqrt(2 / window).

    reward    down, by `drop` x S or more
    kl        down, and the KL to the initial policy above 1 nat a token and ten times what it was
    format    responses in the format at most half of what they were, of 20% or more; and down
              likewise
    entropy   at most 5% of the first interval's, and less than a quarter of the groups teach
              anything
    dead      not one group in the last 2 x window rollouts that teaches, and there were some before

The last two count only where it is not because most groups are all right, and where the run had got
better. Rewards are compared stratum by stratum (domain and difficulty), weighted as they occur now,
and with the weights of the first update: neither a curriculum that turns to harder prompts nor an
annealed weight is a collapse. Strata that the best interval lacks are left out; where those are
most, the newer interval is the best.

False alarms: see `healthy` in tests/tasks/reinforcement/test_collapse.py. Of 500 such runs of 400
rollouts, with 8 groups or 2, none.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pydantic import Field

from schemas.base import StrictModel

SIGMAS = 4.0
KL_FACTOR, KL_LEAST = 10.0, 1.0
FORMAT_SHARE, FORMAT_LEAST = 0.5, 0.2
ENTROPY_SHARE, TEACHING_SHARE = 0.05, 0.25


class Collapse(StrictModel):
    """The detector.

    Attributes:
        enabled: False: the run goes on, whatever happens to it.
        window: rollouts that are compared, and from one candidate for the best checkpoint to the
            next.
        drop: of the mean reward, in standard deviations of single responses' rewards.
    """

    enabled: bool = True
    window: int = Field(default=20, ge=3)
    drop: float = Field(default=1.0, gt=0)


class Sign(NamedTuple):
    """What one rollout, and the last update on it, tell.

    Attributes:
        rewards: stratum -> number and mean reward of its responses.
        spread: standard deviation of the responses' rewards.
        teaching, solved: fractions of the groups: whose rewards differ; that are all right.
        format: mean of the reward `format`, None where there is no such reward.
        entropy, kl: of the update; None where nothing was trained on, or there is no reference.
    """

    rewards: dict[str, tuple[int, float]]
    spread: float
    teaching: float
    solved: float
    format: float | None
    entropy: float | None
    kl: float | None


class Detector:
    """Is given sign after sign. Its state is a function of them, and of when the weights were put
    back.

    Attributes:
        best: how many rollouts were finished at the best weights' time.
    """

    def __init__(self, config: Collapse) -> None:
        self._window, self._drop = config.window, config.drop
        self._signs: list[Sign] = []
        self._since = 0
        self.best = 0

    @property
    def rollouts(self) -> int:
        """How many signs there were."""
        return len(self._signs)

    def put_back(self) -> None:
        """The weights are the best ones again: the rollouts so far say nothing about them, but for
        those of the best interval."""
        self._since = len(self._signs)

    def add(self, sign: Sign) -> str | None:
        """Take the next sign; returns what is wrong, in words, or None."""
        self._signs.append(sign)
        count, window = len(self._signs), self._window
        if count < 2 * window or count - self._since < window:
            return None
        newest, best = self._signs[-window:], self._signs[self.best : self.best + window]
        if count % window == 0:
            change = compare(newest, best)
            if change is None or change > 0:
                self.best, best = count - window, newest
        return self._wrong(newest, best)

    def _wrong(self, newest: Sequence[Sign], best: Sequence[Sign]) -> str | None:
        signs = self._signs
        change = compare(newest, best)
        fall = 0.0 if change is None else -change
        spread = float(np.median([sign.spread for sign in signs]))
        down = fall > self._noise([_mean(sign) for sign in signs])
        if down and fall >= self._drop * spread > 0:
            return (
                f"the mean reward fell by {fall:.3g}, {fall / spread:.1f} standard deviations of a"
                " response's, below its best"
            )
        before, now = (_average([sign.kl for sign in part]) for part in (best, newest))
        if (
            down
            and before is not None
            and now is not None
            and now > max(KL_LEAST, KL_FACTOR * before)
        ):
            return (
                f"the KL to the initial policy is {now:.3g}, it was {before:.3g}, and the mean"
                f" reward fell by {fall:.3g}"
            )
        before, now = (_average([sign.format for sign in part]) for part in (best, newest))
        if before is not None and now is not None and before >= FORMAT_LEAST:
            formats = [sign.format or 0.0 for sign in signs]
            if now <= FORMAT_SHARE * before and before - now > self._noise(formats):
                return f"the format's reward is {now:.3g}, it was {before:.3g}"
        if self.best and np.mean([sign.solved for sign in newest]) < 0.5:
            first, now = (
                _average([sign.entropy for sign in part])
                for part in (signs[: self._window], newest)
            )
            few = np.mean([sign.teaching for sign in newest]) < TEACHING_SHARE
            if few and first is not None and now is not None and now <= ENTROPY_SHARE * first:
                return (
                    f"the entropy is {now:.2g} nats, it was {first:.2g}: responses to one prompt"
                    " hardly differ any more"
                )
            long, earlier = signs[-2 * self._window :], signs[: -2 * self._window]
            if not any(sign.teaching for sign in long) and any(sign.teaching for sign in earlier):
                return (
                    f"no group of the last {len(long)} rollouts taught anything: the rewards of"
                    " each were equal"
                )
        return None

    def _noise(self, values: Sequence[float]) -> float:
        """What the means of two windows may differ by for no reason."""
        sigma = 1.4826 / np.sqrt(2) * np.median(np.abs(np.diff(values)))
        return float(SIGMAS * sigma * np.sqrt(2 / self._window))


def compare(newer: Sequence[Sign], older: Sequence[Sign]) -> float | None:
    """By how much the mean reward changed, stratum by stratum, weighted as in the newer ones; None
    where most of those are in others."""
    now, before = (_strata(part) for part in (newer, older))
    common = now.keys() & before.keys()
    weight = sum(now[name][0] for name in common)
    if not weight or weight < sum(count for count, _ in now.values()) / 2:
        return None
    return sum(now[name][0] * (now[name][1] - before[name][1]) for name in sorted(common)) / weight


def _strata(signs: Sequence[Sign]) -> dict[str, tuple[float, float]]:
    """Stratum -> number and mean over several signs."""
    sums: dict[str, tuple[float, float]] = {}
    for sign in signs:
        for name, (count, mean) in sign.rewards.items():
            have, total = sums.get(name, (0.0, 0.0))
            sums[name] = (have + count, total + count * mean)
    return {name: (count, total / count) for name, (count, total) in sums.items() if count}


def _mean(sign: Sign) -> float:
    return sum(count * mean for count, mean in sign.rewards.values()) / max(
        1, sum(count for count, _ in sign.rewards.values())
    )


def _average(values: Sequence[float | None]) -> float | None:
    given = [value for value in values if value is not None]
    return float(np.mean(given)) if given else None
