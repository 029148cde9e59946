"""Numeric-answer reward: 1 for the right number, partial credit for a close one, `wrong` for any
other answer or none.

    r = 1                   the prompt's check agrees, as in `exact_answer`
    r = the band's value    |answer / reference - 1| <= the band's `within`; the narrowest band that
                            holds it; 48% is 0.48 where the check reads 50% as 0.5
    r = wrong               otherwise, malformed responses and calculations copied from the question
                            included

The default bands are those of MaxText's GRPO example on Tunix (GSM8K; +3 exact, +0.5 for a ratio of
0.9 to 1.1, +0.25 for 0.8 to 1.2, wrong -1), which a public entrant of google-tunix-hackathon used,
divided by 3; there `wrong` is -1/3, here 0 by default. A close number is still wrong: bands give a
policy that never hits the number a slope, and should lose weight (`Anneal`) once it does. A
reference of 0 has no bands.

Prompts whose answer is no number abstain, and so do quantities: 5.1 J is not close to 5 kJ
(`exact_answer` knows units).
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import StrictModel
from schemas.examples import Prompt
from tasks.contract.reward import Response, Reward, RewardConfig
from tasks.verification.copied import is_copied
from tasks.verification.numbers import Number, gap_of, parse_number
from tasks.verification.verify import Verdict, verify_many

CHECKS = ("numeric", "math")


class Band(StrictModel):
    """The value of an answer within this fraction of the reference."""

    within: float = Field(gt=0, lt=1)
    value: float = Field(gt=0, lt=1)


class Config(RewardConfig):
    """`near`: bands from narrow to wide, each worth less than the one before; empty: only the right
    number earns anything."""

    name: Literal["numeric_answer"] = "numeric_answer"
    near: tuple[Band, ...] = (Band(within=0.1, value=1 / 6), Band(within=0.2, value=1 / 12))
    wrong: float = Field(default=0.0, ge=-1, le=0)

    @model_validator(mode="after")
    def _narrow_first(self) -> Self:
        for narrow, wide in zip(self.near, self.near[1:], strict=False):
            if not (narrow.within < wide.within and narrow.value > wide.value):
                raise ValueError(
                    "near must go from narrow to wide, each band worth less than the one before"
                )
        return self


def score(
    config: Config, prompts: Sequence[Prompt], responses: Sequence[Response]
) -> list[float | None]:
    """The formula above; None where the reference is no number."""
    references = {
        index: reference
        for index, prompt in enumerate(prompts)
        if prompt.check in CHECKS and (reference := parse_number(prompt.answer))
    }
    asked = [prompts[index] for index in references]
    verdicts = verify_many(asked, [responses[index].text for index in references])
    values: list[float | None] = [None] * len(prompts)
    for (index, reference), verdict in zip(references.items(), verdicts, strict=True):
        near = _near(config, prompts[index], verdict, reference)
        values[index] = 1.0 if verdict.exact else near
    return values


def _near(config: Config, prompt: Prompt, verdict: Verdict, reference: Number) -> float:
    given = None if verdict.answer is None else parse_number(verdict.answer)
    if given is None or reference.value == 0 or is_copied(prompt, verdict.answer or ""):
        return config.wrong
    gap = gap_of(given, reference) / abs(reference.value)
    values = (band.value for band in config.near if gap <= Fraction(str(band.within)))
    return next(values, config.wrong)


REWARD = Reward(version=3, config=Config, score=score)
