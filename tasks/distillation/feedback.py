"""The interface of a teacher that scores a student's responses."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tasks.data.packing import Text


class Feedback(NamedTuple):
    """A teacher's scores of B responses of at most R tokens.

    Attributes:
        logps: (B, R) float32, 0 at padding; a row of NaN, where the teacher gave nothing, leaves
            that response out.
        hidden: (B, R, D) the inputs of the teacher's unembedding, where they were asked for.
    """

    logps: np.ndarray
    hidden: np.ndarray | None = None


class TokenTeacher:
    """Gives feedback."""

    def score(self, texts: Sequence[Text]) -> Feedback:
        """Score the responses of B texts. Raises StageFailed when the teacher is not available."""
        raise NotImplementedError

    def costs(self) -> dict[str, float]:
        """Count what it has done and cost in this stage so far."""
        return {}

    def restore(self, costs: dict[str, float]) -> None:
        """Count on from the `costs` of the attempt that this one continues."""

    def close(self) -> None:
        """Release its resources."""
