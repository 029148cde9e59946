"""An engine on a fresh store, pointed at a test's server."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from infra.settings import Settings
from infra.store.answers import Answers
from infra.store.store import open_store
from tasks.chat.batch_files import ask_all
from tasks.chat.budget import Budget, Prices
from tasks.chat.engine import ChatEngine, Progress
from tasks.chat.provider import Endpoint, endpoint_of
from tasks.chat.reply import Reply
from tasks.chat.request import ChatRequest
from tests.fakes.chat_server import Fault, Request

KEY = "sk-test-secret-0123456789"
PRICES = Prices(input=1.0, output=2.0)


def endpoint(url: str) -> Endpoint:
    return endpoint_of("test", {"TEST_BASE_URL": url, "TEST_API_KEY": KEY})


def engine(
    url: str,
    store: Path | str,
    *,
    budget: Budget | None = None,
    longer: bool = False,
    progress: Progress = lambda done, values: None,
    **settings: Any,
) -> ChatEngine:
    """An engine whose settings are the defaults but for `settings`, given without `teacher_`."""
    given = {f"teacher_{name}": value for name, value in settings.items()}
    return ChatEngine(
        endpoint(url),
        Answers(open_store(store)),
        budget=budget or Budget(),
        prices=PRICES,
        longer=longer,
        progress=progress,
        settings=Settings(**given),
    )


def question(text: str | int, **parameters: Any) -> ChatRequest:
    return ChatRequest(
        "m", ({"role": "user", "content": f"say {text}"},), {"max_tokens": 64, **parameters}
    )


def questions(count: int, **parameters: Any) -> Iterable[tuple[int, ChatRequest]]:
    return ((number, question(number, **parameters)) for number in range(count))


def ask(url: str, store: Path | str, count: int = 1, **options: Any) -> list[Reply]:
    """Replies to so many questions; checks that they come in order."""
    with engine(url, store, **options) as running:
        answered = list(ask_all(running, questions(count)))
    assert [number for number, _ in answered] == list(range(count))
    return [reply for _, reply in answered]


def first(fault: Fault, times: int = 1) -> Callable[[Request], Fault | None]:
    """The fault strikes each question's first requests."""
    return lambda request: fault if request.again < times else None


def choice(**fields: Any) -> Fault:
    """The choice has these fields."""
    return Fault("change", change=lambda body: body["choices"][0].update(fields))


def message(**fields: Any) -> Fault:
    """The message of the answer has these fields."""
    return Fault("change", change=lambda body: body["choices"][0]["message"].update(fields))
