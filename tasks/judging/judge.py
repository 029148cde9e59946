"""The contract of judges: who is asked (`JudgeConfig`), what (`Question`), and what comes back
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
probability of each of the question's `choices` as the next token (G-Eval, 2303.16634). Both keep
rulings in the store (`infra.store.answers`) by all that decides them: nothing is asked twice.

A question without a ruling is an abstention. More of them than `max_abstained` end the stage, which
goes on from there when it is run again: an update on rewards that are mostly missing is worse than
none. An endpoint that is down is waited for (`tasks.judging.endpoint_judge`).
"""

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from schemas.base import StageFailed, StrictModel
from tasks.chat.budget import Priced

_OWN = {"model", "messages", "temperature", "max_tokens", "max_completion_tokens", "n", "stream"}


class _AnyJudge(StrictModel):
    """What all judges have.

    Attributes:
        max_abstained: the largest part of the questions of one call of `ask` that may stay without
            a ruling.
    """

    max_abstained: float = Field(default=0.1, ge=0, le=1)


class EndpointJudge(_AnyJudge, Priced):
    """A model behind an OpenAI-compatible API.

    Attributes:
        provider: whose endpoint: <PROVIDER>_BASE_URL, <PROVIDER>_API_KEY (`tasks.chat.endpoint`).
        temperature, max_response_tokens: of a ruling. `limit_parameter` is the name by which the
            model takes the latter.
        parameters: other ones that are sent as they are, e.g. `reasoning_effort`.
        max_usd: what the judge of this stage may cost. When it is spent, questions stay without a
            ruling.
    """

    name: Literal["endpoint"]
    provider: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    model: str = Field(min_length=1)
    temperature: float = Field(default=0.0, ge=0)
    max_response_tokens: int = Field(default=512, ge=1)
    limit_parameter: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    parameters: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _sound(self) -> Self:
        if taken := sorted(_OWN & self.parameters.keys()):
            raise ValueError(
                f"parameters {', '.join(taken)}: set by model, temperature and max_response_tokens;"
                " leave it out here"
            )
        return self


class GemmaJudge(_AnyJudge):
    """A Gemma in this process, on the devices that the policy leaves it
    (`tasks.devices.hosts.halves`).

    Attributes:
        model: a recipe's `model`: a shipped name, a hub's, or a directory.
        prompt_length: tokens of a question, fixed; one that is longer gets no ruling.
        batch_size: questions at a time, fixed.
    """

    name: Literal["gemma"]
    model: str
    prompt_length: int = Field(ge=8)
    batch_size: int = Field(default=8, ge=1)


JudgeConfig = Annotated[EndpointJudge | GemmaJudge, Field(discriminator="name")]
"""The table `judge` of a judging reward or stage."""


@dataclass(frozen=True)
class Question:
    """What a judge is asked.

    Attributes:
        messages: a system message, if any, and a user's: `{"role": ..., "content": ...}`.
        choices: for a judge that rates by its next token: texts of one token each, e.g. "0" to "9",
            or "1" and "0".
        parameters: for an endpoint, over those of its config: `response_format`.
        sample: which repetition of the same question, for an answer that could not be read; 0 is
            the first.
    """

    messages: tuple[Mapping[str, str], ...]
    choices: tuple[str, ...] = ()
    parameters: Mapping[str, Any] | None = None
    sample: int = 0


@dataclass(frozen=True)
class Ruling:
    """What a judge says to a question.

    Attributes:
        text: an endpoint's answer; of a judge that rates by its next token, the likeliest choice.
        probabilities: of the choices, among all tokens of the vocabulary (their sum is at most 1);
            None of an endpoint.
        problem: why there is no ruling, in words; then the rest says nothing.
        replied: the judge did reply, with a refusal, with nothing, or with too much: it may be
            asked again in other words.
        digest: of all that decides the ruling: its key in the store.
        cached: it was in the store.
        usd: what it cost this stage.
    """

    text: str = ""
    probabilities: tuple[float, ...] | None = None
    problem: str | None = None
    replied: bool = False
    digest: str = ""
    cached: bool = False
    usd: float = 0.0


class Judge(ABC):
    """A judge that was opened. `ask` may be called from several threads at the same time."""

    def __init__(self, max_abstained: float) -> None:
        self._max_abstained = max_abstained
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._usd = 0.0

    def ask(self, questions: Iterable[Question], *, of: int | None = None) -> list[Ruling]:
        """A ruling on each question, in order. Blocks until all are there and kept.

        Args:
            questions: an endpoint is asked while they are made.
            of: these are asked again, of so many questions of one rollout.

        Raises:
            InputError: key, model, URL, parameters or choices must be put right first.
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
        """Of the questions of one rollout (all `of` them, of which those left out have a ruling),
        why each has no ruling that can be used, or None. Raises StageFailed for too many of
        them."""
        found = [problem for problem in problems if problem is not None]
        if len(found) > self._max_abstained * (of or len(problems)):
            most = Counter(found).most_common(3)
            common = "; ".join(f"{count} times: {problem}" for problem, count in most)
            raise StageFailed(
                f"the judge gave no ruling on {len(found)} of {of or len(problems)} questions, more"
                f" than max_abstained = {self._max_abstained:g} allows ({common}). Nothing was made"
                " of the others, which are kept: put it right and run again to continue."
            )

    def values(self) -> dict[str, float]:
        """Counts over the stage so far: `asked`, `cached`, `abstained`, and `usd`."""
        with self._lock:
            counts = {name: float(self._counts[name]) for name in ("asked", "cached", "abstained")}
            return {**counts, "usd": self._usd}

    @abstractmethod
    def _ask(self, questions: Iterable[Question]) -> list[Ruling]:
        """`ask` without the counting."""

    @abstractmethod
    def close(self) -> None:
        """End what the judge holds, after everything that was asked is answered."""
