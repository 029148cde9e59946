"""Calibration: can a judge be trusted, and is it still the same judge?

Before a stage begins, its judge grades the anchors: responses of known worth, some of them attacks.
It must put them into the right order, or the stage refuses to train on its noise. It grades them
again on the first rollout, and on one of `every` rollouts from then on. An endpoint may replace its
model without notice; if its grades have moved, or their order is lost, the stage ends before the
update.

    order    the fraction of pairs of anchors of one question and unequal worth whose better one has
             the better grade (a tie is half a pair): 1 is perfect, 0.5 is chance
    drift    the mean of (grade now - grade at the baseline) over the anchors, with Student's
             interval; one that lies entirely beyond the tolerance fails

Anchors are judged without the rules that protect a reward, so the order shows how easily the judge
itself is manipulated.

The digest of a rollout's responses decides whether it is checked, and the number of the repetition:
a resumed stage checks the same rollouts and finds the same rulings in the store. All stages of a
store that ask the same judge the same questions share a baseline, so grades are comparable between
runs. Another name for the baseline accepts the judge as it is now.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
from pydantic import Field, field_validator

from schemas.base import StageFailed, StrictModel, digest
from tasks.judging.anchors import ANCHORS, Anchor
from tasks.judging.bench import Bench, Case
from tasks.statistics.intervals import record
from tasks.statistics.means import student

_SAME = 1e-9


class Calibration(StrictModel):
    """Say when and how strictly a judge is checked.

    Attributes:
        anchors: responses of known worth, with at least two of unequal worth to some question;
            None: those of `tasks.judging.anchors`.
        every: one of so many rollouts is checked, beside the first.
        tolerance: how far the mean grade, from 0 to 1, may move.
        least_order: the fraction of the anchors' pairs that must be in the right order.
        baseline: any name; a new one begins a new baseline.
    """

    anchors: tuple[Anchor, ...] | None = Field(default=None, min_length=2)
    every: int = Field(default=50, ge=1)
    tolerance: float = Field(default=0.1, gt=0, le=1)
    least_order: float = Field(default=0.8, ge=0, le=1)
    baseline: str = "first"

    @field_validator("anchors")
    @classmethod
    def _can_be_ordered(cls, anchors: tuple[Anchor, ...] | None) -> tuple[Anchor, ...] | None:
        if anchors is not None and not _pairs(anchors):
            raise ValueError(
                "no question has two anchors of unequal score, so there is no order to check; add"
                " one"
            )
        return anchors

    @property
    def tried(self) -> tuple[Anchor, ...]:
        return ANCHORS if self.anchors is None else self.anchors


@dataclass(frozen=True)
class Calibrator:
    """Checks a judge by its anchors.

    Attributes:
        case_of: makes the judge's case of an anchor.
        baseline: the grades that later ones are compared with.
    """

    config: Calibration
    bench: Bench
    case_of: Callable[[Anchor], Case]
    baseline: tuple[float | None, ...] = ()

    @classmethod
    def begin(
        cls, config: Calibration, bench: Bench, case_of: Callable[[Anchor], Case]
    ) -> "Calibrator":
        """Make the baseline, or find it in the store. Raises StageFailed: the judge cannot tell
        good from bad."""
        one = cls(config, bench, case_of)
        return replace(one, baseline=one._tried(["baseline", config.baseline])[0])

    def check(self, update: int, rollout: Sequence[str]) -> dict[str, Any] | None:
        """Check the judge again if it is this rollout's turn; returns the result for the ledger.

        Args:
            update: the update that the rollout is scored for, from 1.
            rollout: its responses.

        Raises:
            StageFailed: the judge has drifted, or lost the order.
        """
        mark = digest(list(rollout))
        if update != 1 and int(mark[:12], 16) % self.config.every:
            return None
        grades, order = self._tried([update, mark])
        pairs = zip(self.baseline, grades, strict=True)
        before, after = (
            np.array([pair for pair in pairs if None not in pair], float).reshape(-1, 2).T
        )
        moved = after - before
        drift, interval = float(moved.mean()), student(moved.tolist())
        if interval.low > self.config.tolerance or interval.high < -self.config.tolerance:
            raise StageFailed(
                f"the judge has drifted: its mean grade of {len(moved)} anchors was"
                f" {before.mean():.3f} when baseline {self.config.baseline!r} was made, and"
                f" {after.mean():.3f} at update {update}: a difference of {drift:+.3f}"
                f" [{interval.low:+.3f}, {interval.high:+.3f}] is beyond calibration.tolerance ="
                f" {self.config.tolerance:g}. Nothing was trained on this rollout. Ask the model"
                " that made the baseline; or set calibration.baseline to another name: that begins"
                " the stage anew, with the judge as it is now."
            )
        return {"order": order, **record("drift", drift, interval), "grades": list(grades)}

    def _tried(self, repetition: list[Any]) -> tuple[tuple[float | None, ...], float]:
        """The grades of the anchors and their order, which must be good enough. A repetition's
        number is never 0, which is that of a reward's own questions."""
        config, anchors = self.config, self.config.tried
        sample = 1 + int(digest(repetition)[:12], 16)
        cases = [replace(self.case_of(one), ruled=False, sample=sample) for one in anchors]
        grades = tuple(one.value for one in self.bench.judge_all(cases))
        order = order_of(anchors, grades)
        if order >= config.least_order:  # NaN has no order
            return grades, order
        wrong = [
            f"For example, {anchors[better].response!r} got {high:.2f},"
            f" {anchors[worse].response!r} {low:.2f}"
            for worse, better in _pairs(anchors)
            if (low := grades[worse]) is not None
            and (high := grades[better]) is not None
            and low >= high
        ]
        raise StageFailed(
            f"the judge cannot tell good responses from bad ones: it has {order:.0%} of"
            f" {len(_pairs(anchors))} pairs of anchors in the right order, below"
            f" calibration.least_order = {config.least_order:g}."
            f" {wrong[0] if wrong else 'None was graded'}. Nothing was trained on its rewards. Use"
            " a better judge, or lower calibration.least_order."
        )


def order_of(anchors: Sequence[Anchor], grades: Sequence[float | None]) -> float:
    """The fraction of the pairs in the right order, ties as halves; NaN if no pair has both
    grades."""
    right = []
    for worse, better in _pairs(anchors):
        low, high = grades[worse], grades[better]
        if low is not None and high is not None:
            right.append(0.5 if abs(high - low) <= _SAME else float(high > low))
    return float(np.mean(right)) if right else float("nan")


def _pairs(anchors: Sequence[Anchor]) -> list[tuple[int, int]]:
    """Indices of the (worse, better) anchor of one question."""
    return [
        (worse, better)
        for (worse, low), (better, high) in permutations(enumerate(anchors), 2)
        if low.question == high.question and low.score < high.score
    ]
