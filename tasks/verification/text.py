"""Normalised answers, and sentences."""

import re
import unicodedata

MINUS = "\u2212\u2013\u2010\u2011\u2012"
"""Signs that are written for the minus of ASCII: minus, en dash, hyphens and figure dash."""

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")

# bounded: the time stays linear in what a model wrote
_STYLE = re.compile(r"(?<![\w)])(\*{2,3}|`+)(\S(?:.{0,200}?\S)?)\1(?![\w(])")


def unstyled(text: str) -> str:
    """The text without Markdown's marks of bold and code around words: **18** is 18, and
    2**3 and __init__ stay."""
    return _STYLE.sub(r"\2", text)


_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")


def with_powers(text: str) -> str:
    """The text with superscripts as powers: 10² is 10^2, where NFKC alone makes 102 of it."""
    return _RAISED.sub(lambda found: "^" + unicodedata.normalize("NFKC", found[0]), text)


_OPERATIONS = {r"\times": "×", r"\cdot": "·", r"\div": "÷"} | dict.fromkeys(MINUS, "-")
_OPERATION = re.compile(rf"\\(?:times|cdot|div)(?![A-Za-z])|[{MINUS}]")


def plain_signs(text: str) -> str:
    """The text with LaTeX's signs of operations, and Unicode's minus signs, as single characters:
    × · ÷ -."""
    return _OPERATION.sub(lambda found: _OPERATIONS[found[0]], text)


def normalise_answer(answer: str) -> str:
    """The canonical form of an answer: NFKC, case folded, runs of white space as one space, one
    trailing period dropped. Equal answers have the same."""
    folded = " ".join(unicodedata.normalize("NFKC", answer).casefold().split())
    return folded.removesuffix(".").rstrip()


def split_sentences(text: str) -> list[str]:
    """The pieces between the ends of sentences (`.`, `!` or `?` before white space) and lines.

    Some modules have rules of their own, because artifacts or verdicts depend on them:
    `tasks.reward_models.steps` (an equation before a comma ends a step), `tasks.data.mapping` (a
    quotation goes on after "e.g."), `tasks.suites.injection` (single spaces, which join the pieces
    again), `tasks.judging.address` (every character stays, and Chinese ends count),
    `tasks.verification.form_constraints` (IFEval's) and `tasks.evaluation.dipg_protocol` (the
    published scorer's).
    """
    return _SENTENCE_END.split(text)
