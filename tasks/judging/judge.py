"""The contract of judges: who is asked (`JudgeConfig`), what (`Question`), and the reply
(`Ruling`).

```toml
[judge]
name = "endpoint"
provider = "openai"
model = "gpt-4o-mini"
input_usd_per_million = 0.15
output_usd_per_million = 0.6
```
or `{ name = "gemma", model = "gemma3-12b-it", prompt_length = 1024, batch_size = 8 }`.
An endpoint answers with text. A Gemma in this process decodes nothing: its ruling is the
probability of each of the question's `choices` as the next token (G-Eval, 2303.16634). Both store
rulings (`infra.store.answers`) by everything that decides them, so nothing is asked twice.

A question without a ruling is an abstention. If more than `max_abstained` have none, the stage
ends, and continues from there when it is run again: an update on mostly missing rewards is worse
than none. An endpoint that is down is waited for (`tasks.judging.endpoint_judge`).
"""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from schemas.base import StageFailed, StrictModel
from tasks.chat.budget import Priced
from tasks.chat.request import ChatModel


class _JudgeFields(StrictModel):
    """The fields of all judges.

    Attributes:
        max_abstained: the largest fraction of the questions of one `ask` call that may get no
            ruling.
    """

    max_abstained: float = Field(default=0.1, ge=0, le=1)


class EndpointJudgeConfig(_JudgeFields, ChatModel, Priced):
    """A model behind an OpenAI-compatible API.

    Attributes:
        temperature, max_response_tokens: of a ruling.
        max_usd: the budget of this stage's judge. When it is spent, questions get no ruling.
    """

    name: Literal["endpoint"]
    temperature: float = Field(default=0.0, ge=0)
    max_response_tokens: int = Field(default=512, ge=1)


class GemmaJudgeConfig(_JudgeFields):
    """A Gemma in this process, on the devices that the policy does not use
    (`tasks.devices.hosts.halves`).

    Attributes:
        model: as in a recipe: a shipped name, one of a hub, or a directory.
        prompt_length: tokens of a question, fixed; a longer one gets no ruling.
        batch_size: questions at a time, fixed.
    """

    name: Literal["gemma"]
    model: str
    prompt_length: int = Field(ge=8)
    batch_size: int = Field(default=8, ge=1)


JudgeConfig = Annotated[EndpointJudgeConfig | GemmaJudgeConfig, Field(discriminator="name")]
"""The table `judge` of a judging reward or stage."""


@dataclass(frozen=True)
class Question:
    """A question to a judge.

    Attributes:
        text: the user's message; there is no other.
        choices: for a judge that rates by its next token: texts of one token each, e.g. "0" to "9",
            or "1" and "0".
        parameters: for an endpoint, overriding those of its config: `response_format`.
        sample: which repetition of the same question, after an answer that could not be read; 0 is
            the first.
    """

    text: str
    choices: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sample: int = 0


@dataclass(frozen=True)
class Ruling:
    """A judge's reply to a question.

    Attributes:
        text: an endpoint's answer.
        probabilities: of the choices, among all tokens of the vocabulary (their sum is at most 1);
            None from an endpoint.
        problem: why there is no ruling, in words; then the other fields are meaningless.
        replied: the judge did reply, with a refusal, with nothing, or with too much: it may be
            asked again in other words.
        digest: of everything that decides the ruling: its key in the store.
        cached: it was in the store.
        usd: its cost to this stage.
    """

    text: str = ""
    probabilities: tuple[float, ...] | None = None
    problem: str | None = None
    replied: bool = False
    digest: str = ""
    cached: bool = False
    usd: float = 0.0


class Judge(ABC):
    """An open judge. Threads may call `ask` concurrently."""

    def __init__(self, max_abstained: float) -> None:
        self._max_abstained = max_abstained
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._usd = 0.0

    def ask(self, questions: Iterable[Question], *, of: int | None = None) -> list[Ruling]:
        """A ruling on each question, in order. Blocks until all are there and stored.

        Args:
            questions: an endpoint is asked while they are made, which its engine's thread does.
            of: the number of questions of the rollout, when these are repetitions of some of them.

        Raises:
            InputError: a person must first correct key, model, URL, parameters or choices.
            StageFailed: the endpoint has been down for too long, or the judge did not reply to more
                than `max_abstained` of the questions.
        """
        rulings = self._ask(questions)
        with self._lock:
            self._counts.update(asked=len(rulings), cached=sum(one.cached for one in rulings))
            self._counts["abstained"] += sum(one.problem is not None for one in rulings)
            self._usd += sum(one.usd for one in rulings)
        self.check([None if one.replied else one.problem for one in rulings], of)
        return rulings

    def check(self, problems: Sequence[str | None], of: int | None = None) -> None:
        """Raise StageFailed if too many questions of a rollout have no usable ruling.

        Args:
            problems: for each question, why it has none, or None.
            of: the number of questions of the rollout, if some that have a ruling are left out.
        """
        found = [problem for problem in problems if problem is not None]
        if len(found) > self._max_abstained * (of or len(problems)):
            raise StageFailed(
                f"the judge gave no ruling on {len(found)} of {of or len(problems)} questions, more"
                f" than max_abstained = {self._max_abstained:g} allows ({commonest(found)}). The"
                " others are stored: fix the cause and run again to continue."
            )

    def values(self) -> dict[str, float]:
        """Counts over the stage so far: `asked`, `cached`, `abstained`, and `usd`."""
        with self._lock:
            counts = {name: float(self._counts[name]) for name in ("asked", "cached", "abstained")}
            return {**counts, "usd": self._usd}

    def count_on(self, values: Mapping[str, float]) -> None:
        """Count on from the `values` of an earlier attempt at the stage, which asked what this one
        does not ask again."""
        with self._lock:
            self._usd = max(self._usd, values["usd"])

    @abstractmethod
    def _ask(self, questions: Iterable[Question]) -> list[Ruling]:
        """`ask`, without the counting."""

    @abstractmethod
    def close(self) -> None:
        """Release its resources, after every question is answered."""


def commonest(problems: Iterable[str]) -> str:
    """The three most common problems, each with how often it occurred."""
    most = Counter(problems).most_common(3)
    return "; ".join(f"{count} times: {problem}" for problem, count in most)
