"""What is done about a dying run: it ends with its best checkpoint, or goes on from there without
the change that killed it.

When the detector (`tasks.reinforcement.collapse`) fires, the weights and the optimizer of the best
checkpoint are put back. If a reward's weight or the curriculum's phase has changed since then, or
not long ago, both are held as they were before, and training goes on, once: the number of the
update and the learning rate's schedule go on, too, and what was sampled from the dying policy is
dropped. Otherwise the stage ends with the best checkpoint.

Every `window` rollouts the weights are a candidate, and are kept in the workspace until the next
`window` rollouts have shown what they are worth: the best candidate and the newest one exist at a
time. The initial policy is no candidate: a stage that never got better fails.
"""

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from schemas.base import StageFailed
from tasks.contract.job import Job
from tasks.reinforcement.collapse import Detector, Sign
from tasks.reinforcement.config import GrpoConfig

if TYPE_CHECKING:
    from tasks.training.checkpoints import Checkpoint
    from tasks.training.trainer import Trainer

FOLDER = "best"

RECENT = 5
"""Windows in which a change is taken to be what a run dies of. (A change since the best checkpoint
always is.)"""


class Run(Protocol):
    """The rollouts that are watched. `kept` and `restore`: see `tasks.training.loop.Keeps`."""

    def sign(self, row: dict[str, float]) -> Sign:
        """What the newest rollout tells, and the row of the curve of the last update on it."""

    def last_like(self, first: int, newest: int) -> int | None:
        """Until which update after `first` the rewards' weights, and the prompts that are asked,
        are by plan as at `first`; None: `newest`."""

    def hold(self, update: int) -> None:
        """Weights and prompts stay as they are at this update; what was sampled and not trained on
        is dropped."""

    def kept(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]: ...

    def restore(self, step: int, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None: ...


class Guard:
    """Watches a stage, and is what it `Keeps`.

    Attributes:
        stopped_at: the update after which it ended early, or None.
        rolled_back_at: the update after which it went on from the best checkpoint, or None.
        because: what was wrong, the last time.
    """

    def __init__(self, config: GrpoConfig, run: Run, trainer: "Trainer", job: Job[Any]) -> None:
        self._run, self._trainer, self._work, self._log = run, trainer, job.work, job.log
        self._steps, self._updates, self._window = (
            config.steps,
            config.num_iterations,
            config.collapse.window,
        )
        self._detector = Detector(config.collapse)
        self._history: list[Sign | None] = []
        self.stopped_at: int | None = None
        self.rolled_back_at: int | None = None
        self.because = ""

    @property
    def best_step(self) -> int:
        """How many updates were finished when the weights were best."""
        return self._detector.best * self._updates

    def after(self, row: dict[str, float]) -> dict[str, float]:
        """Look at what the update of a row of the curve did to the policy; may put the trainer
        back. See `tasks.training.loop.fit`.

        Returns:
            `rolled_back_to` or `stopped`, with the number of updates at the best checkpoint; mostly
            nothing.

        Raises:
            StageFailed: the policy is dying, and never was better than when the stage began.
        """
        step = int(row["step"])
        if step % self._updates:
            return {}
        wrong = self._take(self._run.sign(row))
        found: dict[str, float] = {}
        if wrong:
            self.because = wrong
            if not self.best_step:
                raise StageFailed(
                    f"the policy was dying after {step} updates, and never better than the one it"
                    f" began with: {wrong}. Lower optimizer.learning_rate, raise beta, or look at"
                    " the rewards; collapse = { enabled = false } lets it go on."
                )
            first = max(1, min(self.best_step, step - RECENT * self._window * self._updates))
            before_change = (
                self._run.last_like(first, step) if self.rolled_back_at is None else None
            )
            self._put_back(counters=before_change is None)
            self._log.warning(
                "after update %d: %s. The weights are those of update %d again",
                step,
                wrong,
                self.best_step,
            )
            if before_change is None:
                self.stopped_at = step
                return {"stopped": float(self.best_step)}
            self.rolled_back_at = step
            self._mark()
            self._run.hold(before_change)
            found = {"rolled_back_to": float(self.best_step)}
        if (
            self._detector.rollouts % self._window == 0
            and step + self._window * self._updates <= self._steps
        ):
            self._keep_candidate(step)
        return found

    def metrics(self) -> dict[str, Any]:
        """What the stage says of it."""
        return {
            "best_step": self.best_step,
            "stopped_at": self.stopped_at,
            "stopped_because": self.because if self.stopped_at is not None else None,
            "rolled_back_at": self.rolled_back_at,
        }

    def kept(self, step: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        arrays, values = self._run.kept(step)
        own = {
            "history": self._history,
            "rolled_back_at": self.rolled_back_at,
            "because": self.because,
        }
        return arrays, {"run": values, "guard": own}

    def restore(self, step: int, arrays: dict[str, np.ndarray], values: dict[str, Any]) -> None:
        self._run.restore(step, arrays, values["run"])
        own = values["guard"]
        for one in own["history"]:
            if one is None:
                self._mark()
            else:
                self._take(Sign(*one))
        self.rolled_back_at, self.because = own["rolled_back_at"], own["because"]

    def _take(self, sign: Sign) -> str | None:
        self._history.append(sign)
        return self._detector.add(sign)

    def _mark(self) -> None:
        self._history.append(None)
        self._detector.put_back()

    def _keep_candidate(self, step: int) -> None:
        from tasks.training.checkpoints import save_arrays
        from tasks.training.loop import trained_arrays

        save_arrays(self._work, FOLDER, step, trained_arrays(self._trainer), {})
        for name in self._work.children(FOLDER):
            if _step(name) < step and _step(name) != self.best_step:
                self._work.remove(f"{FOLDER}/{name}")

    def _put_back(self, *, counters: bool) -> None:
        from tasks.devices.hosts import barrier
        from tasks.training.loop import put_back

        with self._best() as found:
            put_back(self._trainer, found, counters=counters)
        barrier()

    def _best(self) -> "Checkpoint":
        from tasks.training.checkpoints import Checkpoint, Checkpoints

        for name in self._work.children(FOLDER):
            tree = (
                self._work.load_tree(f"{FOLDER}/{name}") if _step(name) == self.best_step else None
            )
            if tree is not None:
                return Checkpoint(name, *tree)
        Checkpoints(self._work, seconds=0, log=self._log).forget()
        lost = (
            f"the best checkpoint, after update {self.best_step}, is not in the stage's workspace"
            " any more"
        )
        raise StageFailed(f"{lost}; run again, and the stage starts over.")


def _step(name: str) -> int:
    return int(name.partition("-")[0])
