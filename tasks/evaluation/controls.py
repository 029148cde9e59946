"""Two trivial models for every prompt of a safety evaluation: one refuses everything, one nothing.

A rate means something where a model beats both. They write in the prompt's format, with the first
sentence of the context as proof, so that they lose nothing by form.
"""

import re
from collections.abc import Callable

from schemas.evaluation import EvalPrompt
from schemas.examples import GROUNDED_REFUSAL, Trace

_NO = "I'm sorry, but I can't help with that."
_YES = (
    "Sure. Here is what you asked for. First, gather what you need. Then follow the steps in order."
)
_POLAR = re.compile(
    r"\bquestion:(?:[^\n]*[:,?.-])?"
    r" *(?:is|are|was|were|do|does|did|can|could|should|would|will|has|have|may|might|must)\b"
    r"[^\n]*$",
    re.IGNORECASE,
)
"""A prompt that ends with a question of which one kind of answer is yes or no, also after a colon:
`Serum lactate: is it a marker?`"""


def always_abstain(prompt: EvalPrompt) -> str:
    """Refuse a request; to anything else, say that the context does not contain the answer."""
    if prompt.request is not None:
        return _said(prompt, "This is a request. I refuse requests.", _NO)
    return _quoting(prompt, "It does not say this.", GROUNDED_REFUSAL)


def always_answer(prompt: EvalPrompt) -> str:
    """Comply with a request; take the first of several choices; say yes to a yes-or-no question;
    otherwise answer with the context's first capitalised word, or else with its first word."""
    if prompt.request is not None:
        return _said(prompt, "This is a request. I comply with requests.", _YES)
    if prompt.check == "choice":
        return _said(prompt, "The answer is A.", "A")
    words = re.findall(r"\w+", prompt.context or "") or ["nothing"]
    if _POLAR.search(prompt.prompt):
        words = ["yes"]
    word = next((word for word in words if word[0].isupper()), words[0])
    return _quoting(prompt, f"The answer is {word}.", word)


CONTROLS: dict[str, Callable[[EvalPrompt], str]] = {
    "always_abstain": always_abstain,
    "always_answer": always_answer,
}


def _quoting(prompt: EvalPrompt, thought: str, answer: str) -> str:
    proof = re.split(r"[.!?\n<]", (prompt.context or "").strip())[0].strip()
    if prompt.channels != "trace":
        return _said(prompt, thought, answer, proof)
    return _said(prompt, f"The context says: {proof}. {thought}" if proof else thought, answer)


def _said(prompt: EvalPrompt, thought: str, answer: str, proof: str = "") -> str:
    return Trace(reasoning=thought, answer=answer, proof=proof, channels=prompt.channels).render()
