"""Exact-answer reward: 1 when the answer of a well-formed trace agrees with the reference, else 0.

Agreement is that of the evaluations: `tasks.verification.verify`, and the grounded refusal
(`tasks.evaluation.grounding.abstains`) for grounded prompts whose context has no answer. Prompts
whose answer cannot be verified (check = "none") abstain, and so does a response whose sandbox
failed.
"""

from collections.abc import Sequence
from typing import Literal

from schemas.examples import Prompt
from tasks.contract.reward import Response, Reward, RewardConfig
from tasks.verification.correct import are_correct


class Config(RewardConfig):
    """No settings beside the weight: GRPO's advantages do not depend on a reward's scale."""

    name: Literal["exact_answer"] = "exact_answer"


def score(
    config: Config, prompts: Sequence[Prompt], responses: Sequence[Response]
) -> list[float | None]:
    """1.0 correct, 0.0 wrong or malformed, None where the prompt's answer cannot be verified."""
    found = are_correct(prompts, [one.text for one in responses])
    return [None if correct is None else float(correct) for correct in found]


REWARD = Reward(version=2, config=Config, score=score)
