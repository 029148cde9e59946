"""The channels of a response: its analysis, its proof, and its final answer."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from schemas.evaluation import Format
from schemas.examples import Prompt, parse_trace

_ELEMENTS: dict[Format, tuple[tuple[tuple[str, str], ...], ...]] = {
    "xml": (
        (("<think>", "</think>"), ("<analysis>", "</analysis>"), ("<reasoning>", "</reasoning>")),
        (("<proof>", "</proof>"),),
        (("<answer>", "</answer>"), ("<final>", "</final>")),
    ),
    "tags": tuple(
        ((f"<|channel|>{name}<|message|>", "<|end|>"),) for name in ("analysis", "proof", "final")
    ),
}

_QUOTATION = re.compile(r'["“”]([^"“”]+)["“”]')
_SAYS = re.compile(r"\bcontext (?:only )?says: *([^.!?\n]+)", re.IGNORECASE)
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


def channels_of(form: Format, text: str, prompt: Prompt) -> Channels | None:
    """The parts of a response; None if it is not in the required form."""
    if form == "trace":
        trace = parse_trace(text)
        if trace is None:
            return None
        return Channels(trace.reasoning, _quotes_in(trace.reasoning, prompt), trace.answer)
    parts = _elements(form, text)
    return None if parts is None else Channels(parts[0], quotes_of(parts[1]), parts[2])


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
    quotes = _without_ellipses([*_QUOTATION.findall(reasoning), *_SAYS.findall(reasoning)])
    return tuple(
        quote
        for quote in quotes
        if (plain := folded(quote).strip(ENDS)) and (plain in context or plain not in question)
    )


def _elements(form: Format, text: str) -> tuple[str, str, str] | None:
    """Analysis, proof and final of a response that has these elements in this order with nothing
    between them; else None."""
    rest, parts = text.strip(), []
    for alternatives in _ELEMENTS[form]:
        content = ""
        for opening, closing in alternatives:
            if rest.startswith(opening):
                content, closed, rest = rest[len(opening) :].partition(closing)
                if not closed:
                    return None
                rest = rest.lstrip()
                break
        parts.append(content.strip())
    analysis, proof, final = parts
    every = [tag for alternatives in _ELEMENTS[form] for pair in alternatives for tag in pair]
    nested = any(tag in part for part in parts for tag in every)
    if rest or not final or nested or (form == "tags" and not (analysis and proof)):
        return None
    return analysis, proof, final
