"""Numbers: equal as numbers (`parse_number`), with or without a unit, since the question fixes the
unit.

Without a tolerance a whole-number reference must be met exactly; a decimal one to the digits it is
written with (3.14 accepts 3.1416 and 22/7 = 3.1428..., not 3.13) and within 1 %; a fraction within
0.1 %. With `Prompt.tolerance` every reference must be met within that fraction of it. A reference
of at most 1 without a percent sign accepts its percentage: 50% is 0.5. A calculation copied from
the question ("What is 144/12?") is wrong.
"""

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome, unusable
from tasks.verification.copied import is_copied
from tasks.verification.numbers import as_number, is_close, parse_number


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer is the reference's number. Raises InputError: the reference is no
    number."""
    reference = parse_number(prompt.answer)
    if reference is None:
        fix = "correct the answer or give the row the check 'exact' or 'none'"
        raise unusable(prompt, f"its answer {prompt.answer!r} is no number; {fix}")
    value = parse_number(answer)
    if value is None:
        return Outcome(False, f"{answer!r} is no number")
    if is_copied(prompt, answer):
        return Outcome(False, f"{answer!r} is the question's own calculation")
    if is_close(value, reference, prompt.tolerance):
        return Outcome(True)
    return Outcome(False, f"{answer!r} is not {prompt.answer!r}")


CHECK = Check(
    version=4,
    agrees=agrees,
    takes={"tolerance"},
    reads=lambda text: parse_number(text) is not None,
    form="number",
    at_once=True,
    vote=lambda answer, choices: as_number(answer),
)
