"""Responses that take no understanding, beside the references: what a reward should not pay for."""

from collections.abc import Callable, Sequence

from schemas.evaluation import EvalPrompt
from schemas.examples import ELEMENTS, Example
from tasks.evaluation.controls import always_abstain, always_answer

REFERENCE = "reference"


def _abstain(example: Example) -> str:
    if example.grounding is None:
        return _said(example, "I cannot tell.", "I do not know.")
    return always_abstain(EvalPrompt.of(example))


def _keywords(example: Example) -> str:
    words = [word for word in dict.fromkeys(example.prompt.split()) if len(word) > 3]
    said = "First, therefore, because, however, finally: " + ", ".join(words)
    return _said(example, said, said)


def _said(example: Example, reasoning: str, answer: str) -> str:
    """A response in the example's format, without a proof."""
    return example.trace(reasoning=reasoning, answer=answer, proof="").render()


_BY_PROMPT: dict[str, Callable[[Example], str]] = {
    "empty": lambda example: "",
    "abstain": _abstain,
    "answer": lambda example: always_answer(EvalPrompt.of(example)),
    "copy": lambda example: _said(example, example.prompt, example.prompt),
    "form": lambda example: _said(example, "Let me think.", "That is it."),
    "keywords": _keywords,
    "without_reasoning": lambda example: _said(example, ".", example.answer),
    "bare_answer": lambda example: example.answer,
}
"""The last two give the right answer: they show whether reasoning and form are paid for."""

RESPONSES = len(_BY_PROMPT) + 3
"""To a prompt: the reference, those above, `endless` and `other`."""


def references_and_controls(
    examples: Sequence[Example], response_length: int
) -> dict[str, list[str]]:
    """Name -> a response to each example: the reference first, then every control.

    `endless` is the reference's reasoning again and again, longer than `response_length` tokens;
    `other` is the reference of another prompt.
    """
    columns = {REFERENCE: [example.response() for example in examples]}
    columns |= {
        name: [control(example) for example in examples] for name, control in _BY_PROMPT.items()
    }
    columns["endless"] = [_endless(example, response_length) for example in examples]
    columns["other"] = [_other(examples, index).response() for index in range(len(examples))]
    return columns


def _endless(example: Example, response_length: int) -> str:
    words = example.reasoning.split() or ["and"]
    opening, _ = ELEMENTS[example.channels]["reasoning"]
    return opening + " ".join(words * (1 + response_length // len(words)))


def _other(examples: Sequence[Example], index: int) -> Example:
    """The next example of another answer, of the same domain where there is one."""
    mine = examples[index]
    others = [
        one for one in [*examples[index + 1 :], *examples[:index]] if one.answer != mine.answer
    ]
    return next((one for one in others if one.domain == mine.domain), (others or [mine])[0])
