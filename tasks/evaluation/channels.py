"""The channels of a response: its analysis, its proof, and its final answer."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from schemas.examples import Prompt, parse_trace

_QUOTATION = re.compile(r'["“”]([^"“”]+)["“”]')
SAYS = re.compile(r"\bcontext (?:only )?says: *((?:[^.!?\n]|(?<=\d)\.(?=\d))+)", re.IGNORECASE)
"""What is quoted as the context's words; the point of 3.5 ends no sentence."""
_PROOF = re.compile(r"<proof>(.*?)(?:</proof>|\Z)", re.DOTALL)
_ELLIPSIS = re.compile(r"\[\.\.\.\]|\(\.\.\.\)|\.\.\.|…")
ENDS = " .,;:!?"
_MARKS = str.maketrans("", "", "\"'`“”„«»‘’")


class Channels(NamedTuple):
    """The parts of a response. `quotes`: its proof, each of which must be in the context; empty: no
    proof."""

    analysis: str
    quotes: tuple[str, ...]
    final: str


def folded(text: str) -> str:
    """The text without differences of case, quotation marks and white space, for comparison."""
    return " ".join(text.casefold().translate(_MARKS).split())


def channels_of(text: str, prompt: Prompt) -> Channels | None:
    """The parts of a response; None if it is not in the prompt's format."""
    trace = parse_trace(text, prompt.channels)
    if trace is None:
        return None
    inside = prompt.channels == "trace"
    quotes = _quotes_in(trace.reasoning, prompt) if inside else quotes_of(trace.proof)
    return Channels(trace.reasoning, quotes, trace.answer)


def quotes_of(proof: str) -> tuple[str, ...]:
    """The quotes of a proof: its quotations if it has any, else its lines; an ellipsis splits a
    quote."""
    return tuple(_without_ellipses(_QUOTATION.findall(proof) or proof.splitlines()))


def _without_ellipses(texts: Sequence[str]) -> list[str]:
    return [piece for text in texts for part in _ELLIPSIS.split(text) if (piece := part.strip())]


def _quotes_in(reasoning: str, prompt: Prompt) -> tuple[str, ...]:
    """The quotes in a trace's reasoning: those of its proof elements, or else quotations and what
    "the context says", unless only the question has them."""
    if proofs := _PROOF.findall(reasoning):
        return tuple(quote for proof in proofs for quote in quotes_of(proof))
    context = folded(prompt.context or "")
    question = folded(prompt.prompt).replace(context, "") if context else ""
    quotes = _without_ellipses([*_QUOTATION.findall(reasoning), *SAYS.findall(reasoning)])
    return tuple(
        quote
        for quote in quotes
        if (plain := folded(quote).strip(ENDS)) and (plain in context or plain not in question)
    )
