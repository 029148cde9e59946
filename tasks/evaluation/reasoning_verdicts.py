"""Judge a completion by its answer, in the trace's format and anywhere in the text; count its
markers."""

import re

from schemas.evaluation import EvalItem, EvalPrompt
from schemas.examples import ELEMENTS, Format
from tasks.evaluation.evaluate import answered
from tasks.verification.flexible import flexible_answer
from tasks.verification.verify import agrees, verify

MARKERS = (
    "first", "second", "next", "then", "so", "because", "since", "therefore", "thus", "hence",
    "finally", "step", "=",
)  # fmt: skip
"""Chain-of-thought markers: order, cause, conclusion, and a worked equation. Whole words in any
case."""

_MARKER = re.compile(
    "|".join(rf"\b{word}\b" if word.isalpha() else re.escape(word) for word in MARKERS),
    re.IGNORECASE,
)


def count_markers(completion: str, channels: Format) -> int:
    """The number of chain-of-thought markers before the proof or the answer, which in a well-formed
    trace is the reasoning."""
    _, behind, *_ = ELEMENTS[channels].values()
    return len(_MARKER.findall(completion.partition(behind[0])[0]))


def judge(
    prompt: EvalPrompt, completion: str, *, tokens: int = 0, truncated: bool = False
) -> EvalItem:
    """Verify one completion, in the trace's format and anywhere in its text, and count its
    markers."""
    verdict = verify(prompt, completion)
    elsewhere = ""
    if not verdict.exact:
        elsewhere = flexible_answer(prompt, completion, truncated=truncated)
    return answered(
        prompt,
        completion,
        tokens=tokens,
        truncated=truncated,
        format=verdict.format,
        exact=verdict.exact,
        flexible=verdict.exact
        or (elsewhere not in ("", verdict.answer) and agrees(prompt, elsewhere).ok),
        markers=count_markers(completion, prompt.channels),
    )
