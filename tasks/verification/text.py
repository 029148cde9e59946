"""Normalised answers, and sentences."""

import re
import unicodedata

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


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
