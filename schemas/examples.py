"""Examples, prompts, preference pairs, and the trace format that a trained model speaks.

A trace is exactly `<reasoning>R</reasoning>\n<answer>A</answer>` (the Kaggle google-tunix-hackathon format).
"""

import hashlib
import re
import unicodedata
from enum import StrEnum
from typing import Literal

from pydantic import Field

from schemas.base import StrictModel


class Domain(StrEnum):
    """The six domains."""

    MATH = "math"
    CODING = "coding"
    SCIENCE = "science"
    CREATIVE = "creative"
    SUMMARIZATION = "summarization"
    GENERAL = "general"


Grounding = Literal["answerable", "unanswerable", "out_of_domain"]
"""What a grounded question asks of its context: it holds the answer, it does not, or the question is about something else entirely."""

GROUNDED_REFUSAL = "Context does not contain this information"
"""The one correct answer to unanswerable and out-of-domain grounded questions (the retrospective in shared/seeds)."""

Check = Literal["exact", "numeric", "none"]
"""How an answer is verified: equal text after normalisation, equal number, or not verifiable (free text)."""

_TRACE = re.compile(r"\s*<reasoning>(?P<reasoning>.+?)</reasoning>\s*<answer>(?P<answer>.+?)</answer>\s*", re.DOTALL)
TRACE_TAGS = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")


class Trace(StrictModel):
    """Reasoning, then answer."""

    reasoning: str
    answer: str

    def render(self) -> str:
        return f"<reasoning>{self.reasoning}</reasoning>\n<answer>{self.answer}</answer>"


def parse_trace(text: str) -> Trace | None:
    """The trace that is the whole of `text`, or None: text outside the tags, an empty part, a tag missing or repeated."""
    match = _TRACE.fullmatch(text)
    if match is None or any(text.count(tag) != 1 for tag in TRACE_TAGS):
        return None
    reasoning, answer = match["reasoning"].strip(), match["answer"].strip()
    return Trace(reasoning=reasoning, answer=answer) if reasoning and answer else None


def normalise_prompt(prompt: str) -> str:
    """NFKC, lower case, runs of white space as one space: prompts that agree after this count as the same prompt."""
    return " ".join(unicodedata.normalize("NFKC", prompt).lower().split())


def prompt_id(prompt: str) -> str:
    """16 hexadecimal characters of sha256 over the normalised prompt: the identity that splits and deduplicates."""
    return hashlib.sha256(normalise_prompt(prompt).encode("utf-8")).hexdigest()[:16]


class Prompt(StrictModel):
    """A question with what is needed to verify an answer to it. `difficulty` is 1 (easy) to 5 (hard)."""

    id: str
    prompt: str
    domain: Domain
    answer: str
    check: Check = "exact"
    difficulty: int = Field(default=1, ge=1, le=5)
    family: str = ""
    source: str = ""
    context: str | None = None
    grounding: Grounding | None = None


class Example(Prompt):
    """A prompt with a worked trace: what SFT learns from. `reasoning` is the text between the reasoning tags."""

    reasoning: str

    def response(self) -> str:
        """The trace as the model must write it."""
        return Trace(reasoning=self.reasoning, answer=self.answer).render()


class PreferencePair(StrictModel):
    """One prompt with a verified and a rejected response.

    `rejected_because` says which check failed: a well-formed trace with a wrong answer, no well-formed trace, or a response that was cut
    off at its fixed length, which therefore has no terminator. `chosen_from` says who wrote the chosen response.
    """

    id: str
    prompt: str
    domain: Domain
    chosen: str
    rejected: str
    chosen_from: Literal["policy", "teacher"]
    rejected_because: Literal["wrong", "malformed", "truncated"]
