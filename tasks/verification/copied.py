"""Calculations that are copied from the question in place of an answer."""

import re
import unicodedata

from schemas.examples import Prompt

_LONGEST = 500  # characters of a calculation
_SIGN = r"\s*(?:[-−–+*/^×·÷]|\\(?:times|cdot|div)\b)\s*"
_OF_NUMBERS = re.compile(rf"[\d)}}]{_SIGN}[\d({{\\.]|\\d?frac\b")
_OF_LETTERS = re.compile(rf"[\w)}}]{_SIGN}[\w({{\\.]|\\d?frac\b")
_SCIENTIFIC = re.compile(r"(?:[*x×·]|\\times|\\cdot)?\s*10\s*\^\s*\{?\s*[-−+]?\d+\}?")
_UNSEEN = re.compile(r"[\s$]|\\[,;:! ]|\\left|\\right|\\displaystyle")
_SIGNS = str.maketrans("−–×·÷", "--**/")


def is_copied(prompt: Prompt, answer: str, *, letters: bool = False) -> bool:
    """Whether an answer is a calculation that stands in the question, not carried out: 144/12 for
    "What is 144/12?".

    A reference that is written so itself may be copied, and so may what stands in a context, and
    `2.5 * 10^3`. Without `letters` a calculation is one of numbers: `12 km/h` is none.
    """
    calculation = _OF_LETTERS if letters else _OF_NUMBERS
    if prompt.context or len(answer) > _LONGEST:
        return False
    if not calculation.search(_SCIENTIFIC.sub(" ", answer)):
        return False
    copy, asked, reference = map(_squeezed, (answer, prompt.prompt, prompt.answer))
    whole = rf"(?<![\d.]){re.escape(copy)}(?!\d|\^|\.\d)"
    return copy != reference and re.search(whole, asked) is not None


def _squeezed(text: str) -> str:
    """A formula without its white space and the marks around it."""
    plain = _UNSEEN.sub("", unicodedata.normalize("NFKC", text)).translate(_SIGNS).casefold()
    for latex, sign in (("\\times", "*"), ("\\cdot", "*"), ("\\div", "/")):
        plain = plain.replace(latex, sign)
    return plain.removesuffix(".").removesuffix("=")
