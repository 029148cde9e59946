"""Prompts, traces, and what rewards pay for them: of what a test does not say, a small sum's."""

from collections.abc import Iterable
from typing import Any

from schemas.examples import Constraint, Domain, Prompt, Trace
from tasks.contract.reward import Judged, Response


def prompt(answer: str = "4", check: str = "numeric", **changes: Any) -> Prompt:
    fields = {"id": "p1", "prompt": "What is 2 + 2?", "domain": Domain.MATH, "source": "test"}
    return Prompt(**fields | {"answer": answer, "check": check} | changes)


def told(constraints: dict[str, Any]) -> tuple[Constraint, ...]:
    return tuple(Constraint(name=name, value=value) for name, value in constraints.items())


def trace(answer: str, reasoning: str = "2 + 2 = 4") -> str:
    return Trace(reasoning=reasoning, answer=answer).render()


def paid(reward: Any, *given: str | Response, asked: Prompt | None = None, **config: Any) -> list:
    """What a reward that prepares nothing pays for each of these responses to one prompt."""
    responses = [Response(one) if isinstance(one, str) else one for one in given]
    return values(
        reward.score(reward.Config.parse(config), [asked or prompt()] * len(given), responses)
    )


def values(scores: Iterable[Judged | float | None]) -> list[float | None]:
    """Without the details."""
    return [one.value if isinstance(one, Judged) else one for one in scores]
