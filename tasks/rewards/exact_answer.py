"""Exact-answer reward: 1 when the answer of a well-formed trace agrees with the reference, 0 when it does not or there is no such trace.

Agreement is what the evaluations mean by correct: `tasks.verification.verify`, and for grounded prompts whose context does not tell, the
grounded refusal (`tasks.evaluation.grounding.abstains`). Prompts whose answer cannot be verified (check = "none") abstain.
"""

from collections.abc import Sequence
from typing import Literal

from schemas.examples import Prompt
from tasks.contract.reward import Response, Reward, RewardConfig
from tasks.evaluation.grounding import abstains
from tasks.verification.verify import Verdict, verify_many


class Config(RewardConfig):
    """No knobs beyond the weight: GRPO's advantages do not depend on the scale of a reward."""

    name: Literal["exact_answer"] = "exact_answer"


def score(config: Config, prompts: Sequence[Prompt], responses: Sequence[Response]) -> list[float | None]:
    """1.0 correct, 0.0 wrong or malformed, None where the prompt's answer cannot be verified."""
    return [None if correct is None else float(correct) for correct in are_correct(prompts, [one.text for one in responses])]


def is_verifiable(prompt: Prompt) -> bool:
    """Whether an answer to `prompt` can be called right or wrong at all."""
    return prompt.check != "none" or prompt.grounding in ("unanswerable", "out_of_domain")


def are_correct(prompts: Sequence[Prompt], completions: Sequence[str]) -> list[bool | None]:
    """Whether each completion is a well-formed trace with a correct answer; None where the prompt's answer cannot be verified."""
    verdicts = verify_many(prompts, completions)
    return [is_correct(prompt, verdict) for prompt, verdict in zip(prompts, verdicts, strict=True)]


def is_correct(prompt: Prompt, verdict: Verdict) -> bool | None:
    """What a verdict on an answer to `prompt` says of it: correct, not correct, or (None) that it cannot be told."""
    if not is_verifiable(prompt):
        return None
    if prompt.grounding in ("unanswerable", "out_of_domain"):
        return verdict.answer is not None and abstains(verdict.answer)
    return verdict.exact


REWARD = Reward(version=1, config=Config, score=score)
