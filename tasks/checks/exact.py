"""Exact answers: equal after NFKC, case folding, white space collapsed and one trailing period dropped."""

import unicodedata

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome, unusable


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer and the reference are equal after `normalise_answer`. Raises InputError: there is no reference."""
    if not prompt.answer.strip():
        raise unusable(prompt, "it has no answer to compare with; give it one, or the check 'none'")
    if normalise_answer(answer) == normalise_answer(prompt.answer):
        return Outcome(True)
    return Outcome(False, f"{answer!r} is not {prompt.answer!r}")


def normalise_answer(answer: str) -> str:
    """NFKC, case folded, runs of white space as one space, one trailing period dropped: answers that agree after this are equal."""
    folded = " ".join(unicodedata.normalize("NFKC", answer).casefold().split())
    return folded.removesuffix(".").rstrip()


CHECK = Check(version=2, agrees=agrees)
