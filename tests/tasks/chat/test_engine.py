"""The chat engine against a server that misbehaves (`tests.fakes.chat_server`): every failure is
overcome, or classified and counted."""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.base import InputError, StageFailed
from tasks.chat import breaker
from tasks.chat import engine as engine_module
from tasks.chat.budget import Budget
from tests.fakes.chat_fixtures import KEY, ask, engine, question, questions
from tests.fakes.chat_server import ChatServer, Fault, Request

pytestmark = pytest.mark.usefixtures("no_long_waits")


def first(fault: Fault, times: int = 1) -> Callable[[Request], Fault | None]:
    """The fault strikes each question's first requests."""
    return lambda request: fault if request.again < times else None


def numbered(faults: Sequence[Fault]) -> Callable[[Request], Fault | None]:
    """The n-th fault strikes question n, each time."""
    return lambda request: dict(enumerate(faults)).get(int(request.question.split()[1]))


def stored(store: Path, number: int) -> Path:
    """Where the answer to a question lies."""
    digest = question(number).digest
    return store / "answers" / digest[:2] / digest


def message(**fields: Any) -> Fault:
    """The message of the answer has these fields."""
    return Fault("change", change=lambda body: body["choices"][0]["message"].update(fields))


def choice(**fields: Any) -> Fault:
    """The choice has these fields."""
    return Fault("change", change=lambda body: body["choices"][0].update(fields))


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


PROBLEMS = {
    "refused": [
        message(content=None, refusal="I cannot do that."),
        message(content="I'm sorry, but I can't help with that."),
        choice(finish_reason="content_filter"),
        top(choices=[{"index": 0, "finish_reason": "content_filter"}]),
    ],
    "truncated": [choice(finish_reason="length")],
    "empty": [message(content="", reasoning_content="thinking and thinking")],
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
    expected = [problem] * len(faults) + [None] * (10 - len(faults))
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


def test_reasoning_that_comes_apart_is_read(tmp_path: Path) -> None:
    """vLLM's `reasoning_content`, in newer versions `reasoning`."""
    faults = [message(reasoning_content="because"), message(reasoning="because")]
    with ChatServer(numbered(faults)) as server:
        replies = ask(server.url, tmp_path, 2)
    assert [reply.reasoning for reply in replies] == ["because"] * 2


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


def error(status: int, **fields: str) -> Fault:
    return Fault("status", status, json.dumps({"error": fields}))


WRONG_KEY = Fault("status", 400, '[{"error": {"message": "API key not valid."}}]')
DAYS = Fault("status", 429, headers={"retry-after": "86400"})
FATAL = {
    "the key is wrong": (error(401, message=f"Incorrect API key {KEY}"), "TEST_API_KEY"),
    "Gemini's word for that": (WRONG_KEY, "TEST_API_KEY"),
    "no access": (Fault("status", 403, "no"), "TEST_API_KEY"),
    "no such model": (error(404, message="The model m does not exist"), "TEST_BASE_URL"),
    "a parameter it does not know": (error(400, message="unknown parameter seed"), "seed"),
    "nothing left to pay with": (
        error(429, code="insufficient_quota"),
        r"no funds left .*Top it up",
    ),
    "a quota of days": (DAYS, "86400 s"),
}
A_MATTER_OF_TIME = {"nothing left to pay with", "a quota of days"}
"""Nobody put these in wrong: the stage fails, and a later one may do."""


@pytest.mark.parametrize("name", FATAL)
def test_what_only_a_person_can_put_right_stops_at_once(name: str, tmp_path: Path) -> None:
    fault, words = FATAL[name]
    kind = StageFailed if name in A_MATTER_OF_TIME else InputError
    with ChatServer(lambda request: fault) as server, pytest.raises(kind, match=words) as raised:
        ask(server.url, tmp_path, 2000, concurrency=8)
    assert server.count < 60
    assert KEY not in str(raised.value)


def test_a_dead_endpoint_stops_the_stage_and_what_was_answered_is_kept(tmp_path: Path) -> None:
    """50 answers, then nothing but refused connections."""
    with ChatServer() as server:
        server.faults = lambda request: Fault("reset") if server.billed.total() >= 50 else None
        began = time.monotonic()
        with pytest.raises(StageFailed, match=r"has answered nothing for .* TEST_BASE_URL"):
            ask(server.url, tmp_path, 5000, concurrency=16, dead_seconds=1.0, attempts=100)
        assert time.monotonic() - began < 600, "all attempts would take hours"
        billed = server.billed.total()
        server.faults = lambda request: None
        replies = ask(server.url, tmp_path, 200)
        assert sum(reply.cached for reply in replies) == billed
        assert server.billed.total() == 200


def test_an_outage_is_outlived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker, "LONGEST_PAUSE", 0.3)
    with ChatServer(latency=0.01) as server:
        away: list[float] = []

        def fault(request: Request) -> Fault | None:
            if request.number == 40:
                away.append(time.monotonic() + 1.2)
            return Fault("reset") if away and time.monotonic() < away[0] else None

        server.faults = fault
        replies = ask(server.url, tmp_path, 300, concurrency=16, attempts=10)
    assert {reply.problem for reply in replies} == {None}


def test_one_request_that_always_fails_is_no_dead_endpoint(tmp_path: Path) -> None:
    broken = Fault("status", 500)
    with ChatServer(lambda request: broken if request.question == "say 7" else None) as server:
        replies = ask(server.url, tmp_path, 20, attempts=6, dead_seconds=0.01)
    assert [reply.problem for reply in replies if reply.problem] == ["failed"]
    assert replies[7].attempts == 6
    assert "500" in replies[7].detail


def test_a_caller_that_stops_early_keeps_what_was_under_way(tmp_path: Path) -> None:
    with ChatServer(latency=0.05) as server:
        with engine(server.url, tmp_path, concurrency=8) as running:
            for number, _ in running.ask_singly(questions(1000)):
                if number == 3:
                    break
            # The generator is closed here; the engine can be asked again.
            assert [reply.cached for _, reply in running.ask_singly(questions(4))] == [True] * 4
        billed = server.billed.total()
        assert billed < 300, "of 1000"
        assert sum(reply.cached for reply in ask(server.url, tmp_path, 300)) == billed


def test_the_same_question_twice_is_paid_once(tmp_path: Path) -> None:
    with ChatServer(latency=0.05) as server, engine(server.url, tmp_path) as running:
        replies = [reply for _, reply in running.ask_singly((0, question(1)) for _ in range(20))]
        assert server.count == 1
        assert len({reply.text for reply in replies}) == 1
        assert sum(reply.usd > 0 for reply in replies) == 1


def test_requests_are_read_as_replies_are_taken(tmp_path: Path) -> None:
    """However long the input is, only a window of it is in memory."""
    taken = 0

    def endless() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield taken, question(taken)

    with ChatServer() as server, engine(server.url, tmp_path, concurrency=2) as running:
        replies = running.ask_singly(endless())
        for _ in range(100):
            next(replies)
        replies.close()  # type: ignore[attr-defined]
    assert taken <= 100 + 2 * 16 + 64, "64: answered while the caller was not looking"


def test_one_request_that_hangs_does_not_stop_the_others(tmp_path: Path) -> None:
    """The first answer comes when 300 were asked, far more than the window of 64 that wait for
    theirs."""
    server = ChatServer()
    server.faults = lambda request: (
        Fault("slow", ready=lambda: server.count == 300) if request.question == "say 0" else None
    )
    with server:
        replies = ask(server.url, tmp_path, 300, concurrency=4, timeout_seconds=600)
        assert {reply.problem for reply in replies} == {None}
        assert server.count == 300


def test_a_damaged_answer_is_asked_for_again(tmp_path, caplog):
    with ChatServer() as server:
        ask(server.url, tmp_path, 3)
        path = stored(tmp_path, 1)
        path.write_bytes(path.read_bytes().replace(b"say 1", b"say 2"))
        assert [reply.cached for reply in ask(server.url, tmp_path, 3)] == [True, False, True]
        assert "is damaged" in caplog.text
        path.write_bytes(b"")
        assert [reply.cached for reply in ask(server.url, tmp_path, 3)] == [True, False, True]


def test_the_store_never_holds_up_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a store that takes 50 ms for a read and for a write, 64 requests of 50 ms each still run
    side by side."""
    with ChatServer(latency=0.05) as server, engine(server.url, tmp_path) as running:
        for name in ("get", "put"):
            call = getattr(running.answers, name)
            slow = lambda *given, call=call: time.sleep(0.05) or call(*given)  # noqa: E731
            monkeypatch.setattr(running.answers, name, slow)
        for number, _ in running.ask_singly(questions(256)):
            assert stored(tmp_path, number).exists(), "a reply before it is kept"
        assert server.most > 16, "at a time"


def test_a_store_that_is_full_stops_the_stage(tmp_path, monkeypatch):
    def full(digest: str, body: bytes) -> None:
        raise InputError("no space is left on the disk")

    with ChatServer() as server, engine(server.url, tmp_path, concurrency=4) as running:
        monkeypatch.setattr(running.answers, "put", full)
        with pytest.raises(InputError, match="no space"):
            list(running.ask_singly(questions(1000)))
        assert server.count < 60


def test_progress_tells_rates_money_and_failures(tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "_PROGRESS_SECONDS", 0.1)
    told: list[tuple[int, dict[str, float]]] = []
    thread: set[str] = set()

    def progress(done: int, values: Mapping[str, float]) -> None:
        thread.add(threading.current_thread().name)
        told.append((done, dict(values)))

    with ChatServer(first(Fault("status", 503)), latency=0.03) as server:
        with engine(server.url, tmp_path, progress=progress, concurrency=4) as running:
            list(running.ask_singly(questions(40)))
        done, values = told[-1]
    assert thread == {"MainThread"}
    assert 0 < done <= 40
    told_of = ("server_error", "requests_per_second", "tokens_per_second", "usd")
    assert all(values[name] > 0 for name in told_of)
    assert 1 <= values["limit"] <= 4
    assert values["in_flight"] <= 4


def test_the_key_is_nowhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not in the store although the server says it, not in logs, not in replies."""
    leak = message(content=f"your key is {KEY}")
    refuse = Fault("status", 422, f"bad key {KEY}")
    with ChatServer(lambda request: leak if request.number == 0 else refuse) as server:
        replies = ask(server.url, tmp_path, 2, concurrency=1)
        assert all(request.headers["authorization"] == f"Bearer {KEY}" for request in server.seen)
    assert [reply.problem for reply in replies] == [None, "failed"]
    assert KEY not in str(replies)
    assert KEY not in caplog.text
    assert "***" in caplog.text
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert not any(KEY.encode() in path.read_bytes() for path in files)


def test_answers_lie_in_a_bucket_too(gcs_bucket: str) -> None:
    store = f"gs://{gcs_bucket}/store"
    with ChatServer(first(message(content=""))) as server:
        replies = ask(server.url, store, 20)
        again = ask(server.url, store, 20, budget=Budget(account="another"))
        assert [reply.text for reply in again] == [reply.text for reply in replies]
        assert server.count == 40
        assert all(reply.cached and reply.usd == 0 for reply in again)


def test_a_proxy_of_the_environment_is_used_but_for_hosts_that_need_none(tmp_path, monkeypatch):
    """The server stands for the proxy: it is asked for whole URLs of a host that does not exist."""
    with ChatServer() as server:
        server.paths = ("http://model.invalid/v1/chat/completions",)
        monkeypatch.setenv("http_proxy", server.url.removesuffix("/v1"))
        (reply,) = ask("http://model.invalid/v1", tmp_path)
        assert reply.problem is None
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        server.paths = ("/v1/chat/completions",)
        (reply,) = ask(server.url, tmp_path / "direct")
        assert reply.problem is None
