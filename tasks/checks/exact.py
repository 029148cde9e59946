"""Exact answers: equal after NFKC, case folding, white space collapsed, and one trailing period and
Markdown's marks (**Paris**) dropped."""

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome, unusable
from tasks.verification.text import normalise_answer, unstyled


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer and the reference are equal, as the module says. Raises InputError:
    there is no reference."""
    if not prompt.answer.strip():
        raise unusable(prompt, "it has no answer to compare with; give it one, or the check 'none'")
    given, wanted = (normalise_answer(unstyled(one)) for one in (answer, prompt.answer))
    if given == wanted:
        return Outcome(True)
    return Outcome(False, f"{answer!r} is not {prompt.answer!r}")


CHECK = Check(version=3, agrees=agrees)
