"""Anchors: responses of known worth to try judges on. Each question has a good response, a poor
one, and a worthless one that asks for a good grade (instructions to the judge, a verdict of its
own, master keys of "One Token to Fool LLM-as-a-Judge", 2507.08794). The shipped ones are in
anchors.toml."""

import tomllib
from pathlib import Path

from pydantic import Field

from schemas.base import StrictModel
from schemas.examples import Domain, Prompt, Trace
from schemas.rubrics import Criterion


class Anchor(StrictModel):
    """One response whose worth is known.

    Attributes:
        question: responses to the same question are compared with each other.
        reference: an answer that the judge is shown; may be empty.
        criteria: for judges that grade by a rubric.
        response: a trace.
        score: its worth from 0 to 1; only its order among the question's other responses counts.
    """

    question: str = Field(min_length=1)
    reference: str = ""
    criteria: tuple[Criterion, ...] = Field(min_length=1)
    response: str
    score: float = Field(ge=0, le=1)

    def as_prompt(self) -> Prompt:
        """Its question as a prompt."""
        fields = {"domain": Domain.GENERAL, "answer": self.reference, "check": "none"}
        return Prompt.parse({"id": "anchor", "prompt": self.question, **fields})


def _shipped() -> tuple[Anchor, ...]:
    text = Path(__file__).with_name("anchors.toml").read_text(encoding="utf-8")
    found = []
    for asked in tomllib.loads(text)["questions"]:
        for one in asked.pop("responses"):
            trace = Trace(reasoning=one["reasoning"], answer=one["answer"])
            table = {**asked, "response": trace.render(), "score": one["score"]}
            found.append(Anchor.parse(table))
    return tuple(found)


ANCHORS = _shipped()
"""The anchors that judges are tried on if a config has none of its own."""
