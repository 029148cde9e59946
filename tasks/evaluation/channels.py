"""The channels of a response: its analysis, what it offers as proof, and its final answer."""

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
    """A response taken apart. `quotes`: what it offers as proof, each of which must be in the
    context; none: no proof."""

    analysis: str
    quotes: tuple[str, ...]
    final: str


def folded(text: str) -> str:
    """As texts are compared: case, quotation marks and white space aside."""
    return " ".join(text.casefold().translate(_MARKS).split())


def channels_of(form: Format, text: str, prompt: Prompt) -> Channels | None:
    """Take a response apart; None: it is not written as it must be."""
    if form == "trace":
        trace = parse_trace(text)
        if trace is None:
            return None
        return Channels(trace.reasoning, _quotes_in(trace.reasoning, prompt), trace.answer)
    parts = _elements(form, text)
    return None if parts is None else Channels(parts[0], quotes_of(parts[1]), parts[2])


def quotes_of(proof: str) -> tuple[str, ...]:
    """What a proof quotes: its quotations if there are any, else its lines; an ellipsis leaves
    something out."""
    return tuple(_without_ellipses(_QUOTATION.findall(proof) or proof.splitlines()))


def _without_ellipses(texts: Sequence[str]) -> list[str]:
    return [piece for text in texts for part in _ELLIPSIS.split(text) if (piece := part.strip())]


def _quotes_in(reasoning: str, prompt: Prompt) -> tuple[str, ...]:
    """The proof in a trace's reasoning, as the module's docstring says."""
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
    """Analysis, proof and final of a response in elements, in this order and with nothing between
    them; None: it is not so written."""
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
