"""Rubrics: the criteria of a prompt, their weights, and the value of a ruling on them."""

import operator
from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from schemas.examples import Domain, Prompt
from schemas.rubrics import WEIGHTS, Criterion, Importance
from tasks.judging.judging_reward import JudgingConfig

Criteria = tuple[Criterion, ...]


class RubricConfig(JudgingConfig):
    """The settings of a reward by rubrics.

    Attributes:
        criteria: the rubric of prompts that have no other.
        domain_criteria: the rubric of prompts of a domain.
        weights: of criteria, by importance; the paper's for one that is not named.
    """

    aggregation: Literal["explicit", "implicit"] = "implicit"
    criteria: Criteria = ()
    domain_criteria: dict[Domain, Criteria] = Field(default_factory=dict)
    weights: dict[Importance, float] = Field(default_factory=lambda: dict(WEIGHTS))

    @field_validator("weights")
    @classmethod
    def _complete(cls, weights: dict[Importance, float]) -> dict[Importance, float]:
        return WEIGHTS | weights

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if self.aggregation == "implicit" and self.weights != WEIGHTS:
            needs = 'weights: only aggregation = "explicit" has weights; a rating is one number'
            raise ValueError(needs)
        if any(weight < 0 for weight in self.weights.values()):
            raise ValueError(
                "weights: one is negative; write a pitfall as a criterion that is satisfied by"
                " avoiding it"
            )
        for criteria in (self.criteria, *self.domain_criteria.values()):
            titles = [criterion.title for criterion in criteria]
            if twice := sorted({title for title in titles if titles.count(title) > 1}):
                raise ValueError(
                    f"criteria: {twice[0]!r} is the title of more than one criterion; each needs a"
                    " title of its own"
                )
            if criteria and not self.weighs(criteria):
                raise ValueError(
                    "weights: all criteria of a rubric have weight 0; raise one of them"
                )
        tried = self.calibration.tried if self.calibration else ()
        if not all(self.weighs(anchor.criteria) for anchor in tried):
            raise ValueError(
                "weights: all criteria of an anchor have weight 0, so its grades say nothing; give"
                " one of them more, or name calibration.anchors of your own"
            )
        return self

    def weighs(self, criteria: Criteria) -> bool:
        """Whether a rubric has any weight above 0."""
        return any(self.weights[criterion.importance] > 0 for criterion in criteria)


def criteria_of(config: RubricConfig, rubrics: Mapping[str, Criteria], prompt: Prompt) -> Criteria:
    return rubrics.get(prompt.id) or config.domain_criteria.get(prompt.domain) or config.criteria


def value_of(config: RubricConfig, criteria: Criteria) -> Callable[[tuple[float, ...]], float]:
    """The function from the grades of the sheet's items to the reward."""
    if config.aggregation == "implicit":
        return lambda grades: grades[0]
    weights = [config.weights[one.importance] for one in criteria]
    return lambda grades: sum(map(operator.mul, weights, grades)) / sum(weights)


def weighed_again(
    config: RubricConfig, criteria: Criteria, judged: Mapping[str, Any], value: float | None
) -> float | None:
    """The value of an explicit ruling in a ledger under this config's weights; None where they are
    all 0. `judged`: its details; `value`: what it was.

    Raises:
        KeyError: the ruling is about other criteria.
    """
    if not config.weighs(criteria):
        return None
    if "rule" in judged or "problem" in judged or value is None:
        return value
    weigh = value_of(config, criteria)
    versions = judged.get("versions", [judged["grades"]])
    return min(weigh(tuple(grades[one.title] for one in criteria)) for grades in versions)
