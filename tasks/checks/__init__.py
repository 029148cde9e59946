"""Checks: how an answer is compared with what its prompt knows. A check is a file here; its name is the file's name and `Prompt.check`.

    VERSION: int                     raise it when the same answer would be judged differently: it enters stage keys
    SLOW = True                      where a judgement takes milliseconds or more: `tasks.verification.verify.verify_many` then uses all
    cores def agrees(prompt: Prompt, answer: str) -> Outcome

`answer` is what stands in the answer tag, not empty. A prompt that a check cannot work with (a reference that is no number, an unknown
constraint) is an InputError that names the prompt. `agrees` may be called from threads. `tasks.verification.verify` is the one that calls.
"""

import re
import unicodedata
from dataclasses import dataclass

from schemas.base import InputError
from schemas.examples import Prompt


@dataclass(frozen=True)
class Outcome:
    """Whether an answer agrees, and for one that does not what was found: text for a person."""

    ok: bool
    detail: str = ""


def unusable(prompt: Prompt, problem: str) -> InputError:
    """What a check raises for a prompt that it cannot work with."""
    return InputError(f"prompt {prompt.id} (source {prompt.source!r}): its check is {prompt.check!r} but {problem}.")


_LONGEST = 500  # characters of a calculation
_SIGN = r"\s*(?:[-−–+*/^×·÷]|\\(?:times|cdot|div)\b)\s*"
_OF_NUMBERS = re.compile(rf"[\d)}}]{_SIGN}[\d({{\\.]|\\d?frac\b")
_OF_LETTERS = re.compile(rf"[\w)}}]{_SIGN}[\w({{\\.]|\\d?frac\b")
_SCIENTIFIC = re.compile(r"(?:[*x×·]|\\times|\\cdot)?\s*10\s*\^\s*\{?\s*[-−+]?\d+\}?")
_UNSEEN = re.compile(r"[\s$]|\\[,;:! ]|\\left|\\right|\\displaystyle")
_SIGNS = str.maketrans("−–×·÷", "--**/")


def is_copied(prompt: Prompt, answer: str, *, letters: bool = False) -> bool:
    """Whether an answer is a calculation that stands in the question, not carried out: 144/12 for "What is 144/12?".

    A reference that is written so itself may be copied, and so may what stands in a context, and `2.5 * 10^3`. Without `letters` a
    calculation is one of numbers: `12 km/h` is none.
    """
    calculation = _OF_LETTERS if letters else _OF_NUMBERS
    if prompt.context or len(answer) > _LONGEST or not calculation.search(_SCIENTIFIC.sub(" ", answer)):
        return False
    copy, asked, reference = map(_squeezed, (answer, prompt.prompt, prompt.answer))
    return copy != reference and re.search(rf"(?<![\d.]){re.escape(copy)}(?!\d|\^|\.\d)", asked) is not None


def _squeezed(text: str) -> str:
    """A formula without its white space and the marks around it."""
    plain = _UNSEEN.sub("", unicodedata.normalize("NFKC", text)).translate(_SIGNS).casefold()
    return plain.replace("\\times", "*").replace("\\cdot", "*").replace("\\div", "/").removesuffix(".").removesuffix("=")
