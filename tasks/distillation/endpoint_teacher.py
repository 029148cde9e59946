"""An OpenAI-compatible server as the teacher: it is asked for the log-probabilities of a prompt's
tokens, which is all of a response.

    POST /completions {"prompt": [ids], "max_tokens": 0, "echo": true, "logprobs": 1, "temperature":
    1, "return_tokens_as_token_ids": true}

vLLM answers that (its own parameter makes it say which tokens it scored); OpenAI's and Gemini's
APIs give no log-probabilities of prompts. The prompt is token ids, so nothing is tokenised anew;
that the server scored these very tokens is checked. A response without an answer, or with one for
other tokens, is left out of its update. An endpoint that is down is waited for, as a judge's is.
Answers are kept in the store by their questions: a killed stage asks nothing twice.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from infra.context import context
from schemas.base import InputError, StageFailed, digest
from tasks.chat.budget import PricedInput
from tasks.chat.request import ApiModel, ChatRequest
from tasks.data.packing import Text
from tasks.distillation.feedback import Feedback, TokenTeacher

if TYPE_CHECKING:
    from infra.store.answers import Answers
    from tasks.chat.reply import Reply

_TOKEN = re.compile(r"token_id:(\d+)")

_PARAMETERS = {
    "max_tokens": 0,
    "echo": True,
    "logprobs": 1,
    "temperature": 1,
    "return_tokens_as_token_ids": True,
}


class EndpointTeacherConfig(ApiModel, PricedInput):
    """A model behind an endpoint as the teacher. It must have the student's tokenizer."""

    name: Literal["endpoint"]


@dataclass(frozen=True)
class ScoringRequest(ChatRequest):
    """A text of token ids whose log-probabilities are wanted; it has no messages."""

    tokens: tuple[int, ...] = ()
    path = "/completions"

    @cached_property
    def digest(self) -> str:
        """sha256 over model, tokens and parameters."""
        return digest(self.body())

    def body(self, max_tokens: int | None = None) -> dict[str, Any]:
        """The JSON that is sent; nothing is generated, whatever the bound."""
        return {"model": self.model, "prompt": list(self.tokens), **self.parameters}

    def trimmed(self, value: Any) -> Any:
        """The part of the JSON reply that is stored: without the likeliest other tokens."""
        try:
            choice = value["choices"][0]
            scored = {name: choice["logprobs"][name] for name in ("tokens", "token_logprobs")}
            return {"choices": [{"text": "", "logprobs": scored}], "usage": value.get("usage")}
        except (KeyError, TypeError, IndexError):
            return value

    @cached_property
    def most_input_tokens(self) -> int:
        return len(self.tokens)


class EndpointTeacher(TokenTeacher):
    """A teacher behind an endpoint. Of several hosts the first one asks.

    Args:
        response_length: the most tokens of a response.
        account: see `ChatEngine.of`.
    """

    def __init__(
        self,
        config: EndpointTeacherConfig,
        answers: "Answers",
        *,
        response_length: int,
        account: Any,
    ) -> None:
        from tasks.chat.engine import ChatEngine
        from tasks.devices.hosts import is_committer

        self.config, self._response_length = config, response_length
        self._counts: Counter[str] = Counter()
        self._before: dict[str, float] = {}
        patience = context().settings.judge_patience_seconds
        engine = ChatEngine.of(config, answers, account=account, patience=patience)
        self._engine = engine.__enter__() if is_committer() else None

    def score(self, texts: Sequence[Text]) -> Feedback:
        """See `TokenTeacher`.

        Raises:
            InputError: the server scores no response at all, or does not say which tokens, or says
                others; or as `ChatEngine.ask`.
            StageFailed: the budget is spent; or as `ChatEngine.ask`.
        """
        from tasks.devices.hosts import agree

        said: list[list[float] | None] = agree(self._ask(texts))
        logps = np.zeros((len(texts), self._response_length), np.float32)
        for row, values in enumerate(said):
            if values is None:
                logps[row] = np.nan
            else:
                logps[row, : len(values)] = values
        return Feedback(logps)

    def _ask(self, texts: Sequence[Text]) -> list[list[float] | None]:
        """The log-probabilities of the tokens of each response, or None."""
        if self._engine is None:  # host 0 says
            return []
        rows = [[*prompt, *response] for prompt, response in texts]
        replies = self._engine.ask(
            (ScoringRequest(self.config.model, (), _PARAMETERS, tokens=tuple(row)) for row in rows),
            lambda _, reply: reply,
        )
        said: list[list[float] | None] = [None] * len(rows)
        wrong: list[str] = []
        for index, reply in enumerate(replies):
            if reply.problem == "unasked":
                raise StageFailed(
                    f"the teacher {self.config.model} has used up max_usd = {self.config.max_usd}."
                    " Raise teacher.max_usd and run again: what it has said is kept, and the stage"
                    " goes on from its last checkpoint if nothing else is changed."
                )
            found = _read(reply, rows[index])
            if isinstance(found, str):
                wrong.append(found)
            else:
                said[index] = found[-len(texts[index][1]) :]
            unanswered = reply.problem is not None
            others = isinstance(found, str) and not unanswered
            self._counts.update(responses=1, unanswered=unanswered, other_tokens=others)
        if len(wrong) == len(rows):
            raise InputError(
                f"the teacher {self.config.model} of {self.config.provider} does not score the"
                f" student's tokens: {wrong[0]}. It must have the student's tokenizer (a Gemma 3"
                " 12B or 27B teaches Gemma 3 1B), behind a server that takes"
                " return_tokens_as_token_ids with echo, as vLLM does. gpt-oss, or a hosted API,"
                " can teach by its answers only (stage kind distill)."
            )
        return said

    def costs(self) -> dict[str, float]:
        """See `TokenTeacher`: responses asked about, those without an answer, those whose tokens
        were others, and what was paid."""
        if self._engine is None:
            return {}
        counts = {f"teacher_{name}": float(count) for name, count in self._counts.items()}
        cost = self._engine.meter.cost
        now = {**counts, "teacher_usd": cost.usd, "teacher_tokens": float(cost.tokens)}
        return {
            name: self._before.get(name, 0.0) + now.get(name, 0.0)
            for name in {**self._before, **now}
        }

    def restore(self, costs: dict[str, float]) -> None:
        """See `TokenTeacher`. The budget counts on, too: what was said before the checkpoint is
        not asked again, so nothing else would tell what it cost."""
        if self._engine is not None:
            self._before = costs
            self._engine.budget.count_on(costs["teacher_usd"])

    def close(self) -> None:
        """See `TokenTeacher`."""
        if self._engine is not None:
            self._engine.__exit__(None, None, None)


def _read(reply: "Reply", tokens: list[int]) -> list[float] | str:
    """The log-probabilities of all tokens but the first, or in words why there are none."""
    if reply.problem is not None:
        return reply.detail or reply.problem
    scored = json.loads(reply.text) or {}
    names, values = scored.get("tokens"), scored.get("token_logprobs")
    if not (isinstance(names, list) and isinstance(values, list)):
        return f"its logprobs have {sorted(scored)} instead of lists tokens and token_logprobs"
    found = [_TOKEN.fullmatch(str(name)) for name in names]
    if not all(found):
        return f"it answers {names[:3]} instead of token ids"
    ids = [int(match[1]) for match in found if match]
    if ids != tokens:
        pairs = enumerate(zip(ids, tokens, strict=False))
        shorter = min(len(ids), len(tokens))
        first = next((place for place, (one, other) in pairs if one != other), shorter)
        return (
            f"it scored {len(ids)} tokens, others than the {len(tokens)} that were sent from token"
            f" {first} on"
        )
    usable = len(values) == len(tokens) and all(
        isinstance(value, (int, float)) and math.isfinite(value) for value in values[1:]
    )
    return [float(value) for value in values[1:]] if usable else "a token has no log-probability"
