"""Exact answers: equal after NFKC, case folding, white space collapsed and one trailing period
dropped."""

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome, unusable
from tasks.verification.text import normalise_answer


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer and the reference are equal after `normalise_answer`. Raises InputError:
    there is no reference."""
    if not prompt.answer.strip():
        raise unusable(prompt, "it has no answer to compare with; give it one, or the check 'none'")
    if normalise_answer(answer) == normalise_answer(prompt.answer):
        return Outcome(True)
    return Outcome(False, f"{answer!r} is not {prompt.answer!r}")


CHECK = Check(version=2, agrees=agrees)
