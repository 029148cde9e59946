"""General judge: how accurate, logical and coherent a response is, less a penalty for inventions
(Pinocchio's judge).

    r = max(0, sum_a w_a x_a / sum_a w_a - penalty h)

x_a is the rating of aspect a in [0, 1] (1 to 10 from an endpoint, 0 to 9 from a Gemma), h whether
the response states something false or made up (1 or 0, or the probability). An endpoint gets one
question; a judge that rates by its next token gets one per aspect.

Verification takes precedence: where an answer can be verified, accuracy is the result of
`tasks.verification.verify`, and the judge is asked for the other aspects.
"""

import math
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.examples import Prompt
from tasks.contract.reward import Judged, Resources, Response
from tasks.judging.bench import Case
from tasks.judging.judging_reward import Judging, JudgingConfig, judging_reward
from tasks.judging.sheets import Item, Sheet
from tasks.verification.correct import are_correct

Aspect = Literal["accuracy", "logic", "coherence", "completeness", "creativity"]

_ASPECTS: dict[Aspect, str] = {
    "accuracy": (
        "Accuracy: is the answer right, does it agree with the reference answer if there is one,"
        " and do all facts hold?"
    ),
    "logic": (
        "Logic: does each step of the reasoning follow from those before it, and does the answer"
        " follow from the reasoning?"
    ),
    "coherence": (
        "Coherence: is the response clear and well organised, without contradiction, repetition or"
        " padding?"
    ),
    "completeness": "Completeness: is everything done that the task asks for?",
    "creativity": (
        "Creativity: is the response original and vivid, where the task leaves room for it?"
    ),
}
_WEIGHTS: dict[Aspect, float] = {"accuracy": 0.5, "logic": 0.3, "coherence": 0.2}
_NOTHING_INVENTED = Item(
    "nothing_invented",
    "Nothing invented: whatever the response states as a fact is true, or follows from the task or"
    " the reference answer.",
    "satisfied",
)


class Config(JudgingConfig):
    """See the module docstring.

    Attributes:
        aspects: aspect -> weight.
        hallucination_penalty: the deduction for a response that invents something; at 0 the judge
            is not asked about it.
        verify: take accuracy from the verifier where the answer can be verified.
    """

    name: Literal["llm_judge"] = "llm_judge"
    aspects: dict[Aspect, float] = Field(default_factory=lambda: dict(_WEIGHTS), min_length=1)
    hallucination_penalty: float = Field(default=0.5, ge=0, le=1)
    verify: bool = True

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if not all(weight > 0 for weight in self.aspects.values()):
            raise ValueError(
                "aspects: every weight must be above 0; leave out an aspect that does not count"
            )
        return self


def prepare(config: Config, resources: Resources) -> Judging[Config]:
    """Open the judge. Raises what `Judging.begin` raises."""
    anchored = lambda one: case_of(config, one.as_prompt(), one.response)  # noqa: E731
    return Judging.begin(config, resources, anchored)


def score(
    judging: Judging[Config], prompts: Sequence[Prompt], responses: Sequence[Response]
) -> list[Judged]:
    """Numbers from 0 to 1, None where the judge gave no ruling; details as in
    `tasks.judging.bench`, and `verified`."""
    config, texts = judging.config, [response.text for response in responses]
    asks = config.verify and "accuracy" in config.aspects
    verified = are_correct(prompts, texts) if asks else [None] * len(prompts)
    cases = [case_of(config, *one) for one in zip(prompts, texts, verified, strict=True)]
    judged = judging.judge((case if case.sheet.items else None for case in cases), responses)
    found = []
    for case, correct, one in zip(cases, verified, judged, strict=True):
        value = one.value if case.sheet.items else case.value(())
        verdict = {} if correct is None else {"verified": correct}
        found.append(Judged(value, one.detail | verdict))
    return found


def case_of(config: Config, prompt: Prompt, completion: str, correct: bool | None = None) -> Case:
    """A response as a case for the judge; its sheet is empty if the verifier decides everything.

    Args:
        correct: the verifier's result; None: the answer cannot be verified.
    """
    rated = [aspect for aspect in config.aspects if correct is None or aspect != "accuracy"]
    items = tuple(Item(aspect, _ASPECTS[aspect], "rating") for aspect in rated)
    if config.hallucination_penalty:
        items += (_NOTHING_INVENTED,)
    weights = [config.aspects[aspect] for aspect in rated]

    def value(grades: tuple[float, ...]) -> float:
        # the last grade may be that of the inventions
        parts = [weight * grade for weight, grade in zip(weights, grades, strict=False)]
        if correct is not None:
            parts.append(config.aspects["accuracy"] * correct)
        penalty = config.hallucination_penalty
        lost = penalty * (1 - grades[-1]) if penalty else 0.0
        # exact sums: in any order at most 1
        return max(0.0, math.fsum(parts) / math.fsum(config.aspects.values()) - lost)

    return Case(prompt, completion, Sheet(items, "", config.longest, config.response_format), value)


REWARD = judging_reward(
    Config,
    prepare,
    score,
    questions=lambda config: len(config.aspects) + bool(config.hallucination_penalty),
)
