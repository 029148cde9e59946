"""How fast the chat engine asks, what its headers say, and where it finds an endpoint."""

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from pathlib import Path

import pytest

from schemas.base import InputError, StageFailed
from tasks.chat.limiter import Limiter
from tasks.chat.provider import endpoint_of
from tasks.chat.request import ChatRequest
from tasks.chat.transport import renewal_seconds, retry_after_seconds
from tests.fakes.chat_fixtures import ask, engine, questions
from tests.fakes.chat_server import ChatServer, Fault, Request


def test_a_burst_of_failures_halves_once_and_successes_give_back_one_slot_per_round() -> None:
    async def play() -> None:
        limiter = Limiter(64)
        burst = [await limiter.acquire() for _ in range(64)]
        for sent in burst:
            limiter.failed(sent)
            limiter.release()
        assert limiter.limit == 32
        limiter.failed(await limiter.acquire())
        assert limiter.limit == 16
        for _ in range(16):
            limiter.succeeded()
        assert math.isclose(limiter.limit, 17, abs_tol=0.1)
        for _ in range(100_000):
            limiter.succeeded()
        assert limiter.limit == 64

    asyncio.run(play())


def test_slots_are_given_in_turn_and_to_those_who_ask_again_first() -> None:
    async def play() -> list[str]:
        limiter, order = Limiter(1), []

        async def take(name: str, first: bool = False) -> None:
            await limiter.acquire(first=first)
            order.append(name)
            limiter.release()

        await limiter.acquire()
        tasks = [asyncio.create_task(take("a")), asyncio.create_task(take("b"))]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(take("again", first=True)))
        await asyncio.sleep(0)
        limiter.release()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(play()) == ["again", "a", "b"]


def test_who_stops_waiting_takes_no_slot() -> None:
    async def play() -> None:
        limiter = Limiter(1)
        await limiter.acquire()
        waiting = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0)
        limiter.release()  # the slot is his, but he is cancelled before he learns it
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert limiter.active == 0
        limiter.close(StageFailed("over"))
        with pytest.raises(StageFailed):
            await limiter.acquire()

    asyncio.run(play())


def test_retry_after_is_read_as_seconds_and_as_a_date():
    now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
    read = {"7": 7.0, "1.5": 1.5, "-3": 0.0, "soon": None}
    read |= {"Sat, 21 Nov 2026 12:00:30 GMT": 30.0, "Saturday, 21-Nov-26 12:00:05 GMT": 5.0}
    read |= {"Sat, 21 Nov 2026 11:00:00 GMT": 0.0}
    assert {text: retry_after_seconds({"retry-after": text}, now) for text in read} == read
    assert retry_after_seconds({}, now) is None
    assert retry_after_seconds({"retry-after-ms": "250", "retry-after": "1"}, now) == 0.25


def test_used_up_rate_limits_are_read() -> None:
    times = {"6m0s": 360, "20ms": 0.02, "1h2m3.5s": 3723.5, "12": 12, "later": 0}
    used_up = [("0", *one) for one in times.items()]
    others = [("0.0", "1m30s", 90), ("1", "6m0s", 0), ("many", "6m0s", 0)]
    for remaining, reset, seconds in (*used_up, *others):
        for ending in ("-requests", "-tokens", ""):
            names = (f"x-ratelimit-remaining{ending}", f"x-ratelimit-reset{ending}")
            told = dict(zip(names, (remaining, reset), strict=True))
            assert renewal_seconds(told) == seconds


def test_an_endpoint_is_read_from_the_environment() -> None:
    assert endpoint_of("openai", {"OPENAI_API_KEY": "k"}).url == "https://api.openai.com/v1"
    gemini = endpoint_of("gemini", {"GEMINI_API_KEY": "k"}).url
    assert gemini.startswith("https://generativelanguage.googleapis.com/")
    local = endpoint_of("my-vllm", {"MY_VLLM_BASE_URL": "http://127.0.0.1:8000/v1/"})
    assert (local.url, local.key) == ("http://127.0.0.1:8000/v1", "none")
    assert "secret" not in repr(endpoint_of("openai", {"OPENAI_API_KEY": "secret"}))


def test_an_endpoint_that_is_not_set_says_what_to_set():
    for provider, environment, words in (
        ("openai", {}, "set OPENAI_API_KEY"),
        ("vllm", {}, "set VLLM_BASE_URL"),
        ("vllm", {"VLLM_BASE_URL": "127.0.0.1:8000"}, "no URL of an API"),
        ("vllm", {"VLLM_BASE_URL": "http://HOST:PORT/v1"}, "no URL of an API"),
        ("vllm", {"VLLM_BASE_URL": "http://[::1/v1"}, "no URL of an API"),
        ("vllm", {"VLLM_BASE_URL": "http://user:pass@host/v1"}, "VLLM_API_KEY is for a key"),
        ("vllm", {"VLLM_BASE_URL": "http://host/v1?key=secret-in-it"}, "VLLM_API_KEY is for a key"),
        ("openai", {"OPENAI_API_KEY": "two words"}, "OPENAI_API_KEY holds white space"),
    ):
        with pytest.raises(InputError, match=words) as error:
            endpoint_of(provider, environment)
        assert "secret-in-it" not in str(error.value)
        assert "pass@" not in str(error.value)


def test_the_digest_is_of_model_messages_parameters_and_sample() -> None:
    messages = ({"role": "user", "content": "hi"},)
    one = ChatRequest("m", messages, {"temperature": 0.7, "seed": 1})
    same = ({"content": "hi", "role": "user"},), {"seed": 1, "temperature": 0.7}
    assert one.digest == ChatRequest("m", *same).digest
    others = [
        ChatRequest("n", messages, one.parameters),
        ChatRequest("m", (*messages, *messages), one.parameters),
        ChatRequest("m", messages, {"temperature": 0.7, "seed": 2}),
        ChatRequest("m", messages, one.parameters, sample=1),
    ]
    assert len({request.digest for request in (one, *others)}) == 5


# Against a server


@pytest.mark.parametrize("as_date", [False, True], ids=["seconds", "date"])
def test_retry_after_holds_everybody(as_date: bool, tmp_path: Path) -> None:
    """Between two requests is a pause of about the 1.5 or 3 s that are asked for. An HTTP date has
    whole seconds: a second off at most."""
    times: list[float] = []

    def fault(request: Request) -> Fault | None:
        times.append(time.monotonic())
        if request.number != 4:
            return None
        later = format_datetime(datetime.now(UTC) + timedelta(seconds=3), usegmt=True)
        return Fault("status", 429, headers={"retry-after": later if as_date else "1.5"})

    with ChatServer(fault, latency=0.05) as server:
        ask(server.url, tmp_path, 30, concurrency=4)
    assert len(times) == 31
    assert max(later - before for before, later in pairwise(times)) >= 1.0


def test_a_used_up_rate_limit_is_waited_for(tmp_path: Path) -> None:
    times: list[float] = []

    def fault(request: Request) -> Fault | None:
        times.append(time.monotonic())
        left = {"x-ratelimit-remaining-requests": "9"}
        used_up = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "400ms"}
        return Fault("slow", headers=used_up if request.number == 1 else left)

    with ChatServer(fault) as server:
        ask(server.url, tmp_path, 4, concurrency=1)
    assert times[2] - times[1] >= 0.4


def test_an_overloaded_endpoint_gets_fewer_requests_at_a_time_and_then_more(tmp_path: Path) -> None:
    """A server that refuses what exceeds 8: the engine finds it, and loses nothing."""
    server = ChatServer(latency=0.02)
    server.faults = lambda request: Fault("status", 429) if server.under_way > 8 else None
    with server, engine(server.url, tmp_path, concurrency=32, attempts=20) as running:
        answered = running.ask_singly(questions(400))
        told = [(reply.problem, running.values()["limit"]) for _, reply in answered]
        problems, limits = zip(*told, strict=True)
        refused = running.values()["rate_limited"]
    assert set(problems) == {None}
    assert min(limits) <= 8
    assert any(then < now for then, now in pairwise(limits)), "it tries for more again"
    assert refused < 200, "far fewer refusals than answers"
