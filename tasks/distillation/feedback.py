"""What a teacher says of a student's responses, whoever it is."""

from typing import NamedTuple, Protocol

import numpy as np


class Feedback(NamedTuple):
    """Of B responses of at most R tokens.

    Attributes:
        logps: (B, R) float32, 0 at padding; a row of NaN where the teacher said nothing, which
            leaves that response out.
        hidden: (B, R, D) what the teacher's unembedding takes, where that was asked for.
    """

    logps: np.ndarray
    hidden: np.ndarray | None = None


class Teacher(Protocol):
    """Gives feedback."""

    @property
    def compiles(self) -> int:
        """How many programs it has compiled in this process."""

    def score(self, prompt_ids: np.ndarray, completion_ids: np.ndarray) -> Feedback:
        """Of prompts (B, P), left-padded, and responses (B, R), right-padded. Raises StageFailed
        when no feedback is to be had."""

    def costs(self) -> dict[str, float]:
        """What it has done and cost since it was made: numbers that add up."""

    def close(self) -> None:
        """End what it holds."""
