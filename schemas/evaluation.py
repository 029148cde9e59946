"""What an evaluation asks and what it finds: one record per prompt, from which every metric can be
recomputed without the model."""

from typing import Literal

from pydantic import Field

from schemas.base import StrictModel
from schemas.examples import Format, Prompt

HELDOUT = "heldout"
"""The suite of the prompts that a recipe's own rebalance stage held out. All other suites are files
in `tasks/suites/`."""

Refusal = Literal["complied", "partial", "refused"]
"""What a response to a request does, in XSTest's classes (Röttger et al., 2308.01263): full
compliance, partial refusal, full refusal."""


class EvalPrompt(Prompt):
    """A prompt of an evaluation. Its `id` is unique among all that an evaluation asks.

    Attributes:
        suite: what it belongs to: `heldout`, or what a recipe calls one of its suites.
        request: of a request that is to be complied with or refused (check `none`), which of the
            two: `safe` or `unsafe`.
        familiar: whether a training prompt differs from it in names and numbers alone
            (`tasks.evaluation.familiar`); None: nothing is known of its like, or it is grounded.
        injection: of a context in which somebody planted an instruction, the text that an answer
            contains if it follows it.
        channels: as a prompt's, but in the JSON in any case: tables of items have a column of it.
    """

    suite: str = HELDOUT
    channels: Format = "trace"
    request: Literal["safe", "unsafe"] | None = None
    injection: str | None = None
    familiar: bool | None = None

    @classmethod
    def of(cls, prompt: Prompt) -> "EvalPrompt":
        """The prompt alone, with what judges an answer, of an item or of an example."""
        return EvalPrompt(
            **{
                name: value
                for name, value in dict(prompt).items()
                if name in EvalPrompt.model_fields
            }
        )


class Opinion(StrictModel):
    """What an LLM judge says of an item that rules have judged, or cannot judge.

    Attributes:
        verdict: of a request, whether the response refuses it; of a grounded prompt, whether the
            answer is safe; of a prompt that can be verified, whether the answer is right. None: no
            ruling, or free text.
        rating: of free text, in [0, 1].
        text: the judge's own words.
    """

    verdict: bool | None = None
    rating: float | None = None
    text: str = ""


class EvalItem(EvalPrompt):
    """One answered prompt: `items.jsonl` of an evaluation holds the greedy answers, `samples.jsonl`
    those that were sampled.

    Attributes:
        completion: what the model said, without the terminator.
        sample: which of the samples of this prompt it is, from 0; None: the greedy answer.
        tokens: length of the completion, the terminator included.
        truncated: it was cut off at the fixed response length.
        format: it is a well-formed trace, in the prompt's format.
        exact: a well-formed trace whose answer is right (`tasks.verification.verify`); of a
            grounded item, where abstaining can be right, too.
        flexible: the answer is right wherever it stands (`tasks.verification.flexible`): what a
            model knows that does not keep to the format.
        markers: chain-of-thought markers in the reasoning (`tasks.evaluation.reasoning_verdicts`).
        reasoning_tokens: length of the reasoning, None where there is no trace.
        abstained, hallucinated, inconsistent: of grounded items (`tasks.evaluation.grounding`).
        refusal: of requests, what the response does.
        followed: of an item with an injection, the answer follows it.
        safe: None where an answer can be no danger (`tasks.evaluation.safety_verdicts`).
        opinion: what an LLM judge says, where one is configured.
        measured: what the evaluation's metric functions say, by their names; None: it abstained.
    """

    completion: str
    sample: int | None = None
    tokens: int = 0
    truncated: bool = False
    format: bool
    exact: bool
    flexible: bool = False
    markers: int = 0
    reasoning_tokens: int | None = None
    abstained: bool = False
    hallucinated: bool = False
    inconsistent: bool = False
    refusal: Refusal | None = None
    followed: bool = False
    safe: bool | None = None
    opinion: Opinion | None = None
    measured: dict[str, float | None] = Field(
        default_factory=dict, exclude_if=lambda value: not value
    )
