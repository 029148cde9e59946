r"""Examples, prompts, preference pairs, and the traces that a trained model writes.

A trace is reasoning, in two of three formats a proof, and an answer, with nothing but white space
between them:

trace   <reasoning>R</reasoning>\n<answer>A</answer> (the Kaggle google-tunix-hackathon's)
xml     <think>R</think>\n<proof>P</proof>\n<answer>A</answer> (the DIPG Safety Gym's)
tags    <|channel|>analysis<|message|>R<|end|>, then proof and final (the gym's first version 3)

R and A are not empty. P may be: an abstention has nothing to quote. Which format a response has to
have is its prompt's to say (`Prompt.channels`).
"""

import hashlib
import unicodedata
from enum import StrEnum
from typing import Annotated, Literal

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
"""What a grounded question asks of its context: it holds the answer, it does not, or the question
is about something else entirely."""

GROUNDED_REFUSAL = "Context does not contain this information"
"""The one correct answer to unanswerable and out-of-domain grounded questions (of the retrospective
that the recipe `dipg_safety` rebuilds)."""

Check = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
"""How an answer is verified: `none` is free text that cannot be, each other name is a file in
`tasks/checks/` that says how."""

Format = Literal["trace", "xml", "tags"]
"""How a response is written; the head of this file has all three."""

AskedFormat = Annotated[Format, Field(exclude_if=lambda value: value == "trace")]
"""A format that JSON leaves out where it is `trace`, which nearly all are."""

ELEMENTS: dict[Format, dict[str, tuple[str, str]]] = {
    "trace": {"reasoning": ("<reasoning>", "</reasoning>"), "answer": ("<answer>", "</answer>")},
    "xml": {
        "reasoning": ("<think>", "</think>"),
        "proof": ("<proof>", "</proof>"),
        "answer": ("<answer>", "</answer>"),
    },
    "tags": {
        "reasoning": ("<|channel|>analysis<|message|>", "<|end|>"),
        "proof": ("<|channel|>proof<|message|>", "<|end|>"),
        "answer": ("<|channel|>final<|message|>", "<|end|>"),
    },
}
"""Format -> the fields of a trace, in order, with the tags around each."""


def tags_of(channels: Format) -> tuple[str, ...]:
    """All tags of a format in the order of a trace, each once."""
    return tuple(dict.fromkeys(tag for pair in ELEMENTS[channels].values() for tag in pair))


def untagged(text: str, channels: Format) -> str:
    """A text with a space in place of each tag of a format."""
    for tag in tags_of(channels):
        text = text.replace(tag, " ")
    return text


class Trace(StrictModel):
    """Reasoning, then answer.

    Attributes:
        proof: what is quoted in support of the answer. The format `trace` has no place for it.
    """

    reasoning: str
    answer: str
    proof: str = ""
    channels: Format = "trace"

    def render(self) -> str:
        """The text that `parse_trace` reads."""
        return "\n".join(
            f"{opening}{getattr(self, part)}{closing}"
            for part, (opening, closing) in ELEMENTS[self.channels].items()
        )


def parse_trace(text: str, channels: Format) -> Trace | None:
    """The trace of this format that is the whole of `text`, or None: text outside the tags, no
    reasoning or no answer, a tag missing, repeated or out of place."""
    rest, parts = text.strip(), dict[str, str]()
    for part, (opening, closing) in ELEMENTS[channels].items():
        if not rest.startswith(opening):
            return None
        content, closed, rest = rest[len(opening) :].partition(closing)
        if not closed:
            return None
        parts[part], rest = content.strip(), rest.lstrip()
    tags = tags_of(channels)
    if rest or any(tag in content for content in parts.values() for tag in tags):
        return None
    if not (parts["reasoning"] and parts["answer"]):
        return None
    return Trace(**parts, channels=channels)


def parse_any(text: str) -> Trace | None:
    """The trace that is the whole of a text whose prompt says nothing of a format."""
    return next((found for one in ELEMENTS if (found := parse_trace(text, one))), None)


def normalise_prompt(prompt: str) -> str:
    """NFKC, lower case, runs of white space as one space: prompts that agree after this count as
    the same prompt."""
    return " ".join(unicodedata.normalize("NFKC", prompt).lower().split())


def prompt_id(prompt: str) -> str:
    """16 hexadecimal characters of sha256 over the normalised prompt: the identity that splits and
    deduplicates."""
    return hashlib.sha256(normalise_prompt(prompt).encode("utf-8")).hexdigest()[:16]


class Constraint(StrictModel):
    """Something an answer must satisfy, e.g. `{name = "max_words", value = 100}`;
    `tasks.checks.constraints` has the names."""

    name: str
    value: bool | int | float | str | tuple[str, ...]


class Prompt(StrictModel):
    """A question with what is needed to verify an answer to it.

    Attributes:
        id: `prompt_id` of the prompt; a suite's is `<label>/<number>`.
        answer: the reference; empty where there is none (checks `tests`, `constraints`, `faithful`
            and `none` need none).
        tolerance: of checks `numeric` and `quantity`, relative; None is each check's own rule.
        tests: of check `tests`, Python that raises when the code before it is wrong. `code_prefix`
            goes before an answer that is no whole program, e.g. HumanEval's signature and
            docstring.
        constraints: of check `constraints`: all must hold. Of check `plan`: the world and the goal
            (`tasks.checks.plan`). Of check `choice`: the texts to choose from
            (`tasks.checks.choice`).
        difficulty: 1 (easy) to 5 (hard).
        pass_rate: the fraction of a teacher's samples that verified, None where none were taken.
            Curricula order prompts by it.
        family: the group that metrics and reports count it in, e.g. a source's, a template's.
        source, line: the file, and where in it the record starts, from 1; 0 where there is no file.
        context: of a grounded prompt, the part of `prompt` that is to be read.
        channels: the format of a response to it. All that reads one goes by this.
    """

    id: str
    prompt: str
    domain: Domain
    answer: str = ""
    check: Check = "exact"
    tolerance: float | None = Field(default=None, gt=0, lt=1)
    tests: str | None = None
    code_prefix: str = ""
    constraints: tuple[Constraint, ...] = ()
    difficulty: int = Field(default=1, ge=1, le=5)
    pass_rate: float | None = Field(default=None, ge=0, le=1)
    family: str = ""
    source: str = ""
    line: int = Field(default=0, ge=0)
    context: str | None = None
    grounding: Grounding | None = None
    channels: AskedFormat = "trace"

    @property
    def identity(self) -> tuple[str, str, str]:
        """What makes it the same prompt elsewhere. A suite's ids count its rows, so another file,
        or another subject, has the same ids."""
        return self.id, self.prompt, self.answer


class Example(Prompt):
    """A prompt with a worked trace: what SFT learns from. `reasoning` and `proof` are as in
    `Trace`."""

    reasoning: str
    proof: str = Field(default="", exclude_if=lambda value: not value)

    def as_prompt(self) -> Prompt:
        """The question alone, with what verifies an answer."""
        return Prompt(**{name: getattr(self, name) for name in Prompt.model_fields})

    def trace(self, **changes: str) -> Trace:
        """The worked trace, in the prompt's format; `changes`: other parts than its own."""
        parts = {"reasoning": self.reasoning, "proof": self.proof, "answer": self.answer}
        return Trace(**parts | changes, channels=self.channels)

    def response(self) -> str:
        """The trace as the model must write it."""
        return self.trace().render()


Rejection = Literal["wrong", "malformed", "truncated", "refused", "empty", "language", "long"]
"""Why a response was rejected: its answer fails the prompt's check, it is no trace, it was cut off,
it declines, it is empty, it is in a language that was not asked for, or it is right and takes much
longer than the chosen one."""


class PreferencePair(StrictModel):
    """One prompt with a chosen response, verified where its answer can be, and a rejected one, and
    where both came from.

    Attributes:
        chosen_from: who wrote the chosen response. The rejected one is the policy's own where the
            policy was sampled, else the teacher's.
        rejected_because: which check the rejected response failed; one that was cut off at its
            fixed length has no terminator.
        failed_check: for `wrong`, the prompt's check. `detail` says what it found, e.g. the answer,
            or the failing assertion.
        chosen_sample, rejected_sample: which of the prompt's samples they were, from 0; None where
            it was no sample.
        channels: the prompt's.
    """

    id: str
    prompt: str
    domain: Domain
    chosen: str
    rejected: str
    chosen_from: Literal["policy", "teacher"]
    rejected_because: Rejection
    failed_check: Check | None = None
    detail: str = ""
    chosen_sample: int | None = None
    rejected_sample: int | None = None
    channels: AskedFormat = "trace"
