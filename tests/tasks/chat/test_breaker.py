"""The circuit breaker: when it opens, what it counts, what it says, and what an outage costs."""

import time
from pathlib import Path

import pytest

from schemas.base import StageFailed
from tasks.chat import breaker as breaker_module
from tasks.chat.breaker import Breaker
from tasks.chat.provider import Endpoint
from tasks.chat.transport import Failure
from tests.fakes.chat_fixtures import ask
from tests.fakes.chat_server import ChatServer, Fault, Request

UNAVAILABLE = Failure("server_error", "503")


def test_a_breaker_opens_after_its_time_and_only_for_several_requests(monkeypatch):
    now = 0.0
    monkeypatch.setattr(breaker_module.time, "monotonic", lambda: now)
    breaker = Breaker(Endpoint("vllm", "http://x/v1"), 300)
    for _ in range(10):
        breaker.failed("one", now, UNAVAILABLE)
        now += 100
    breaker.failed("two", now, UNAVAILABLE)
    breaker.succeeded()
    now += 1
    burst = [breaker.failed(str(number), now - 0.5, UNAVAILABLE) for number in range(64)]
    assert burst == [0.0] * 64, "one burst"
    pauses = []
    for number in range(9):
        now += 1
        pauses.append(breaker.failed(str(number), now, UNAVAILABLE))
    assert pauses == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert breaker.failed("x", now, Failure("rate_limited", "429", 45.0)) == 45.0
    now += 300
    said = r"http://x/v1 has answered nothing for 309 s: 75 failures, the last: boom.*VLLM_BASE_URL"
    with pytest.raises(StageFailed, match=said):
        breaker.failed("y", now, Failure("server_error", "boom"))


def test_a_patient_breaker_counts_a_request_s_failures_once_until_something_is_answered() -> None:
    breaker = Breaker(Endpoint("vllm", "http://x/v1"), 300, patient=True)

    def counts(request: str, waiting: int = 3) -> bool:
        breaker.failed(request, time.monotonic(), UNAVAILABLE)
        return breaker.counts(request, UNAVAILABLE, waiting)

    assert [counts("one") for _ in range(3)] == [True, False, False]
    assert counts("one", 2), "two that wait cannot tell an outage"
    assert [counts("two"), counts("two"), counts("three")] == [True, False, False]
    breaker.succeeded()
    assert counts("one")


def test_a_patient_breaker_says_that_it_waits_and_then_that_it_need_not(monkeypatch, caplog):
    """Failures 4 s apart: told at 12, 20 and 40 s (the first that are 10, 20 and 40 s after the
    outage began)."""
    now = 0.0
    monkeypatch.setattr(breaker_module.time, "monotonic", lambda: now)
    breaker = Breaker(Endpoint("vllm", "http://x/v1"), 300, patient=True)
    for number in range(12):
        breaker.failed(str(number), now, UNAVAILABLE)
        now += 4
    breaker.succeeded()
    waiting = (
        "the endpoint of vllm at http://x/v1 has answered nothing for {} s (503); waiting for it"
        " for up to 300 s"
    )
    again = "the endpoint of vllm at http://x/v1 answers again, after 48 s"
    assert caplog.messages == [*map(waiting.format, (12, 20, 40)), again]


@pytest.mark.usefixtures("no_long_waits")
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


@pytest.mark.usefixtures("no_long_waits")
def test_an_outage_is_outlived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(breaker_module, "LONGEST_PAUSE", 0.3)
    with ChatServer(latency=0.01) as server:
        away: list[float] = []

        def fault(request: Request) -> Fault | None:
            if request.number == 40:
                away.append(time.monotonic() + 1.2)
            return Fault("reset") if away and time.monotonic() < away[0] else None

        server.faults = fault
        replies = ask(server.url, tmp_path, 300, concurrency=16, attempts=10)
    assert {reply.problem for reply in replies} == {None}


@pytest.mark.usefixtures("no_long_waits")
def test_one_request_that_always_fails_is_no_dead_endpoint(tmp_path: Path) -> None:
    broken = Fault("status", 500)
    with ChatServer(lambda request: broken if request.question == "say 7" else None) as server:
        replies = ask(server.url, tmp_path, 20, attempts=6, dead_seconds=0.01)
    assert [reply.problem for reply in replies if reply.problem] == ["failed"]
    assert replies[7].attempts == 6
    assert "500" in replies[7].detail
