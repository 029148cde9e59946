"""Rubrics: what a good answer to one prompt does, as criteria that a judge looks at (Rubrics as
Rewards, 2507.17746)."""

from typing import Literal

from pydantic import Field

from schemas.base import StrictModel

Importance = Literal["essential", "important", "optional", "pitfall"]

WEIGHTS: dict[Importance, float] = {
    "essential": 1.0,
    "important": 0.7,
    "optional": 0.3,
    "pitfall": 0.9,
}
"""The paper's weights. A pitfall is stored as a criterion that a good answer satisfies by avoiding
it: every weight is positive."""


class Criterion(StrictModel):
    """One thing to look at, written so that satisfying it is good ("Does not recommend aspirin").

    Attributes:
        title: a few words, unique within the rubric.
        text: what the judge is asked to decide: satisfied or not.
    """

    title: str = Field(min_length=1)
    text: str = Field(min_length=1)
    importance: Importance = "important"


class Rubric(StrictModel):
    """The criteria for one prompt; `id` is the prompt's."""

    id: str
    criteria: tuple[Criterion, ...] = Field(min_length=1)
