"""Texts compared by what they say."""

import unicodedata


def normalise_answer(answer: str) -> str:
    """NFKC, case folded, runs of white space as one space, one trailing period dropped: answers
    that agree after this are equal."""
    folded = " ".join(unicodedata.normalize("NFKC", answer).casefold().split())
    return folded.removesuffix(".").rstrip()
