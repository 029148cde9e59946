"""Attempts against a server that misbehaves (`tests.fakes.chat_server`): every failure is overcome,
or classified and counted, or ends the stage."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.base import InputError, StageFailed
from tests.fakes.chat_fixtures import (
    KEY,
    PRICES,
    ask,
    choice,
    engine,
    first,
    message,
    question,
    questions,
)
from tests.fakes.chat_server import ChatServer, Fault, Request

pytestmark = pytest.mark.usefixtures("no_long_waits")


def numbered(faults: Sequence[Fault]) -> Callable[[Request], Fault | None]:
    """The n-th fault strikes question n, each time."""
    return lambda request: dict(enumerate(faults)).get(int(request.question.split()[1]))


def top(**fields: Any) -> Fault:
    """The answer has these fields."""
    return Fault("change", change=lambda body: body.update(fields))


PAGE = Fault("body", text="<html>login</html>", headers={"content-type": "text/html"})
TRANSIENT = {
    "too many requests": Fault("status", 429, '{"error": {"message": "slow down"}}'),
    "an overloaded server": Fault("status", 503, "<html>busy</html>"),
    "a broken server": Fault("status", 500, "oops"),
    "a gateway that gave up": Fault("status", 504),
    "a conflict": Fault("status", 409, "{}"),
    "no connection": Fault("reset"),
    "a connection lost in the body": Fault("cut"),
    "half of a JSON": Fault("body", text='{"choices": [{"message": {"content": "hal'),
    "a web page": PAGE,
    "an empty body": Fault("body"),
    "no choices": top(choices=[]),
    "choices of another type": top(choices={"0": "x"}),
    "no message": Fault("change", change=lambda body: body["choices"][0].pop("message")),
    "content of another type": message(content=[1, 2]),
    "an empty answer": message(content="  "),
    "no content": message(content=None),
}
SLOW = [Fault("hang", seconds=5), Fault("drip", seconds=0.02)]
"""Silence, and a body that drips for longer than a request may take."""


def test_what_takes_too_long_is_asked_again(tmp_path: Path) -> None:
    slow = numbered(SLOW)
    with ChatServer(lambda request: None if request.again else slow(request)) as server:
        replies = ask(server.url, tmp_path, len(SLOW), timeout_seconds=1.5)
    assert [reply.problem for reply in replies] == [None, None]
    assert all(reply.attempts > 1 for reply in replies)


def test_what_passes_is_asked_again(tmp_path: Path) -> None:
    faults = numbered(list(TRANSIENT.values()))
    with ChatServer(lambda request: None if request.again else faults(request)) as server:
        replies = dict(zip(TRANSIENT, ask(server.url, tmp_path, len(TRANSIENT)), strict=True))
        for number, (name, reply) in enumerate(replies.items()):
            assert (reply.problem, reply.attempts) == (None, 2), name
            assert reply.text.endswith(f"<answer>{number}</answer>"), name
        asked = server.count
        assert all(reply.cached for reply in ask(server.url, tmp_path, len(TRANSIENT)))
        assert server.count == asked, "what is in the store is not asked for again"


def test_every_attempt_at_one_answer_has_the_same_idempotency_key(tmp_path: Path) -> None:
    with ChatServer(first(Fault("cut")), idempotent=True) as server:
        ask(server.url, tmp_path, 5)
        assert server.count == 10
        assert set(server.billed.values()) == {1}, "a provider that honours the key bills once"
        assert set(server.keys) == {question(number).digest for number in range(5)}


def test_an_answer_that_is_wanted_anew_has_another_key(tmp_path: Path) -> None:
    """Else a provider that honours the key would give the same empty answer again."""
    with ChatServer(first(message(content=""), 2), idempotent=True) as server:
        (reply,) = ask(server.url, tmp_path)
        assert reply.problem is None
        assert reply.attempts == 3
        assert len(server.keys) == 3


def error(status: int, **fields: str) -> Fault:
    return Fault("status", status, json.dumps({"error": fields}))


PROBLEMS = {
    "refused": [
        message(content=None, refusal="I cannot do that."),
        message(content="I'm sorry, but I can't help with that."),
        choice(finish_reason="content_filter"),
        top(choices=[{"index": 0, "finish_reason": "content_filter"}]),
    ],
    "filtered": [
        error(400, code="content_filter", message="The prompt triggered our content policy."),
        error(403, message='model x requires moderation. Your input was flagged for "violence".'),
    ],
    "truncated": [choice(finish_reason="length")],
    "empty": [
        message(content="", reasoning_content="thinking and thinking"),
        message(content="<think>hm</think>\n"),
    ],
    "malformed": [Fault("body", text=text) for text in ("<html>", "null", "[" * 100_000)],
    "failed": [
        Fault("status", 500, "down"),
        Fault("status", 400, '{"error": {"message": "context length exceeded"}}'),
        Fault("reset"),
    ],
}


@pytest.mark.parametrize("problem", PROBLEMS)
def test_what_does_not_pass_is_classified_and_counted(problem: str, tmp_path: Path) -> None:
    """The other questions are answered all the same."""
    faults = PROBLEMS[problem]
    named = "refused" if problem == "filtered" else problem
    expected = [named] * len(faults) + [None] * (10 - len(faults))
    with ChatServer(numbered(faults)) as server:
        with engine(server.url, tmp_path, attempts=4) as running:
            replies = [reply for _, reply in running.ask_singly(questions(10))]
            assert running.values()[problem] == len(faults)
        assert [reply.problem for reply in replies] == expected
        assert all(reply.detail for reply in replies[: len(faults)])
        asked = server.count
        again = ask(server.url, tmp_path, 10, attempts=4)
        assert [reply.problem for reply in again] == expected
        if problem in ("refused", "truncated", "empty"):
            assert server.count == asked, "the model's own words are an answer, and were paid"


def test_a_truncated_answer_is_asked_for_once_more_with_twice_the_room_if_that_is_allowed(tmp_path):
    cut = choice(finish_reason="length")
    with ChatServer(lambda request: cut if request.body["max_tokens"] < 128 else None) as server:
        (short,) = ask(server.url, tmp_path)
        assert short.problem == "truncated"
        assert server.count == 1
        (long,) = ask(server.url, tmp_path, longer=True)
        assert long.problem is None
        assert [request.body["max_tokens"] for request in server.seen] == [64, 128]
    with ChatServer(lambda request: cut) as server:
        (still,) = ask(server.url, tmp_path / "other", longer=True)
        assert still.problem == "truncated"
        assert server.count == 2


WRONG_KEY = Fault("status", 400, '[{"error": {"message": "API key not valid."}}]')
MOVED = Fault("status", 301, headers={"location": "/elsewhere"})
DAYS = Fault("status", 429, headers={"retry-after": "86400"})
IN_A_BODY = Fault("body", text='{"error": {"code": 402, "message": "Insufficient credits"}}')
FATAL = {
    "the key is wrong": (error(401, message=f"Incorrect API key {KEY}"), "TEST_API_KEY"),
    "Gemini's word for that": (WRONG_KEY, "TEST_API_KEY"),
    "no access": (Fault("status", 403, "no"), "TEST_API_KEY"),
    "no such model": (error(404, message="The model m does not exist"), "TEST_BASE_URL"),
    "a new address": (MOVED, r"redirects \(301\) to http://\S+/elsewhere, .*TEST_BASE_URL"),
    "a parameter it does not know": (error(400, message="unknown parameter seed"), "seed"),
    "nothing left to pay with": (
        error(429, code="insufficient_quota"),
        r"no funds left .*Top it up",
    ),
    "a quota of days": (DAYS, "86400 s"),
    "an error that comes with status 200": (IN_A_BODY, r"no funds left \(402 Insufficient"),
}
A_MATTER_OF_TIME = {name for name in FATAL if "left" in name or "days" in name or "200" in name}
"""Nobody put these in wrong: the stage fails, and a later one may do."""


@pytest.mark.parametrize("where", ["in place of an answer", "in an answer"])
def test_an_error_that_comes_with_status_200_is_that_error(where: str, tmp_path: Path) -> None:
    """As OpenRouter hands on a provider's: asked again as often as its status allows, where a body
    that is no completion is given up after three. What was begun may be billed."""
    failed = {"error": {"code": 502, "message": "Provider returned error"}}
    begun = {**failed, "finish_reason": "error", "message": {"content": "Let me"}}
    fault = top(**failed, choices=[]) if where.startswith("in place") else top(choices=[begun])
    with ChatServer(first(fault, 5)) as server, engine(server.url, tmp_path) as running:
        ((_, reply),) = running.ask_singly(questions(1))
        assert reply.problem is None
        assert running.values()["server_error"] == 5
        assert "malformed" not in running.values()
        worst = running.budget.worst(question(0), PRICES).usd
        assert (reply.usd > 5 * worst) == (where == "in an answer")


@pytest.mark.parametrize("name", FATAL)
def test_what_only_a_person_can_put_right_stops_at_once(name: str, tmp_path: Path) -> None:
    fault, words = FATAL[name]
    kind = StageFailed if name in A_MATTER_OF_TIME else InputError
    with ChatServer(lambda request: fault) as server, pytest.raises(kind, match=words) as raised:
        ask(server.url, tmp_path, 2000, concurrency=8)
    assert server.count < 60
    assert KEY not in str(raised.value)
