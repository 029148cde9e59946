"""The chat engine: what it reads ahead, keeps, pays once, and tells."""

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from schemas.base import InputError
from tasks.chat import engine as engine_module
from tasks.chat.budget import Budget
from tests.fakes.chat_fixtures import KEY, ask, engine, first, message, question, questions
from tests.fakes.chat_server import ChatServer, Fault

pytestmark = pytest.mark.usefixtures("no_long_waits")


def stored(store: Path, number: int) -> Path:
    """Where the answer to a question lies."""
    digest = question(number).digest
    return store / "answers" / digest[:2] / digest


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
        for proxy in (server.url.removesuffix("/v1"), server.url[len("http://") : -len("/v1")]):
            monkeypatch.setenv("http_proxy", proxy)  # curl takes it without a scheme, too
            (reply,) = ask("http://model.invalid/v1", tmp_path / str("://" in proxy))
            assert reply.problem is None
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        server.paths = ("/v1/chat/completions",)
        (reply,) = ask(server.url, tmp_path / "direct")
        assert reply.problem is None
