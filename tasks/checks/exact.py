"""Exact answers: equal after NFKC, case folding, white space collapsed, and one trailing period and
Markdown's marks (**Paris**) dropped. Curved quotation marks and apostrophes are straight ones,
dashes hyphens, and superscripts powers: 10² is 10^2."""

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome, unusable
from tasks.verification.text import normalise_answer, plain_signs, unstyled, with_powers

_QUOTES = str.maketrans("‘’“”", "''\"\"")


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer and the reference are equal, as the module says. Raises InputError:
    there is no reference."""
    if not prompt.answer.strip():
        raise unusable(prompt, "it has no answer to compare with; give it one, or the check 'none'")
    both = (plain_signs(with_powers(unstyled(one))) for one in (answer, prompt.answer))
    given, wanted = (normalise_answer(one.translate(_QUOTES)) for one in both)
    if given == wanted:
        return Outcome(True)
    return Outcome(False, f"{answer!r} is not {prompt.answer!r}")


CHECK = Check(version=4, agrees=agrees)
