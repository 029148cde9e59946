"""Recognises calculations that an answer copies from the question."""

import re
import unicodedata

from schemas.examples import Prompt
from tasks.verification.text import plain_signs, with_powers

_LONGEST = 500  # characters of a calculation
_SIGN = r"\s*[-+*/^×·÷]\s*"
_OF_NUMBERS = re.compile(rf"[\d)}}]{_SIGN}[\d({{\\.]|\\d?frac\b")
_OF_LETTERS = re.compile(rf"[\w)}}]{_SIGN}[\w({{\\.]|\\d?frac\b")
_SCIENTIFIC = re.compile(r"[*x×·]?\s*10\s*\^\s*\{?\s*[-+]?\d+\}?")
_UNSEEN = re.compile(r"[\s$]|\\[,;:! ]|\\left|\\right|\\displaystyle")
_SIGNS = str.maketrans("×·÷", "**/")


def is_copied(prompt: Prompt, answer: str, *, letters: bool = False) -> bool:
    """Whether an answer is a calculation of the question that was not carried out: 144/12 for "What
    is 144/12?".

    A calculation in the reference or in a context may be copied, and so may `2.5 * 10^3`. Without
    `letters` a calculation has numbers alone: `12 km/h` is none.
    """
    calculation = _OF_LETTERS if letters else _OF_NUMBERS
    if prompt.context or len(answer) > _LONGEST:
        return False
    if not calculation.search(_SCIENTIFIC.sub(" ", plain_signs(with_powers(answer)))):
        return False
    copy, asked, reference = map(_squeezed, (answer, prompt.prompt, prompt.answer))
    whole = rf"(?<![\d.]){re.escape(copy)}(?!\d|\^|\.\d)"
    return copy != reference and re.search(whole, asked) is not None


def _squeezed(text: str) -> str:
    """A formula without white space and the marks around it."""
    plain = _UNSEEN.sub("", plain_signs(unicodedata.normalize("NFKC", with_powers(text))))
    plain = plain.translate(_SIGNS).casefold()
    return plain.removesuffix(".").removesuffix("=")
