"""Multiple choice: the letter of the right one in any usual form (`B`, `(b)`, `**B.**`, `B) Paris`,
`The answer is B`, `Berlin (B)`), or its whole text.

`Prompt.answer` is the letter, and the constraint `choices` holds the texts of A, B, C, ... in this
order. A letter with another choice's text (`B) Rome` where Rome is C), and two letters, with their
texts or without (`B, C and D`), choose nothing. Where a text is also a letter (blood group A), the
letter counts. Texts that differ in case, marks or style alone (the genotypes AA, Aa and aa; the
code *p and **p) must be written exactly.
"""

from schemas.examples import Prompt
from tasks.contract.check import Check, Outcome, unusable
from tasks.verification.choices import choices_of, chosen, letters


def agrees(prompt: Prompt, answer: str) -> Outcome:
    """Whether the answer chooses the right one. Raises InputError: the prompt has no choices, or
    its answer is no letter of one."""
    choices = choices_of(prompt)
    if not choices:
        raise unusable(prompt, "it has no constraint 'choices' with the texts to choose from")
    valid = letters(choices)
    if prompt.answer not in tuple(valid):
        problem = f"its answer {prompt.answer!r} is none of the letters {valid[0]} to {valid[-1]}"
        raise unusable(prompt, problem)
    found = chosen(answer, choices)
    if prompt.answer in found:
        return Outcome(True)
    chooses = " or ".join(found) or "nothing"
    return Outcome(False, f"{answer[:80]!r} chooses {chooses}, not {prompt.answer}")


CHECK = Check(
    version=6,
    agrees=agrees,
    needs={"choices"},
    at_once=True,
    vote=lambda answer, choices: chosen(answer, choices) or None,
)
