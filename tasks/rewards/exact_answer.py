"""Exact-answer reward: 1 when the answer of a well-formed trace agrees with the reference, 0 when it does not or there is no such trace.

Agreement is what the evaluations mean by correct: `tasks.verify.verify`, and `tasks.grounding.judge_grounded` for grounded prompts, where
the grounded refusal is the one correct answer to what the context does not tell. Prompts whose answer cannot be verified
(check = "none") abstain.
"""

from typing import Literal

from pydantic import Field

from schemas.base import StrictModel
from schemas.examples import Prompt
from tasks.grounding import judge_grounded
from tasks.verify import verify

VERSION = 1


class Config(StrictModel):
    """No knobs beyond the weight: GRPO's advantages do not depend on the scale of a reward."""

    name: Literal["exact_answer"] = "exact_answer"
    weight: float = Field(default=1.0, gt=0)


def score(config: Config, prompts: list[Prompt], completions: list[str]) -> list[float | None]:
    """1.0 correct, 0.0 wrong or malformed, None where the prompt's answer cannot be verified."""
    verdicts = [is_correct(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]
    return [None if correct is None else float(correct) for correct in verdicts]


def is_verifiable(prompt: Prompt) -> bool:
    """Whether an answer to `prompt` can be called right or wrong at all."""
    return prompt.check != "none" or prompt.grounding in ("unanswerable", "out_of_domain")


def is_correct(prompt: Prompt, completion: str) -> bool | None:
    """Whether `completion` is a well-formed trace with a correct answer; None where the prompt's answer cannot be verified."""
    if not is_verifiable(prompt):
        return None
    return judge_grounded(prompt, completion).correct if prompt.grounding else verify(prompt, completion).exact
