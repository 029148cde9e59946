"""A judge behind an OpenAI-compatible API, asked through the chat engine (`tasks.chat`).

Endpoint failures never change a reward; at worst they prevent the update:

- the endpoint is down (connections refused, errors to everybody): it is asked again every few
  seconds, for `LYCEUM_JUDGE_PATIENCE_SECONDS`, at no question's cost; then the stage ends
  (StageFailed), and continues from there when it is run again;
- one question keeps failing while others are answered: no ruling;
- an answer is stored before it counts, and never paid twice.

The whole stage has one engine, one budget and one limit of concurrent requests, whichever rollout
or thread asks.
"""

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from infra.context import context
from tasks.chat.engine import ChatEngine
from tasks.chat.reply import Reply
from tasks.chat.request import ChatRequest
from tasks.contract.reward import Resources
from tasks.judging.judge import EndpointJudgeConfig, Judge, Question, Ruling


class EndpointJudge(Judge):
    """See `open_judge`."""

    def __init__(self, config: EndpointJudgeConfig, resources: Resources) -> None:
        super().__init__(config.max_abstained)
        self._config = config
        engine = ChatEngine.of(
            config,
            resources.answers,
            account=["judge", config.model_dump(mode="json"), resources.seed],
            patience=context().settings.judge_patience_seconds,
        )
        self._open = ExitStack()  # closes once
        self._engine = self._open.enter_context(engine)

    def _ask(self, questions: Iterable[Question]) -> list[Ruling]:
        return self._engine.ask(map(self.request_of, questions), _ruling)

    def request_of(self, question: Question) -> ChatRequest:
        config = self._config
        parameters = config.parameters_for(config.temperature, config.max_response_tokens)
        parameters |= question.parameters
        messages = ({"role": "user", "content": question.text},)
        return ChatRequest(config.model, messages, parameters, question.sample)

    def values(self) -> dict[str, float]:
        """Also `requests`, and `waited_seconds` for an endpoint that was down, including now."""
        breaker = self._engine.breaker
        requests = float(self._engine.meter.counts["requests"])
        waited = breaker.waited + breaker.down
        return {**super().values(), "requests": requests, "waited_seconds": waited}

    def count_on(self, values: Mapping[str, float]) -> None:
        super().count_on(values)
        self._engine.loop.call_soon_threadsafe(self._engine.budget.count_on, values["usd"])

    def close(self) -> None:
        self._open.close()


def _ruling(request: ChatRequest, reply: Reply) -> Ruling:
    problem = reply.problem and f"{reply.problem}: {reply.detail}".removesuffix(": ")
    return Ruling(
        reply.text,
        problem=problem,
        replied=reply.problem in ("refused", "empty", "truncated"),
        digest=request.digest,
        cached=reply.cached,
        usd=reply.usd,
    )
