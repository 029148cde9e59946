"""Collapse detection: a collapsing run ends with its best checkpoint, or goes on from it without
the change that caused the collapse.

Rollouts are cut into intervals of `window`. The mean reward of an interval scores the weights at
its beginning, and the best of those are kept. The newest `window` rollouts are compared with the
best interval by robust statistics: c and b are their mean rewards, S the median over rollouts of
the standard deviation of single responses' rewards, and sigma the noise of a rollout's mean reward,
1.4826 / sqrt 2 times the median absolute difference between successive rollouts, which no trend
inflates. "Down" is b - c > 4 sigma sqrt(2 / window).

    reward    down, by `drop` x S or more
    kl        down, and the KL to the initial policy above 1 nat a token and ten times what it was
    format    the format reward, 20% or more at best, has fallen to half or less; and is "down"
    entropy   at most 5% of the first interval's, and fewer than a quarter of the groups have
              differing rewards
    dead      no group with differing rewards in the last 2 x window rollouts, though there were
              some before

The last two count only where most groups are not all right, and where the run had improved. Rewards
are compared by stratum (domain and difficulty), weighted as the strata occur now, and with the
weights and penalties of the first update, so that neither a curriculum that turns to harder prompts
nor an annealed number looks like a collapse. Rewards whose weight ends at 0, which nobody asks from
then on, are left out. So are strata that the best interval lacks; where they are the majority, the
newer interval becomes the best.

When the detector fires, the weights and the optimizer of the best checkpoint are restored. If a
number of a reward that is annealed (its weight, its penalties) or the curriculum's phase has
changed since then, or recently, all are frozen at their state before the change, and training goes
on, once: the update's number and the learning rate's schedule continue, and responses sampled from
the collapsing policy are dropped. Otherwise the stage ends with the best checkpoint.

Every `window` rollouts the weights become a candidate, and stay in the workspace until the next
`window` rollouts have scored them; only the best candidate and the newest one are stored. The
initial policy is no candidate: a stage that never improved fails.

False alarms: none in 500 runs of 400 rollouts, with 8 groups or 2 (`healthy` in
tests/tasks/reinforcement/test_collapse.py).
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schemas.base import StageFailed
from tasks.contract.job import Job
from tasks.reinforcement.grpo_config import Collapse, Config
from tasks.reinforcement.rewarding import combine

if TYPE_CHECKING:
    from tasks.reinforcement.batches import RolloutBatches
    from tasks.training.trainer import Trainer

SIGMAS = 4.0
KL_FACTOR, KL_LEAST = 10.0, 1.0
FORMAT_SHARE, FORMAT_LEAST = 0.5, 0.2
ENTROPY_SHARE, TEACHING_SHARE = 0.05, 0.25

RECENT = 5
"""A change within so many windows counts as the cause of a collapse, as does any since the best
checkpoint."""

FOLDER = "best"


class Sign(NamedTuple):
    """The signs of one rollout, and of the last update on it.

    Attributes:
        rewards: stratum -> number and mean reward of its responses.
        spread: standard deviation of the responses' rewards.
        teaching, solved: fractions of the groups: whose rewards differ; that are all right.
        format: mean of the reward `format`, None without such a reward.
        entropy, kl: of the update; None where nothing was trained on, or without a reference.
    """

    rewards: dict[str, tuple[int, float]]
    spread: float
    teaching: float
    solved: float
    format: float | None
    entropy: float | None
    kl: float | None


class Detector:
    """Detects a collapse from a sequence of signs. Its state is a function of them, and of the
    rollbacks.

    Attributes:
        best: how many rollouts were finished when the best weights were current.
    """

    def __init__(self, config: Collapse) -> None:
        self._window, self._drop = config.window, config.drop
        self._signs: list[Sign] = []
        self._since = 0
        self.best = 0

    def put_back(self) -> None:
        """Record a rollback: the rollouts so far, except those of the best interval, say nothing
        about the current weights."""
        self._since = len(self._signs)

    def add(self, sign: Sign) -> str | None:
        """Take the next sign. Returns a description of the collapse, or None."""
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
        signs, window = self._signs, self._window
        change = compare(newest, best)
        fall = 0.0 if change is None else -change
        spread = float(np.median([sign.spread for sign in signs]))
        down = fall > self._noise([_mean(sign.rewards) for sign in signs])
        if down and fall >= self._drop * spread > 0:
            return (
                f"the mean reward fell by {fall:.3g}, {fall / spread:.1f} standard deviations of a"
                " response's, below its best"
            )
        before, now = _average(best, "kl"), _average(newest, "kl")
        if down and now > KL_LEAST and now > KL_FACTOR * before:
            return (
                f"the KL to the initial policy rose from {before:.3g} to {now:.3g}, and the mean"
                f" reward fell by {fall:.3g}"
            )
        before, now = _average(best, "format"), _average(newest, "format")
        lost = before >= FORMAT_LEAST and now <= FORMAT_SHARE * before
        if lost and before - now > self._noise([sign.format or 0.0 for sign in signs]):
            return f"the format reward fell from {before:.3g} to {now:.3g}"
        if self.best and _average(newest, "solved") < 0.5:
            first, now = _average(signs[:window], "entropy"), _average(newest, "entropy")
            if _average(newest, "teaching") < TEACHING_SHARE and now <= ENTROPY_SHARE * first:
                return (
                    f"the entropy fell from {first:.2g} to {now:.2g} nats: responses to one prompt"
                    " hardly differ any more"
                )
            long, earlier = signs[-2 * window :], signs[: -2 * window]
            if not any(sign.teaching for sign in long) and any(sign.teaching for sign in earlier):
                return (
                    f"in the last {len(long)} rollouts the rewards of every group were equal, so"
                    " nothing was learned"
                )
        return None

    def _noise(self, values: Sequence[float]) -> float:
        """The difference of two windows' means that is within noise."""
        sigma = 1.4826 / np.sqrt(2) * np.median(np.abs(np.diff(values)))
        return float(SIGMAS * sigma * np.sqrt(2 / self._window))


def compare(newer: Sequence[Sign], older: Sequence[Sign]) -> float | None:
    """The change of the mean reward, stratum by stratum, weighted as in `newer`; None where most of
    those responses are in strata that `older` lacks."""
    now, before = (_strata(part) for part in (newer, older))
    common = now.keys() & before.keys()
    weight = sum(now[name][0] for name in common)
    if not weight or weight < sum(count for count, _ in now.values()) / 2:
        return None
    return sum(now[name][0] * (now[name][1] - before[name][1]) for name in sorted(common)) / weight


def _strata(signs: Sequence[Sign]) -> dict[str, tuple[float, float]]:
    """Stratum -> number and mean, over several signs."""
    sums: dict[str, tuple[float, float]] = {}
    for sign in signs:
        for name, (count, mean) in sign.rewards.items():
            have, total = sums.get(name, (0.0, 0.0))
            sums[name] = (have + count, total + count * mean)
    return {name: (count, total / count) for name, (count, total) in sums.items() if count}


def _mean(rewards: dict[str, tuple[int, float]]) -> float:
    count = sum(count for count, _ in rewards.values())
    return sum(count * mean for count, mean in rewards.values()) / max(1, count)


def _average(signs: Sequence[Sign], name: str) -> float:
    """The mean of the values that are not None; without any NaN, for which every comparison is
    false."""
    given = [value for sign in signs if (value := getattr(sign, name)) is not None]
    return float(np.mean(given)) if given else math.nan


def sign_of(batches: "RolloutBatches", row: dict[str, float]) -> Sign:
    """The sign of the newest rollout, with the curve's row of the last update on it."""
    rollout = batches.rollout
    assert rollout is not None
    components = batches.components_at_first(int(row["step"]))
    total = combine(batches.rewards, components, rollout.prompts, 1)
    strata: dict[str, list[float]] = {}
    for prompt, reward in zip(rollout.prompts, total, strict=True):
        if not np.isnan(reward):
            strata.setdefault(f"{prompt.domain} {prompt.difficulty}", []).append(float(reward))
    trained = row["trained_groups"] > 0
    return Sign(
        rewards={name: (len(one), float(np.mean(one))) for name, one in sorted(strata.items())},
        spread=float(np.nanstd(total)) if strata else 0.0,
        teaching=float(np.mean(rollout.informative)),
        solved=row["all_right"],
        format=row.get("reward/format"),
        entropy=row["entropy"] if trained else None,
        kl=row.get("kl") if trained else None,
    )


class Guard:
    """Watches a stage for a collapse; its state is part of checkpoints
    (`tasks.training.loop.Keeps`).

    Attributes:
        stopped_at: the update after which the stage ended early, or None.
        rolled_back_at: the update after which it went on from the best checkpoint, or None.
        because: the description of the last collapse.
    """

    def __init__(
        self, config: Config, batches: "RolloutBatches", trainer: "Trainer", job: Job[Any]
    ) -> None:
        self._batches, self._trainer, self._work, self._log = batches, trainer, job.work, job.log
        self._config, self._window = config, config.collapse.window * config.num_iterations
        self._detector = Detector(config.collapse)
        self._history: list[Sign | None] = []
        self.stopped_at: int | None = None
        self.rolled_back_at: int | None = None
        self.because = ""

    @property
    def best_step(self) -> int:
        """How many updates the best weights had."""
        return self._detector.best * self._config.num_iterations

    def after(self, row: dict[str, float]) -> dict[str, float]:
        """Check the policy after an update, given its row of the curve; may restore the best
        checkpoint. See `tasks.training.loop.fit`.

        Returns:
            `rolled_back_to` or `stopped`, the number of updates of the best checkpoint; usually
            nothing.

        Raises:
            StageFailed: the policy has collapsed and was never better than at the start.
        """
        step = int(row["step"])
        if step % self._config.num_iterations:
            return {}
        wrong = self._take(sign_of(self._batches, row))
        found: dict[str, float] = {}
        if wrong:
            self.because, best = wrong, self.best_step
            if not best:
                raise StageFailed(
                    f"the policy has collapsed after {step} updates, and was never better than it"
                    f" was at the start: {wrong}. Lower optimizer.learning_rate, raise beta, or fix"
                    " the rewards; collapse = { enabled = false } turns detection off."
                )
            before_change = None
            if self.rolled_back_at is None:
                first = max(1, min(best, step - RECENT * self._window))
                before_change = self._batches.last_unchanged(first, step)
            self._put_back(counters=before_change is None)
            message = "collapse after update %d: %s. Restored the weights of update %d"
            self._log.warning(message, step, wrong, best)
            if before_change is None:
                self.stopped_at = step
                return {"stopped": float(best)}
            self.rolled_back_at = step
            self._take(None)
            self._batches.freeze(before_change)
            found = {"rolled_back_to": float(best)}
        if step % self._window == 0 and step + self._window <= self._config.steps:
            self._keep_candidate(step)
        return found

    def metrics(self) -> dict[str, Any]:
        """The stage's metrics of it."""
        return {
            "best_step": self.best_step,
            "stopped_at": self.stopped_at,
            "stopped_because": self.because if self.stopped_at is not None else None,
            "rolled_back_at": self.rolled_back_at,
        }

    def state(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays, values = self._batches.state(step)
        own = {
            "history": self._history,
            "rolled_back_at": self.rolled_back_at,
            "because": self.because,
        }
        return arrays, {"run": values, "guard": own}

    def restore(self, step: int, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        self._batches.restore(step, arrays, values["run"])
        own = values["guard"]
        for one in own["history"]:
            self._take(one and Sign(*one))
        self.rolled_back_at, self.because = own["rolled_back_at"], own["because"]

    def _take(self, sign: Sign | None) -> str | None:
        """Record a sign, or a rollback (None). Returns a description of the collapse, or None."""
        self._history.append(sign)
        if sign is None:
            self._detector.put_back()
            return None
        return self._detector.add(sign)

    def _keep_candidate(self, step: int) -> None:
        from tasks.training.checkpoints import save_arrays
        from tasks.training.loop import trained_arrays

        save_arrays(self._work, FOLDER, step, trained_arrays(self._trainer), {})
        for name in self._work.children(FOLDER):
            if _step(name) < step and _step(name) != self.best_step:
                self._work.remove(f"{FOLDER}/{name}")

    def _put_back(self, *, counters: bool) -> None:
        """Restore the best checkpoint. Raises StageFailed: it is missing."""
        from tasks.devices.hosts import barrier
        from tasks.training.checkpoints import FOLDER as CHECKPOINTS
        from tasks.training.checkpoints import Checkpoint
        from tasks.training.loop import put_back

        for name in self._work.children(FOLDER):
            if _step(name) == self.best_step and (tree := self._work.load_tree(f"{FOLDER}/{name}")):
                with Checkpoint(name, *tree) as found:
                    put_back(self._trainer, found, counters=counters)
                barrier()
                return
        self._work.remove(CHECKPOINTS)
        raise StageFailed(
            f"the best checkpoint, after update {self.best_step}, is missing from the stage's"
            " workspace; run again, and the stage starts over."
        )


def _step(name: str) -> int:
    return int(name.partition("-")[0])
